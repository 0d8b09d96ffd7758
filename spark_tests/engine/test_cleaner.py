"""Space comes back although single old messages stay, and those can still be read, also after a restart."""

from __future__ import annotations

import random
import zlib
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from mq_broker.core import retention
from mq_broker.core.broker import Broker
from mq_broker.core.commands import (
    Acknowledge,
    HoldRun,
    OpenSession,
    Publish,
    ReleaseView,
    RowsView,
    Settings,
)
from mq_broker.core.model.facets import Facets
from mq_broker.core.model.state import State
from mq_broker.core.retention import live_segments
from mq_broker.engine.housekeeping import Housekeeping, SnapshotSettings
from mq_broker.engine.opening import recover
from mq_broker.engine.rows import RowReader
from mq_broker.journal.journal import Journal
from mq_broker.journal.settings import JournalSettings
from mq_broker.testing.memory_disk import MemoryDisk
from mq_wire import envelope
from mq_wire.v1 import subscribe_pb2 as wire
from mq_wire.v1.admin_pb2 import DeleteDestinationRequest
from mq_wire.v1.consume_pb2 import Credit, OpenConsumer
from mq_wire.v1.produce_pb2 import PublishHeader
from spark_tests.support.worlds import commands

SEGMENT = JournalSettings(segment_bytes=256 << 10, pool_segments=2, fill_in_background=False)
ROWS = 50
SNAPSHOT_BYTES = 200 << 10


class Instance:
    """Core, journal and housekeeping over two disks, driven by hand."""

    def __init__(self, disks: tuple[MemoryDisk, MemoryDisk], *, created: bool) -> None:
        self.broker, self.journal, self.housekeeping = self._recover(disks, created=created)
        self.now_us = 1_000_000
        self.views: list[RowsView] = []
        self.others = 0

    @staticmethod
    def _recover(
        disks: tuple[MemoryDisk, MemoryDisk], *, created: bool
    ) -> tuple[Broker, Journal, Housekeeping]:
        settings = Settings(default_partitions=1)
        snapshots = SnapshotSettings(bytes=SNAPSHOT_BYTES)
        return recover(*disks, b"c" * 16, UUID(int=7), settings, SEGMENT, snapshots, created=created)

    def turn(self, *commands: object) -> list[object]:
        replies = [self.broker.handle(command, self.now_us) for command in commands]
        self.journal.commit()
        while self.broker.dispatch(self.now_us):
            pass
        self.now_us += 1000
        return replies

    def publish(self, number: int, queue: str = "q", rows: int = ROWS, value_bytes: int = 200) -> None:
        values = [f"{number}-{row}".encode().ljust(value_bytes) for row in range(rows)]
        batch = pa.record_batch([pa.array(values, pa.binary())], schema=envelope.schema_of(envelope.VALUE))
        records = envelope.encode(batch)
        header = PublishHeader(
            destination=queue,
            producer_id="p",
            first_sequence=number * rows,
            rows=rows,
            columns=envelope.VALUE,
        )
        if not self.journal.space.fits(records.size + 4096):
            self.journal.commit()
        self.journal.reserve(records.size + 4096)
        self.turn(Publish(header, records, zlib.crc32(records), Facets(4)))

    def housekeep(self) -> None:
        """Steps until no snapshot is on its way and the cleaner has nothing more to do."""
        self.housekeeping.step(self.broker, self.now_us)
        for _ in range(1000):
            if not self.housekeeping.busy:
                return
            self.housekeeping.wait()
            self.housekeeping.step(self.broker, self.now_us)
        raise AssertionError("housekeeping still finds something to do")

    def values(self) -> dict[int, bytes]:
        """Returns value by offset of everything that the views so far delivered."""
        rows: dict[int, bytes] = {}
        for view in self.views:
            for header, records in RowReader(self.journal).read(view):
                offsets = (
                    np.frombuffer(header.offsets, "<i8")
                    if header.offsets
                    else header.base_offset + np.arange(header.rows)
                )
                column = envelope.decode(records, header.columns, header.rows).column("value").to_pylist()
                rows.update(zip(offsets.tolist(), column, strict=True))
        return rows

    def open(self, rows: int) -> int:
        request = OpenConsumer(destination="q", create=True, credit=Credit(rows=rows, bytes=1 << 40))
        (opened,) = self.turn(OpenSession(request, self.views.append))
        return int(opened.session)  # type: ignore[attr-defined]


