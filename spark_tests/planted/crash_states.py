"""The power fails at any step of either disk, in turns, snapshots and rolls: the state before the turn in
hand comes up, or after it.
"""

from __future__ import annotations

import contextlib
import random
from typing import Any

from mq_broker.core.commands import Settings
from mq_broker.engine.opening import recover
from mq_broker.journal.settings import TINY
from mq_broker.testing.memory_disk import Crash
from spark_tests.support.worlds.disks import JOURNAL, DiskWorld
from spark_tests.support.worlds.dumps import Dump, check_same, dump_broker
from spark_tests.support.worlds.lists import CLUSTER
from spark_tests.support.worlds.scenes import Scene

_SETTINGS = Settings(default_partitions=2)
#: Ways in which one crash may leave the disks, that are tried.
_OUTCOMES = 12


class CrashScene(Scene, DiskWorld):
    """Each command is a turn; `settled` is the state behind the last one that is synced."""

    def __init__(self, snapshot_bytes: int) -> None:
        DiskWorld.__init__(self, _SETTINGS, snapshot_bytes)
        self.sequences, self.delivered = {}, {}
        self.settled: Dump = dump_broker(self.broker)

    def handle(self, command: Any) -> Any:
        self.make_room()
        reply = super().handle(command)
        self.settle()
        return reply

    def settle(self) -> None:
        super().settle()
        self.settled = dump_broker(self.broker)


def crash_states(seed: int) -> None:
    """One crash, in several outcomes. Raises what is wrong."""
    rng = random.Random(seed)
    scene = CrashScene(rng.choice([512, 2048, 8192]))
    left = rng.randint(1, rng.choice([40, 120]))

    def hook(kind: str, name: str, _: int) -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            raise Crash(f"{kind} {name}")

    scene.journal_disk.hook = scene.snapshot_disk.hook = hook
    with contextlib.suppress(Crash):
        _work(scene, rng)
    allowed = [scene.settled, dump_broker(scene.broker)]
    for _ in range(_OUTCOMES):
        disks = scene.journal_disk.crash(rng), scene.snapshot_disk.crash(rng)
        broker, journal, _ = recover(*disks, CLUSTER, JOURNAL, _SETTINGS, TINY, created=True)
        journal.close()
        found = dump_broker(broker)
        if found not in allowed:
            check_same(found, allowed[0])


def _work(scene: CrashScene, rng: random.Random) -> None:
    session = scene.connect(rows=20)
    query = scene.query("night")
    for number in range(60):
        what = rng.random()
        if what < 0.5:
            scene.publish(
                *rng.choices(range(10), k=rng.choice([1, 3, 20])),
                partition=rng.randrange(2),
                size=rng.choice([0, 200]),
            )
        elif what < 0.65:
            rows = scene.received(session)
            for row in rows:
                scene.acknowledge(session, (row.partition, row.offset, row.offset + 1))
            scene.credit(session, len(rows), 1 << 20)
        elif what < 0.8:
            start = query.next
            if not query.plan(max_rows=rng.choice([1, 10])).idle:
                query.read(start, query.next)
                query.acknowledge(query.next)
        elif what < 0.9:
            scene.stage(number, rows=3, epoch=scene.run(), batch=number)
            scene.commit((number, 3), version=number)
        scene.keep_house()
