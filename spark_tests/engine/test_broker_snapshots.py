"""Snapshots of a broker on a disk: without room, damaged, and with what happened since."""

from __future__ import annotations

import errno

import pytest

from mq_broker.core import snapshot
from mq_broker.core.broker import Broker
from mq_broker.core.commands import Settings
from mq_broker.journal.snapshots import SnapshotStore
from mq_broker.testing.memory_disk import fail_at
from mq_wire.errors import StorageFailed
from spark_tests.support.worlds import commands
from spark_tests.support.worlds.disks import JOURNAL, DiskWorld
from spark_tests.support.worlds.dumps import check_same, dump_broker
from spark_tests.support.worlds.lists import CLUSTER, ListSink, counted_ids

WHO = ("a" * 32, 0)


def publish(world: DiskWorld, first: int, count: int = 4, size: int = 1) -> None:
    world.make_room()
    world.handle(
        commands.publish(
            "q", 0, WHO, first, [(b"%d" % at * size, at % 10) for at in range(first, first + count)]
        )
    )
    world.settle()


def test_a_snapshot_without_room_is_taken_later_and_complete() -> None:
    world = DiskWorld(Settings(default_partitions=1))
    publish(world, 0)
    world.take_snapshot()
    publish(world, 4)
    world.snapshot_disk.hook = fail_at("write", 1, errno.ENOSPC)
    world.take_snapshot()
    world.snapshot_disk.hook = None
    publish(world, 8)
    world.take_snapshot()
    loaded = SnapshotStore(world.snapshot_disk, JOURNAL).load()
    assert loaded is not None
    assert loaded[0] == world.journal.position
    restored = Broker(CLUSTER, world.settings, ListSink(), counted_ids())
    snapshot.restore(restored.state, loaded[1])
    check_same(dump_broker(restored), dump_broker(world.broker))


def test_a_snapshot_that_cannot_be_written_for_another_reason_ends_the_broker() -> None:
    world = DiskWorld(Settings(default_partitions=1))
    publish(world, 0)
    world.snapshot_disk.hook = fail_at("sync", 1, errno.EIO)
    with pytest.raises(StorageFailed):
        world.take_snapshot()
    world.snapshot_disk.hook = None
    expected = dump_broker(world.broker)
    world.die(1)
    check_same(dump_broker(world.broker), expected)


def test_the_older_snapshot_does_where_the_newest_is_damaged() -> None:
    world = DiskWorld(Settings(default_partitions=1))
    for number in range(40):
        publish(world, 4 * number, size=50)
        if number % 10 == 9:
            world.take_snapshot()
    expected = dump_broker(world.broker)
    newest = max(name for name in world.snapshot_disk.list_names() if name.startswith("pack-"))
    world.snapshot_disk.flip(newest, 200)
    world.die(1)
    check_same(dump_broker(world.broker), expected)
    publish(world, 160)
    world.take_snapshot()
    expected = dump_broker(world.broker)
    world.die(1)
    check_same(dump_broker(world.broker), expected)


def test_a_damaged_part_that_was_to_be_copied_is_written_anew_from_the_state() -> None:
    """A pack that is mostly dead is copied. What of it is damaged must not end the broker, which has it in
    memory.
    """
    world = DiskWorld(Settings(default_partitions=1))
    for queue in ("q", "r"):
        world.make_room()
        world.handle(commands.publish(queue, 0, WHO, 0, [(b"x", 4)] * 3))
    world.take_snapshot()
    first = next(name for name in world.snapshot_disk.list_names() if name.startswith("pack-"))
    for position in range(0, world.snapshot_disk.open(first).size(), 64):
        world.snapshot_disk.flip(first, position)
    world.make_room()
    world.handle(commands.publish("q", 0, WHO, 3, [(b"x", 4)] * 3))
    world.take_snapshot()
    publish(world, 6)
    world.take_snapshot()
    expected = dump_broker(world.broker)
    world.die(2)
    check_same(dump_broker(world.broker), expected)
