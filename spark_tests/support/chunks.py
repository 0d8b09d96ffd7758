"""Snapshots in small parts and pieces, so that few rows reach their edges."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

import pytest

from mq_broker.core import owners, parts, retention, snapshot, touching
from mq_broker.engine import mover

#: Few offsets: random commands reach the edges of such parts.
SMALL: Final = 3
#: Where pieces end: the first plan, set or producer fills one.
PIECE_BYTES: Final = 150


@contextlib.contextmanager
def chunks_of(bits: int = SMALL, *, small_pieces: bool = True) -> Iterator[None]:
    """In the block a part of rows covers 2 ** `bits` offsets, which never changes on a real disk, where it is
    2 ** 20.

    `small_pieces`: every part of more than a few elements is cut.
    """
    with pytest.MonkeyPatch.context() as patch:
        for module in (touching, mover, snapshot, retention):
            patch.setattr(module, "CHUNK_BITS", bits)
        if small_pieces:
            patch.setattr(parts, "PIECE_BYTES", PIECE_BYTES)
            for name in ("_FRAMES", "_PRODUCERS", "_QUARANTINED_BITS"):
                patch.setattr(snapshot, name, 1)
            patch.setattr(owners, "_ENDS", 1)
        yield
