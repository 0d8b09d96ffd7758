"""Bugs that show where the disk is full."""

from __future__ import annotations

from typing import Final

from mq_broker.engine.engine import Engine
from mq_broker.engine.housekeeping import Housekeeping
from mq_broker.journal.journal import Journal
from spark_tests.support.planting import Bug, Change

FULL: Final = (
    Bug(
        "rows take what is kept back for state",
        "a new segment for rows leaves no empty one behind",
        (Change(Journal.reserve, "if for_state else (self._settings.reserves,)", "if for_state else (0,)"),),
        "full disk",
    ),
    Bug(
        "the last segment for state is taken without snapshots",
        "nobody covers what was written into the first one, so it never comes back",
        (Change(Housekeeping._is_behind, "older = self._store.older_position()", "return False"),),
        "full disk",
    ),
    Bug(
        "each start takes room",
        "a start opens a generation although the last one was never used",
        (Change(Journal._replay, "if not (reader.is_fresh and self._fits_device()):", "if True:"),),
        "full disk",
    ),
    Bug(
        "relief by the wall clock",
        "a clock that is set back puts off for a day what would give room back",
        (
            Change(
                Engine._monotonic_us, "return round(self._monotonic() * 1_000_000)", "return self._now_us()"
            ),
        ),
        "full disk",
    ),
    Bug(
        "new segments leave no room for snapshots",
        "the disk is full to the last byte when the first snapshot is needed",
        (Change(Housekeeping.keep_room, "self._journal.space.keep_free(self._room_for(broker)[0])", "pass"),),
        "full disk",
    ),
)
