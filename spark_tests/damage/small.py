"""A small data directory made by real work, as files in memory that tests damage; and what it held."""

from __future__ import annotations

import functools
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple

from mq_broker.core.broker import Broker
from mq_broker.core.commands import ReleaseView, Settings
from mq_broker.core.handlers.views import make_view
from mq_broker.core.model.destination import Destination
from mq_broker.core.model.frozen import waiting
from mq_broker.core.model.selection import Selection
from mq_broker.engine.opening import recover
from mq_broker.engine.rows import RowReader
from mq_broker.journal.journal import Journal
from mq_broker.journal.settings import TINY
from mq_broker.testing.memory_disk import MemoryDisk
from mq_wire.errors import DataLost, JournalDamaged
from mq_wire.v1.produce_pb2 import OpenProducerRequest
from spark_tests.support.worlds import commands
from spark_tests.support.worlds.disks import JOURNAL, DiskWorld
from spark_tests.support.worlds.dumps import Dump, dump_broker
from spark_tests.support.worlds.lists import CLUSTER, counted_ids, rows_of
from spark_tests.support.worlds.scenes import Scene

Files = dict[str, bytes]
#: (queue, partition, offset).
Row = tuple[str, int, int]


class DiskScene(Scene, DiskWorld):
    """A scene on disks in memory: each command is a turn of its own."""

    def handle(self, command: Any) -> Any:
        self.make_room()
        reply = super().handle(command)
        self.settle()
        return reply


class Directory(NamedTuple):
    """The files of a journal and of its snapshots."""

    journal: Files
    snapshots: Files

    def disks(self) -> tuple[MemoryDisk, MemoryDisk]:
        return disk_of(self.journal), disk_of(self.snapshots)


@dataclass(frozen=True)
class Truth:
    """What a directory holds: the durable state, every row that can still be read, and every row that ever
    was.
    """

    directory: Directory
    turn: int
    dump: Dump
    rows: dict[Row, bytes]
    ever: dict[Row, bytes]


def files_of(disk: MemoryDisk) -> Files:
    return {name: bytes(disk.open(name).map()) for name in disk.list_names()}


def disk_of(files: Files) -> MemoryDisk:
    disk = MemoryDisk()
    for name, content in files.items():
        disk.create(name).write_at([content], 0)
    for name in files:
        disk.open(name).sync()
    disk.sync_directory()
    return disk


class Opened:
    """A broker over a directory, read only."""

    def __init__(self, directory: Directory | tuple[MemoryDisk, MemoryDisk]) -> None:
        disks = directory.disks() if isinstance(directory, Directory) else directory
        self.disks = disks
        self.broker, self.journal, self.housekeeping = recover(
            *disks, CLUSTER, JOURNAL, SETTINGS, TINY, created=True, new_id=counted_ids(1000)
        )

    def rows(self) -> tuple[dict[Row, bytes], set[Row]]:
        """Returns the value of every row that is not acknowledged, and which of them do not read."""
        return live_rows(self.broker, self.journal)


def live_rows(broker: Broker, journal: Journal) -> tuple[dict[Row, bytes], set[Row]]:
    reader = RowReader(journal)
    values: dict[Row, bytes] = {}
    unreadable: set[Row] = set()
    for destination in broker.state.by_name.values():
        for number, partition in enumerate(destination.partitions):
            selection = waiting(destination, number)
            for first, stretch in selection.stretches(partition.lost_of(selection)):
                _read_into(values, unreadable, broker, reader, destination, number, stretch)
                assert first >= 0
    return values, unreadable


def _read_into(
    values: dict[Row, bytes],
    unreadable: set[Row],
    broker: Broker,
    reader: RowReader,
    destination: Destination,
    number: int,
    rows: Selection,
) -> None:
    """Reads rows; where that fails, one by one, so that only those count as unreadable that are."""
    if not rows.rows:
        return
    view = make_view(broker.state, destination, number, rows)
    try:
        read = rows_of([*reader.read(view)], number)
    except (JournalDamaged, DataLost):
        if rows.rows == 1:
            unreadable.add((destination.name, number, rows.span()[0]))
            return
        half = rows.rows // 2
        for part in (rows.slice(0, half), rows.slice(half, rows.rows)):
            _read_into(values, unreadable, broker, reader, destination, number, part)
    else:
        assert [row.offset for row in read] == [offset for _, lane in rows.lanes for offset in lane]
        values.update({(destination.name, number, row.offset): row.value for row in read})
    finally:
        broker.handle(ReleaseView(view), 0)


