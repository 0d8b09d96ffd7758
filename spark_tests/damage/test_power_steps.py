"""The power fails at every step of the disk while a whole broker works: journal, snapshots, cleaner. What
comes up is what was settled.
"""

from __future__ import annotations

import os
import random
from copy import deepcopy

import pytest

from mq_broker.repair.inspection import Inspection
from mq_broker.testing.memory_disk import MemoryDisk
from spark_tests.damage.small import SETTINGS, DiskScene, Opened, Work
from spark_tests.support.worlds.disks import JOURNAL
from spark_tests.support.worlds.dumps import Dump, check_same, dump_broker
from spark_tests.support.worlds.lists import CLUSTER

#: How many times the work is done, with other remains of each step; 0 = once, looking at every twelfth step.
ROUNDS = int(os.environ.get("MQ_POWER_STEPS_ROUNDS", "0"))

pytestmark = [pytest.mark.damage, pytest.mark.timeout(24 * 3600 if ROUNDS else 300)]


class Watched(DiskScene):
    """A scene whose disks are looked at, as a power cut would leave them, at each of their steps."""

    def __init__(self, rng: random.Random, share: float) -> None:
        self.rng, self.share = rng, share
        self.looked = 0
        self.settled: Dump | None = None
        super().__init__(settings=SETTINGS)
        self.settled = deepcopy(dump_broker(self.broker))
        for disk in (self.journal_disk, self.snapshot_disk):
            disk.hook = self.look

    def settle(self) -> None:
        super().settle()
        self.settled = deepcopy(dump_broker(self.broker))

    def look(self, step: str, name: str, steps: int) -> None:
        if self.rng.random() < self.share:
            self.looked += 1
            self._check(self.journal_disk.crash(self.rng), self.snapshot_disk.crash(self.rng))

    def _check(self, journal: MemoryDisk, snapshots: MemoryDisk) -> None:
        found = Inspection(journal, snapshots, CLUSTER, JOURNAL).findings
        assert found == [], f"a crash is no damage: {[str(finding) for finding in found]}"
        opened = Opened((journal, snapshots))
        dump = dump_broker(opened.broker)
        if dump != dump_broker(self.broker):  # the turn in hand is there, or it is not
            assert self.settled is not None
            check_same(dump, self.settled)
        _, unreadable = opened.rows()
        assert not unreadable


def test_at_every_step(rng: random.Random) -> None:
    for _ in range(max(ROUNDS, 1)):
        scene = Watched(rng, 1.0 if ROUNDS else 0.08)
        work = Work(scene)
        work.fill()
        work.every_kind(0)
        scene.take_snapshot()
        work.fill(turns=40)
        scene.keep_house()
        scene.take_snapshot()
        work.every_kind(1)
        scene.keep_house()
        scene.take_snapshot()
        assert scene.looked > 25
