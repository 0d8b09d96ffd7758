"""A full disk is consumed empty, row by row and in every way, with restarts in between; then everything heals
by itself.
"""

from __future__ import annotations

import random

import pytest

from mq_broker.core.commands import CloseSession, HoldRun, OpenSession
from mq_wire.errors import StoreFull
from mq_wire.v1 import produce_pb2 as produce
from mq_wire.v1 import subscribe_pb2 as wire
from mq_wire.v1.admin_pb2 import DescribeDestinationRequest
from mq_wire.v1.consume_pb2 import Credit, OpenConsumer
from spark_tests.support.worlds.small_disk import SmallDisk, check_healed, drain


@pytest.mark.parametrize("restarts", [0.0, 0.03], ids=["one life", "many lives"])
@pytest.mark.parametrize(
    "ways",
    [
        ["acknowledge_one"],
        ["plan_few"],
        ["plan_few", "plan_few", "release"],
        ["acknowledge_one", "plan_few", "release", "writer"],
    ],
    ids=["acknowledgements", "plans", "releases", "everything"],
)
def test_a_full_disk_is_consumed_empty(ways: list[str], restarts: float, rng: random.Random) -> None:
    disk = SmallDisk(rng)
    disk.publish()
    disk.fill()
    rows = disk.sent
    drain(disk, ways, restarts)
    check_healed(disk, rows)


def test_what_changes_nothing_is_never_refused_and_writes_nothing(rng: random.Random) -> None:
    disk = SmallDisk(rng)
    disk.publish()
    disk.fill()
    run = disk.answer(HoldRun(0))
    for handed in range(1, 3):
        turn = disk.journal.position.turn
        for _ in range(500):
            disk.answer(DescribeDestinationRequest(name="q", create=True))
            disk.answer(HoldRun(run))
            opening = OpenConsumer(destination="q", credit=Credit(), create=True)
            disk.answer(CloseSession(disk.answer(OpenSession(opening, lambda view: None)).session))
            assert disk.answer(wire.PlanRequest(who={"destination": "q", "run": run}, min_rows=1 << 40)).idle
        assert disk.journal.position.turn == turn
        if handed == 1:  # and the same where there is no room at all
            disk.disks[0].capacity_bytes = disk.disks[1].capacity_bytes = 0
            with pytest.raises(StoreFull):
                write_for_ever(disk)


def write_for_ever(disk: SmallDisk) -> None:
    for _ in range(100_000):
        disk.answer(produce.TakeEpochRequest())


@pytest.mark.timeout(180)
@pytest.mark.parametrize("room", [True, False], ids=["full", "not a byte"])
def test_hundreds_of_starts_need_no_room(room: bool, rng: random.Random) -> None:
    disk = SmallDisk(rng)
    disk.publish()
    disk.fill()
    if not room:
        disk.disks[0].capacity_bytes = disk.disks[1].capacity_bytes = 0
        with pytest.raises(StoreFull):
            write_for_ever(disk)
    disk.restart("stop")
    for number in range(500):
        disk.restart("kill" if number % 100 else "cut")
    used = disk.journal.space.used_bytes()
    for _ in range(50):
        disk.restart("stop")
    assert disk.journal.space.used_bytes() == used


def test_starts_with_a_little_work_each_go_on_for_ever(rng: random.Random) -> None:
    disk = SmallDisk(rng)
    disk.publish()
    disk.fill()
    for number in range(600):
        disk.answer(produce.TakeEpochRequest())
        disk.restart("kill" if number % 3 else "cut")


def test_staged_sets_are_discarded_and_make_room(rng: random.Random) -> None:
    """Also where they are all there is, and by what the writer does anyway."""
    disk = SmallDisk(rng)
    disk.publish()
    sets: list[bytes] = []
    with pytest.raises(StoreFull):
        stage_for_ever(disk, sets)
    for token in sets:
        assert disk.answer(produce.DiscardStagedRequest(tokens=[token])).rows
        if rng.random() < 0.1:
            disk.restart(rng.choice(["stop", "kill", "cut"]))
        disk.answer(produce.ForgetMarkerRequest(owner="nobody", target="q"))
    check_healed(disk, 8 * len(sets))


def stage_for_ever(disk: SmallDisk, sets: list[bytes]) -> None:
    sets.extend(disk.stage(number).token for number in range(1, 10_000))


def test_a_newer_epoch_discards_though_its_rows_are_refused(rng: random.Random) -> None:
    disk = SmallDisk(rng)
    disk.publish()
    with pytest.raises(StoreFull):
        stage_for_ever(disk, [])
    assert disk.broker.state.staged
    with pytest.raises(StoreFull):
        disk.stage(10_001, epoch=disk.answer(produce.TakeEpochRequest()).epoch + 1)
    assert not disk.broker.state.staged
    disk.seconds_pass(5)
    disk.stage(10_002, epoch=100)


def test_everything_was_consumed_and_others_took_the_last_byte(rng: random.Random) -> None:
    """Empty segments give way to the snapshots that bring others back."""
    disk = SmallDisk(rng)
    disk.publish()
    disk.fill()
    rows = disk.sent
    drain(disk, ["acknowledge_one"], 0.0)
    used = disk.used
    for one in disk.disks:
        one.capacity_bytes = used
    check_healed(disk, rows)


def test_the_clock_is_set_back_a_day_while_the_disk_is_full(rng: random.Random) -> None:
    disk = SmallDisk(rng)
    disk.publish()
    disk.fill()
    rows = disk.sent
    disk.seconds_pass(3)
    disk.clock.jump_wall(-86_400.0)
    drain(disk, ["acknowledge_one", "plan_few"], 0.0)
    check_healed(disk, rows)


def test_the_clock_is_set_forward_and_open_sets_stay(rng: random.Random) -> None:
    disk = SmallDisk(rng)
    disk.publish()
    disk.stage(1)
    for _ in range(3):
        disk.clock.jump_wall(100_000.0)
        disk.seconds_pass(2)
        disk.restart("kill")
        disk.clock.jump_wall(100_000.0)
        disk.seconds_pass(2)
    assert len(disk.broker.state.staged) == 1
    disk.seconds_pass(590)
    assert not disk.broker.state.staged, "half of its time had gone when the process began"