def test_survivors_move_and_segments_come_back() -> None:
    rng = random.Random(1)
    disks = MemoryDisk(rng=rng), MemoryDisk(rng=rng)
    instance = Instance(disks, created=False)
    session = instance.open(rows=1 << 40)
    kept = [0, 7, ROWS * 3 + 1]
    for number in range(200):
        instance.publish(number)
        offsets = [o for o in range(number * ROWS, (number + 1) * ROWS) if o not in kept]
        array = np.array(offsets)
        instance.turn(Acknowledge(session, [(0, array, array + 1)]))
        instance.turn(*map(ReleaseView, instance.views))
        instance.views.clear()
        instance.housekeep()
    assert 6 * SEGMENT.segment_bytes < 200 * ROWS * 200, "the test must write many segments"
    assert instance.journal.space.used_bytes() <= 6 * SEGMENT.segment_bytes
    assert min(live_segments(instance.broker.state)) > 2, "the survivors must have left the first segments"

    instance.journal.close()
    again = Instance((disks[0].reopen(), disks[1].reopen()), created=True)
    again.open(rows=1000)
    assert again.values() == {o: f"{o // ROWS}-{o % ROWS}".encode().ljust(200) for o in kept}


def test_damaged_survivors_stay_behind_and_do_not_end_the_broker() -> None:
    disks = MemoryDisk(), MemoryDisk()
    instance = Instance(disks, created=False)
    session = instance.open(rows=1 << 40)
    kept = [0, ROWS + 7, 2 * ROWS + 1]
    for number in range(60):
        instance.publish(number)
        array = np.array([o for o in range(number * ROWS, (number + 1) * ROWS) if o not in kept])
        instance.turn(Acknowledge(session, [(0, array, array + 1)]))
        instance.turn(*map(ReleaseView, instance.views))
        instance.views.clear()
        if number == 2:
            index = instance.broker.state.by_name["q"].partitions[0].log.index()
            disks[0].flip("segment-0000000001.mqj", int(index.frames["position"][1]) + 5)
        instance.housekeep()
    queue = instance.broker.state.by_name["q"]
    assert list(queue.partitions[0].quarantined) == [ROWS + 7], (
        "the only row of its frame that somebody could still get"
    )
    assert int(queue.partitions[0].log.index().frames["segment"].min()) > 1, (
        "the others have left the first segment"
    )

    instance.journal.close()
    again = Instance((disks[0].reopen(), disks[1].reopen()), created=True)
    again.open(rows=1000)
    assert again.values() == {o: f"{o // ROWS}-{o % ROWS}".encode().ljust(200) for o in (0, 2 * ROWS + 1)}


def test_what_is_left_of_small_frames_is_copied_once() -> None:
    """Copies of single rows are mostly what surrounds them: taken for mostly dead, they would be copied for
    ever.
    """
    instance = Instance((MemoryDisk(), MemoryDisk()), created=False)
    session = instance.open(rows=1 << 40)
    for number in range(4000):
        instance.publish(number, rows=8, value_bytes=1)
        instance.turn(*map(ReleaseView, instance.views))
        instance.views.clear()
    offsets = np.array([offset for offset in range(32_000) if offset % 32])
    instance.turn(Acknowledge(session, [(0, offsets, offsets + 1)]))
    history = []
    for _ in range(12):
        instance.publish(instance.others, "other", rows=1, value_bytes=1)
        instance.others += 1
        instance.housekeeping.finish(instance.broker)
        instance.housekeep()
        history.append(segments_of_q(instance))
    assert history[0] != history[-1], "mostly dead segments are copied"
    assert history[6] == history[-1]


def segments_of_q(instance: Instance) -> set[int]:
    """Where the rows of the queue lie."""
    index = instance.broker.state.by_name["q"].partitions[0].log.index()
    return set(index.frames["segment"].tolist())


