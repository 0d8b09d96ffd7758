"""Figures that are called "ever" are: they survive a snapshot, a clean stop, a kill and a power cut."""

from __future__ import annotations

import random
import re

import pytest

from mq_broker.core.commands import OpenSession, Quarantine, ReleaseView, RowsView, Settings, Tick
from mq_wire.errors import StoreFull
from mq_wire.v1.admin_pb2 import DestinationStats, StatsRequest
from mq_wire.v1.consume_pb2 import Credit, OpenConsumer
from spark_tests.support.tree import PROJECT
from spark_tests.support.worlds import commands
from spark_tests.support.worlds.disks import DiskWorld

WHO = ("a" * 32, 0)
#: What this file looks at.
EVER = {"duplicate_rows": 6, "enqueued_rows": 8, "quarantined_rows": 1}


def figures(world: DiskWorld) -> dict[str, int]:
    stats: DestinationStats = world.handle(StatsRequest(destination="q")).destination
    return {name: getattr(stats, name) for name in EVER}


def busy_world() -> DiskWorld:
    """With eight rows, six that came twice, and one whose bytes are damaged."""
    world = DiskWorld(Settings(default_partitions=2))
    views: list[RowsView] = []
    for partition, first, count in ((0, 0, 3), (1, 0, 4), (0, 0, 3), (0, 0, 3), (0, 3, 1)):
        rows = [(b"%d" % (first + at), 4) for at in range(count)]
        world.make_room()
        world.handle(commands.publish("q", partition, WHO, first, rows))
    opened = OpenConsumer(destination="q", credit=Credit(rows=8, bytes=1 << 40))
    world.handle(OpenSession(opened, views.append))
    world.settle()
    world.dispatch()
    for view in views:
        if view.partition == 0:
            world.make_room()
            world.handle(Quarantine(view, (3,)))
        world.handle(ReleaseView(view))
    return world


@pytest.mark.parametrize("end", ["clean stop", "kill", "power cut"])
@pytest.mark.parametrize("snapshot", [False, True])
def test_they_survive(end: str, snapshot: bool) -> None:
    world = busy_world()
    assert figures(world) == EVER
    world.make_room()
    world.handle(Tick())
    world.settle()
    for _ in range(3):
        if snapshot:
            world.take_snapshot()
        if end == "clean stop":
            world.restart(given=10)
        elif end == "kill":
            world.die(given=10)
        else:
            world.crash(random.Random(1), given=10)
        assert figures(world) == EVER


def test_duplicates_are_written_beside_what_is_written_anyway() -> None:
    world = DiskWorld(Settings(default_partitions=1))
    world.handle(commands.publish("q", 0, WHO, 0, [(b"0", 4)]))
    world.settle()
    entries = world.broker.ledger.entries
    for _ in range(5):
        world.handle(commands.publish("q", 0, WHO, 0, [(b"0", 4)]))
    assert world.broker.ledger.entries == entries, "a retry writes nothing"
    world.handle(commands.publish("q", 0, WHO, 1, [(b"1", 4)]))
    assert world.broker.ledger.entries == entries + 2
    world.settle()
    world.die(given=1)
    assert figures(world) == {"duplicate_rows": 5, "enqueued_rows": 2, "quarantined_rows": 0}


class NoRoom:
    """A full disk."""

    def for_state(self, header_bytes: int) -> None:
        raise StoreFull("full")

    def for_rows(self, header_bytes: int, body_bytes: int) -> None:
        raise StoreFull("full")


def test_where_the_disk_is_full_nothing_is_written_for_them() -> None:
    world = busy_world()
    world.handle(commands.publish("q", 0, WHO, 0, [(b"0", 4), (b"1", 4), (b"2", 4)]))
    entries = world.broker.ledger.entries
    room, world.broker.ledger.room = world.broker.ledger.room, NoRoom()
    world.handle(Tick())
    assert world.broker.ledger.entries == entries
    assert figures(world)["duplicate_rows"] == EVER["duplicate_rows"] + 3
    world.broker.ledger.room = room
    world.handle(Tick())
    assert world.broker.ledger.entries == entries + 1


def test_no_other_figure_is_called_so() -> None:
    text = (PROJECT / "proto/mq_wire/v1/admin.proto").read_text()
    assert set(re.findall(r"(\w+) = \d+;.*since the destination was created", text)) == set(EVER)
