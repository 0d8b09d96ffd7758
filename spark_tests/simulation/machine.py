"""One computer: two disks, two clocks, and a broker's process that comes and goes."""

from __future__ import annotations

import errno
import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from mq_broker.core.broker import Broker
from mq_broker.core.commands import Settings
from mq_broker.engine.engine import Engine
from mq_broker.engine.housekeeping import SnapshotSettings
from mq_broker.engine.opening import recover
from mq_broker.journal.journal import Journal
from mq_broker.journal.settings import JournalSettings
from mq_broker.testing.memory_disk import Crash, MemoryDisk
from mq_wire.errors import StorageFailed, StoreFull
from spark_tests.simulation.aside import Aside
from spark_tests.support.clock import FakeClock
from spark_tests.support.worlds.dumps import Dump, dump_broker

CLUSTER: Final = b"\xcc" * 16
JOURNAL: Final = UUID("aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee")


#: How often the snapshot on its way lets others come between two of its steps.
_PAUSES: Final = 0.6

#: What it means that a file gets another name or none: (step, kind of file, whether it is unfinished).
_MOVES: Final = {
    ("rename", "pool", False): "segments rolled",
    ("rename", "segment", False): "segments recycled",
    ("remove", "segment", False): "segments removed",
    ("rename", "manifest", True): "snapshots complete",
    ("remove", "manifest", False): "snapshots forgotten",
    ("remove", "manifest", True): "unfinished snapshots removed",
}


@dataclass(frozen=True)
class Sizes:
    """How small everything is, so that it happens often."""

    core: Settings
    journal: JournalSettings
    snapshots: SnapshotSettings


