"""Snapshots in small parts, so that few rows reach their edges."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

import pytest

from mq_broker.core import apply, snapshot, space
from mq_broker.engine import cleaner

#: Few offsets: random commands reach the edges of such parts.
SMALL: Final = 3


@contextlib.contextmanager
def chunks_of(bits: int = SMALL) -> Iterator[None]:
    """In the block a part of rows covers 2 ** `bits` offsets. Never changes on a real disk, where it is 2 ** 20."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (apply, cleaner, snapshot, space):
            patch.setattr(module, "CHUNK_BITS", bits)
        yield
