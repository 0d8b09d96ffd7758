"""A disk is filled, consumed empty and filled again, while processes come and go and the clock jumps: nothing
but rows is ever refused.
"""

from __future__ import annotations

import random

from mq_wire.errors import StoreFull
from mq_wire.v1 import produce_pb2 as produce
from spark_tests.support.worlds.small_disk import SMALL, SmallDisk, check_healed, drain

_WAYS = ["acknowledge_one", "plan_few", "release", "writer"]


def full_disk(seed: int) -> None:
    """One history. Raises what is wrong."""
    rng = random.Random(seed)
    disk = SmallDisk(rng, 200 << 10)
    disk.publish()
    disk.fill()
    assert len(disk.journal._pool) >= SMALL.reserves, "rows have taken what is kept back for state"
    rows = disk.sent
    if rng.random() < 0.3:
        _start_without_a_byte(disk)
        return
    disk.seconds_pass(2)
    disk.clock.jump_wall(rng.choice([-86_400.0, 0.0, 100_000.0]))
    drain(disk, [*rng.sample(_WAYS, 2), "acknowledge_one"], rng.choice([0.0, 0.03]))
    check_healed(disk, rows)


def _start_without_a_byte(disk: SmallDisk) -> None:
    for one in disk.disks:
        one.capacity_bytes = 0
    try:
        for _ in range(10_000):
            disk.answer(produce.TakeEpochRequest())
    except StoreFull:
        pass
    for _ in range(50):
        disk.restart("kill")