class Looks(list[int]):
    """Which segments the cleaner has looked at since it was last asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        remains = retention.remains

        def look(state: State, segment: int) -> tuple[int, int]:
            self.append(segment)
            return remains(state, segment)

        monkeypatch.setattr(retention, "remains", look)

    def taken(self) -> set[int]:
        found = set(self)
        self.clear()
        return found


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(monkeypatch)


def filled(batches: int = 120) -> Instance:
    """A broker with many segments of waiting rows, all looked at and found full."""
    instance = Instance((MemoryDisk(), MemoryDisk()), created=False)
    for number in range(batches):
        instance.publish(number)
        instance.housekeep()
    return instance


def snapshots(instance: Instance) -> None:
    """Time passes until what has happened is in two snapshots."""
    for _ in range(60):
        instance.publish(instance.others, "other")
        instance.others += 1
        instance.housekeep()


def test_segments_of_waiting_rows_are_looked_at_once_however_many_there_are(looks: Looks) -> None:
    instance = filled(batches=60)
    first = looks.taken()
    assert first
    for number in range(60, 200):
        instance.publish(number)
        instance.housekeep()
    assert looks.taken().isdisjoint(sorted(first)[:-2]), "nothing has changed in them since"


def test_segments_are_looked_at_again_when_rows_in_them_are_acknowledged(looks: Looks) -> None:
    instance = filled()
    segment = min(looks.taken())
    session = instance.open(rows=20 * ROWS)
    instance.turn(Acknowledge(session, [(0, np.array([1]), np.array([20 * ROWS]))]))
    instance.turn(*map(ReleaseView, instance.views))
    snapshots(instance)
    assert segment in looks.taken()
    assert segment not in live_segments(instance.broker.state), "the one row that was left has moved"


class Query:
    """A durable consumer of "q", beside a session that holds one row of it."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        instance.open(rows=1)
        instance.turn(*map(ReleaseView, instance.views))
        (run,) = instance.turn(HoldRun(0))
        assert isinstance(run, int)
        self._who, self._start, self._run = commands.who("q", b"", "", b"", run), {0: 0}, run

    def take(self, rows: int) -> None:
        """Plans rows, and acknowledges them much later."""
        request = wire.PlanRequest(
            who=self._who, start=commands.positions(self._start), create=True, max_rows=rows
        )
        (plan,) = self._instance.turn(request)
        assert isinstance(plan, wire.PlanResponse)
        self._who = commands.who("q", plan.destination_id, "", plan.incarnation, self._run)
        snapshots(self._instance)
        self._instance.turn(wire.AcknowledgeRangeRequest(who=self._who, end=plan.end))
        self._start = dict(plan.end.next)

    def end(self) -> None:
        self._instance.turn(
            wire.ReleaseConsumerRequest(destination="q", consumer=self._who.incarnation.hex())
        )


def test_segments_are_looked_at_again_when_a_query_lets_go_of_rows_in_them(looks: Looks) -> None:
    """The last range that was acknowledged is still kept: only when the next one is do its rows go."""
    instance = filled()
    segment = min(looks.taken())
    query = Query(instance)
    for rows in (20 * ROWS, 1):
        query.take(rows)
        assert segment in live_segments(instance.broker.state)
    snapshots(instance)
    assert segment not in live_segments(instance.broker.state), "the row in a session's hands has moved"


def test_segments_are_looked_at_again_when_the_consumer_of_their_rows_is_released(looks: Looks) -> None:
    """It still kept the last range that it had acknowledged."""
    instance = filled()
    segment = min(looks.taken())
    query = Query(instance)
    query.take(20 * ROWS)
    snapshots(instance)
    assert segment in live_segments(instance.broker.state)
    query.end()
    snapshots(instance)
    assert segment not in live_segments(instance.broker.state)


def test_segments_are_looked_at_again_when_a_destination_is_deleted(looks: Looks) -> None:
    instance = Instance((MemoryDisk(), MemoryDisk()), created=False)
    instance.publish(0, "kept")
    for number in range(120):
        instance.publish(number)
        instance.housekeep()
    segment = min(looks.taken())
    instance.turn(DeleteDestinationRequest(name="q"))
    snapshots(instance)
    assert segment not in live_segments(instance.broker.state), "what was left of it has moved"