class Machine:
    """Runs a broker's process, and lets everything go wrong that can go wrong with a machine.

    Attributes:
        disks: of the journal and of the snapshots.
        engine: None while no process runs.
        broker: its core, for those who look.
        counts: what has happened, by name.
        on_death: told when the process has ended, however that came.
    """

    def __init__(self, rng: random.Random, sizes: Sizes, counts: Counter[str]) -> None:
        self._rng, self._sizes, self.counts = rng, sizes, counts
        self.clock = FakeClock()
        sector_bytes = sizes.journal.sector_bytes or 512
        self.disks = (
            MemoryDisk(sector_bytes, rng=random.Random(rng.random())),
            MemoryDisk(sector_bytes, rng=random.Random(rng.random())),
        )
        self.engine: Engine | None = None
        self.broker: Broker | None = None
        self.journal: Journal | None = None
        self.on_death: Callable[[], None] = lambda: None
        self._housekeeping: Any = None
        self._created = False
        self._aside: Aside | None = None
        self._dead = False
        self._cut = False  # whether death is that of the whole machine
        self._steps_left = -1  # of the disk, until death
        self._failing: tuple[str, int] | None = None  # kind of step, and how many of them go well
        self._has_failed = False  # so the process will notice
        self._rotten = ""  # the last manifest that was damaged
        self._ids = 0
        self._watch_disks()

    # -- the process ---------------------------------------------------------------------------------------

    def start(self) -> bool:
        """Starts a process on what the disks hold; returns whether it serves."""
        assert self.engine is None
        self._dead = False
        try:
            self.broker, self.journal, self._housekeeping = self._recover(*self.disks)
        except Crash:
            self.counts["deaths in recovery"] += 1
            self._die()
            return False
        except (StoreFull, StorageFailed) as error:
            self._expect(error)
            self._die()
            return False
        self._created = True
        self.engine = Engine(
            self.broker, self.journal, self._housekeeping, self.clock.wall_us, monotonic=self._monotonic
        )
        self.counts["starts"] += 1
        return True

    def _recover(self, journal_disk: MemoryDisk, snapshot_disk: MemoryDisk) -> Any:
        return recover(
            journal_disk,
            snapshot_disk,
            CLUSTER,
            JOURNAL,
            self._sizes.core,
            self._sizes.journal,
            self._sizes.snapshots,
            created=self._created,
            new_id=self._new_id,
            aside=self._begin_aside,
        )

    def turn(self) -> None:
        """One turn of the engine. To be called by way of `does`."""
        assert self.engine is not None
        cleaner = self._housekeeping._cleaner
        was_moving = cleaner.is_moving
        self.engine.turn()
        if cleaner.is_moving and not was_moving:
            self.counts["segments cleaned"] += 1

    def stop(self) -> None:
        """Stops the process in order."""
        assert self.engine is not None
        self.does(self.engine.stop)
        if self.engine is not None:
            self.counts["clean stops"] += 1
            self._leave()

    def kill(self) -> None:
        """SIGKILL: what was written stays as it is, in the cache."""
        self.counts["kills"] += 1
        self._cut = False
        self._die()

    def cut(self) -> None:
        """The power fails: what was not synced may be lost, and torn."""
        self.counts["power cuts"] += 1
        self._cut = True
        self._die()

    def does(self, work: Callable[[], Any]) -> Any:
        """Lets the process do something; returns None where it died of it.

        Raises:
            Exception: what no fault accounts for.
        """
        try:
            result = work()
        except Crash:
            self._die()
            return None
        except StorageFailed as error:
            self._expect(error)
            self._die()
            return None
        if self._dead:  # on the thread aside
            self._die()
            return None
        return result

    def advance_snapshot(self) -> None:
        """Lets the snapshot on its way get to its next step of the disk."""
        aside = self._aside
        if aside is not None and self.writes_snapshot:
            self.does(aside.advance)

    @property
    def writes_snapshot(self) -> bool:
        return self._aside is not None and not self._aside.done

    # -- faults --------------------------------------------------------------------------------------------

    def die_after(self, steps: int, *, cut: bool) -> None:
        """The process, or the power, ends in the middle of a step of the disk, so many from now."""
        self._steps_left, self._cut = steps, cut

    def fail_after(self, kind: str, count: int, *, cut: bool) -> None:
        """After `count` steps of one kind (such as "sync") the next fails with EIO. What the process dies of
        then may be a power cut.
        """
        self._failing, self._cut = (kind, count), cut

    def fill(self, left: int) -> None:
        """No more than so many bytes fit on each disk."""
        self.counts["disks filled"] += 1
        for disk in self.disks:
            disk.capacity_bytes = disk.used_bytes() + left

    def rot_newest_snapshot(self) -> bool:
        """While no process runs, one bit of the newest snapshot turns. Says whether there was an older one,
        which now has to do.

        One of two may rot, then the next of two that were written since.
        """
        disk, whole = self.disks[1], self.whole_snapshots
        if self.engine is not None or len(whole) < 2 or whole[-1] < self._rotten:
            return False
        self._rotten = whole[-1]
        pack = whole[-1].replace("manifest-", "pack-").replace(".mqm", ".mqk")
        victim = self._rng.choice([name for name in (whole[-1], pack) if name in disk.list_names()])
        disk.flip(victim, self._rng.randrange(disk.open(victim).size()), 1 << self._rng.randrange(8))
        self.counts["snapshots rotten"] += 1
        return True

    @property
    def whole_snapshots(self) -> list[str]:
        """Manifests of the snapshots that did not rot, oldest first."""
        names = self.disks[1].list_names()
        return [
            name
            for name in names
            if name.startswith("manifest-") and name.endswith(".mqm") and name != self._rotten
        ]

    @property
    def is_full(self) -> bool:
        return self.disks[0].capacity_bytes is not None

    def heal(self) -> None:
        """Nothing more goes wrong; the disks have room."""
        self._steps_left, self._failing = -1, None
        for disk in self.disks:
            disk.capacity_bytes = None

    @property
    def is_made(self) -> bool:
        """Whether there is a journal."""
        return self._created

    def dump_of_copy(self) -> Dump:
        """Returns the state that another recovery of the same disks comes to. The disks are not changed."""
        copies = [disk.copy() for disk in self.disks]
        for copy in copies:
            copy.capacity_bytes = None
        broker, journal, _ = self._recover(*copies)
        journal.close()
        return dump_broker(broker)

    # -- inside --------------------------------------------------------------------------------------------

    def _die(self) -> None:
        self._dead = True
        if self._aside is not None:
            self._aside.finish()
        self._steps_left, self._failing, self._has_failed = -1, None, False
        if self._cut:
            self.disks = self.disks[0].crash(self._rng), self.disks[1].crash(self._rng)
        else:
            self.disks = self.disks[0].reopen(), self.disks[1].reopen()
        self._watch_disks()
        self._leave()

    def _leave(self) -> None:
        self.engine = self.broker = self.journal = self._aside = None
        self.on_death()

    def _watch_disks(self) -> None:
        for disk in self.disks:
            disk.hook = self._on_step

    def _on_step(self, kind: str, name: str, _: int) -> None:
        if self._aside is not None and self._rng.random() < _PAUSES:
            self._aside.pause()
        if self._dead:
            raise Crash(f"{kind} {name}")
        if self._steps_left >= 0:
            self._steps_left -= 1
            if self._steps_left < 0:
                self._dead = True
                self.counts[f"{'power cuts' if self._cut else 'kills'} in a step of the disk"] += 1
                raise Crash(f"{kind} {name}")
        if self._failing is not None and self._failing[0] == kind:
            left = self._failing[1]
            self._failing = (kind, left - 1) if left else None
            if not left:
                self._has_failed = True
                self.counts[f"failed: {kind}"] += 1
                raise OSError(errno.EIO, os.strerror(errno.EIO), name)
        self.counts[kind] += 1
        if kind in ("rename", "remove"):
            self.counts[
                _MOVES.get(
                    (kind, name[: name.find("-")], name.endswith(".new")), "other renames and removals"
                )
            ] += 1

    def _expect(self, error: Exception) -> None:
        """Raises what no fault accounts for."""
        if not (self._has_failed or (isinstance(error, StoreFull) and self.is_full)):
            raise error
        self.counts["storage failures"] += 1

    def _begin_aside(self, work: Callable[[], None]) -> Callable[[], None]:
        self._aside = Aside(work)
        self.counts["snapshots begun"] += 1
        return self._aside.finish

    def _monotonic(self) -> float:
        return self.clock.monotonic_ns() / 1e9

    def _new_id(self) -> bytes:
        self._ids += 1
        return self._ids.to_bytes(16, "big")
