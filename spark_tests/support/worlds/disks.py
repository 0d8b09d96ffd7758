"""A core on a real journal with snapshots and space keeping, on disks in memory that lose what was not
synced.
"""

from __future__ import annotations

import random
from typing import Final
from uuid import UUID

from mq_broker.core.commands import RowsView, Settings
from mq_broker.engine.housekeeping import SnapshotSettings
from mq_broker.engine.opening import recover
from mq_broker.engine.rows import RowReader
from mq_broker.journal.settings import TINY
from mq_broker.testing.memory_disk import Crash, MemoryDisk, crash_at
from spark_tests.support.worlds.lists import CLUSTER, ListWorld, ReadRow, counted_ids, rows_of

JOURNAL = UUID("aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee")
#: Room that is made for each command, as the engine does.
ROOM = 6 << 10
#: The few segments of a model are kept in far fewer steps.
_STEPS_MAX: Final = 2000


class DiskWorld(ListWorld):
    """The same operations as `ListWorld`; commands are durable after `settle`."""

    def __init__(self, settings: Settings, snapshot_bytes: int = 1 << 40) -> None:
        self.settings = settings
        self.snapshot_settings = SnapshotSettings(bytes=snapshot_bytes, interval_us=1 << 60)
        self.journal_disk, self.snapshot_disk = MemoryDisk(), MemoryDisk()
        self.now_us = 1_700_000_000_000_000
        self._open(created=False, given=0)

    def _open(self, *, created: bool, given: int) -> None:
        self.broker, self.journal, self.housekeeping = recover(
            self.journal_disk,
            self.snapshot_disk,
            CLUSTER,
            JOURNAL,
            self.settings,
            TINY,
            self.snapshot_settings,
            created=created,
            new_id=counted_ids(given),
        )
        self._reader = RowReader(self.journal)
        self._durable_entries = self.broker.ledger.entries

    def make_room(self) -> None:
        """To be called before a command: a turn lies in one segment."""
        if not self.journal.space.fits(ROOM):
            self.settle()
            self.journal.reserve(ROOM, for_state=True)

    def settle(self) -> None:
        self.journal.commit()
        self._durable_entries = self.broker.ledger.entries

    def turn_is_empty(self) -> bool:
        """Whether everything is durable."""
        return self.broker.ledger.entries == self._durable_entries

    def restart_ids(self, given: int) -> None:
        """Goes on with identities behind `given`."""
        self.broker.ledger.new_id = counted_ids(given)

    def keep_house(self) -> None:
        """What the engine does between turns, with a snapshot when enough was written, until there is nothing
        more to do.
        """
        self.settle()
        self.housekeeping.step(self.broker, self.now_us)
        for _ in range(_STEPS_MAX):
            if not self.housekeeping.busy:
                break
            self.housekeeping.wait()
            self.housekeeping.step(self.broker, self.now_us)
        else:
            raise AssertionError(f"after {_STEPS_MAX} steps housekeeping still finds something to do")
        self.settle()

    def take_snapshot(self) -> None:
        """A snapshot now, whatever was written."""
        self.settle()
        self.housekeeping.finish(self.broker)

    def restart(self, given: int) -> None:
        """Stops as the engine does, and starts again."""
        self.take_snapshot()
        self.journal.close()
        self._open(created=True, given=given)

    def crash(self, rng: random.Random, given: int) -> None:
        """The power fails between two steps of the disk, and comes back."""
        self.journal_disk, self.snapshot_disk = self.journal_disk.crash(rng), self.snapshot_disk.crash(rng)
        self._open(created=True, given=given)

    def die(self, given: int) -> None:
        """The process is killed; what it wrote is there, synced or not."""
        self.journal_disk, self.snapshot_disk = self.journal_disk.reopen(), self.snapshot_disk.reopen()
        self._open(created=True, given=given)

    def settle_until(self, steps: int) -> bool:
        """Lets the power fail so many steps of the journal's disk from now; returns whether the turn was done
        before.
        """
        self.journal_disk.hook = crash_at(self.journal_disk.steps + steps)
        try:
            self.settle()
        except Crash:
            return False
        finally:
            self.journal_disk.hook = None
        return True

    def read(
        self, view: RowsView, columns: int = 0, batch_rows_max: int = 0, start_row: int = 0
    ) -> list[ReadRow]:
        self.settle()
        return rows_of([*self._reader.read(view, columns, batch_rows_max, start_row)], view.partition)