SETTINGS = Settings(default_partitions=2)


@functools.cache
def small() -> Truth:
    """Several segments, two snapshots, one cleaned segment; rows of every kind behind the newest snapshot
    too.
    """
    return _work()[-1]


@functools.cache
def moments() -> list[Truth]:
    """The directory after each of the last turns, oldest first; the last one is `small`."""
    return _work()


@functools.cache
def _work() -> list[Truth]:
    scene = DiskScene(settings=SETTINGS)
    work = Work(scene)
    work.fill()
    work.every_kind(0)
    scene.take_snapshot()
    work.fill()
    scene.keep_house()
    scene.take_snapshot()
    work.fill(turns=6)
    scene.take_snapshot()
    scene.housekeeping.reclaim(scene.broker)
    scene.keep_house()
    scene.take_snapshot()
    work.moments = []
    work.note()
    work.restart()
    work.note()
    work.every_kind(1)
    work.restart()
    work.note()
    work.turn_of_many()
    return work.moments


class Work:
    """Commands of all kinds, each with the truth behind it."""

    def __init__(self, scene: DiskScene) -> None:
        self.scene = scene
        self.moments: list[Truth] = []
        self.ever: dict[Row, bytes] = {}
        self.query = scene.query("night")
        self.session = scene.connect(rows=10)
        self.restarts = 0

    def fill(self, turns: int = 20) -> None:
        """Traffic that is acknowledged but for every seventh batch, so that segments are mostly dead."""
        scene = self.scene
        for turn in range(turns):
            scene.publish(4, 4, 4, partition=0, size=150)
            scene.credit(self.session, 3, 1 << 20)
            for row in scene.received(self.session):
                if turn % 7:
                    scene.acknowledge(self.session, (row.partition, row.offset, row.offset + 1))
            self.note()

    def every_kind(self, batch: int) -> None:
        """Leaves rows of every kind behind: ready, of mixed priorities, planned, read, staged, committed."""
        scene = self.scene
        scene.publish(4, 9, 0, 9, 4, partition=1, size=60)
        self.note()
        self.query.run = scene.run()
        first = self.query.next
        self.query.plan(max_rows=4)
        self.note()
        self.query.read(first, self.query.next, ("q1", batch))
        self.note()
        scene.stage(10 + batch, rows=3, batch=batch, epoch=scene.broker.state.epoch)
        self.note()
        scene.stage(10 + batch, first=3, rows=2, batch=batch, epoch=scene.broker.state.epoch)
        self.note()
        scene.commit((10 + batch, 5), version=batch)
        self.note()
        scene.stage(20 + batch, rows=2, query="open", epoch=scene.broker.state.epoch, partition=1)
        self.note()
        producer = scene.handle(OpenProducerRequest(name="named"))
        scene.handle(commands.publish("r", 0, (producer.producer_id, producer.epoch), 0, [(b"named", 7)] * 2))
        self.note()
        if batch:
            self.query.acknowledge(self.query.next)
            self.note()
            self.query.plan(max_rows=2)
            self.note()
            scene.publish(4, 4, partition=1, size=40)
            self.note()

    def restart(self) -> None:
        """The process is killed and comes back: a new generation of the journal."""
        self.restarts += 1
        self.scene.die(500 * self.restarts)

    def turn_of_many(self) -> None:
        """One turn with entries of several commands."""
        scene = self.scene
        scene.make_room()
        producer, epoch = "b" * 32, 0
        for partition, rows in (
            (0, [(b"many", 4)] * 3),
            (1, [(b"many", 9), (b"more", 1)]),
            (0, [(b"most", 2)]),
        ):
            first = 3 if rows[0][0] == b"most" else 0
            scene.broker.handle(
                commands.publish("q", partition, (producer, epoch), first, rows), scene.now_us
            )
        self.note()
        scene.publish(4, partition=1)
        self.note()

    def note(self) -> None:
        """Remembers what the directory holds now, as a killed process leaves it."""
        scene = self.scene
        scene.settle()
        rows, unreadable = live_rows(scene.broker, scene.journal)
        assert not unreadable
        self.ever |= rows
        directory = Directory(files_of(scene.journal_disk), files_of(scene.snapshot_disk))
        self.moments.append(
            Truth(
                directory,
                scene.journal.position.turn,
                deepcopy(dump_broker(scene.broker)),
                rows,
                dict(self.ever),
            )
        )
