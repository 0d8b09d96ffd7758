"""What becomes of rows whose bytes turn out to be damaged while they are read: they are set aside for good,
durably, and said out loud.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyroaring import BitMap64

from mq_broker.core.commands import Quarantine, RowsView
from mq_broker.engine.events import tell_lost
from mq_wire.errors import MqError

if TYPE_CHECKING:
    from mq_broker.engine.engine import Engine

#: Frames that one entry names at most: each has up to 65,536 offsets, and an entry has its bounds.
_FRAMES_MAX: Final = 64


def set_aside(engine: Engine, view: RowsView, error: MqError) -> BitMap64:
    """Takes the rows of all damaged frames of a pinned view out of their queue; returns which of the view are
    out once that is durable.

    Args:
        engine: of the view; not to be called on its thread.
        view: that could not be read to its end.
        error: what reading it raised.

    Raises:
        MqError: `error` itself, where nothing of the view is damaged as far as the queue is concerned: read
            it anew.
    """
    bases = engine.damaged_frames(view)
    taken, out = BitMap64(), BitMap64()
    for start in range(0, len(bases), _FRAMES_MAX):
        now, known = engine.call(Quarantine(view, tuple(bases[start : start + _FRAMES_MAX])))
        taken |= now
        out |= known
    if taken:
        tell_lost(view.destination, view.partition, taken, error)
    if not out:
        raise error
    return out
