"""Publishes that are refused for want of room: what is consumed makes room at once, not when a snapshot
happens to be due.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from mq_broker.core.commands import Acknowledge, OpenSession, Publish, ReleaseView, RowsView, Settings, Tick
from mq_broker.core.model.facets import Facets
from mq_broker.core.model.session import Session
from mq_broker.engine.engine import Engine
from mq_broker.engine.mover import Mover
from mq_broker.engine.opening import recover
from mq_broker.journal.settings import JournalSettings
from mq_broker.testing.memory_disk import MemoryDisk
from mq_wire import envelope
from mq_wire.errors import StoreFull
from mq_wire.v1.consume_pb2 import Credit, OpenConsumer
from mq_wire.v1.produce_pb2 import PublishHeader
from spark_tests.support.clock import FakeClock

SEGMENT = JournalSettings(segment_bytes=8 << 20, pool_segments=2, fill_in_background=False)
ROWS = 1000


def at_once(work: Callable[[], None]) -> Callable[[], None]:
    work()
    return lambda: None


class SmallBroker:
    """An engine with default snapshot settings on a disk with room for six segments; snapshots lie on a disk
    of their own.
    """

    def __init__(self) -> None:
        self.disks, self.clock = (
            (MemoryDisk(capacity_bytes=6 * SEGMENT.segment_bytes), MemoryDisk()),
            FakeClock(),
        )
        settings = Settings(default_partitions=1)
        broker, self.journal, housekeeping = recover(
            *self.disks, b"c" * 16, UUID(int=7), settings, SEGMENT, created=False, aside=at_once
        )
        self.engine = Engine(
            broker, self.journal, housekeeping, self.clock.wall_us, monotonic=self.clock.monotonic_s
        )
        self.views: list[RowsView] = []
        self.sent = 0
        opening = OpenConsumer(destination="q", credit=Credit(rows=1 << 30, bytes=1 << 40), create=True)
        self.session = self.engine.answer(OpenSession(opening, self.views.append)).session

    def publish(self, rows: int = ROWS, producer: str = "p") -> None:
        values = [f"{self.sent}-{row}".encode().ljust(500) for row in range(rows)]
        records = envelope.encode(
            pa.record_batch([pa.array(values, pa.binary())], schema=envelope.schema_of(envelope.VALUE))
        )
        header = PublishHeader(
            destination="q",
            producer_id=producer,
            first_sequence=self.sent * ROWS if producer == "p" else 0,
            rows=rows,
            columns=envelope.VALUE,
        )
        self.engine.answer(Publish(header, records, zlib.crc32(records), Facets(4)))
        self.sent += producer == "p"

    def publish_until_refused(self) -> None:
        with pytest.raises(StoreFull, match="consume and acknowledge"):
            self._publish_for_ever()

    def _publish_for_ever(self) -> None:
        for _ in range(1000):
            self.publish()

    def acknowledge(self, first: int, last: int) -> None:
        while self.views:
            self.engine.answer(ReleaseView(self.views.pop()))
        self.engine.answer(
            Acknowledge(self.session, [(0, np.array([first], np.int64), np.array([last], np.int64))])
        )

    def seconds_pass(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.advance(1)
            self.engine.submit(Tick(), lambda reply: None)
            for _ in range(5):
                self.engine.turn()


def test_what_is_consumed_makes_room() -> None:
    small = SmallBroker()
    small.publish_until_refused()
    small.acknowledge(0, small.sent * ROWS)
    small.seconds_pass(5)
    small.publish()
    assert len(small.journal.space.segments()) < 4


def test_what_is_consumed_later_makes_room() -> None:
    """The snapshots that were taken when nothing could be given back do not stand in the way."""
    small = SmallBroker()
    small.publish_until_refused()
    small.seconds_pass(5)
    with pytest.raises(StoreFull):
        small.publish()
    small.acknowledge(0, small.sent * ROWS)
    small.seconds_pass(5)
    small.publish()


def test_a_broker_with_room_takes_no_snapshots_for_it() -> None:
    small = SmallBroker()
    for _ in range(20):
        small.publish()
    small.seconds_pass(10)
    assert small.disks[1].list_names() == []


def test_survivors_without_room_to_go_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cleaner that finds no room must not end the broker."""
    small = SmallBroker()
    small.publish_until_refused()
    small.disks[0].capacity_bytes = 0
    # One row stays in each frame, so that nothing is free without being moved.
    for frame in range(small.sent):
        small.acknowledge(frame * ROWS + 1, (frame + 1) * ROWS)
    refused = []

    def refuse(mover: Mover, size_bytes: int) -> None:
        refused.append(size_bytes)
        raise StoreFull("no room")

    with monkeypatch.context() as patch:
        patch.setattr(Mover, "_make_room", refuse)
        small.seconds_pass(5)
    assert refused
    assert small.engine.failed is None
    small.seconds_pass(10)
    small.publish()


def test_a_disk_is_full_from_the_first_refusal_until_nothing_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Small messages fit where large ones do not: a line for each change would be many a second."""
    caplog.set_level(logging.INFO, "mq_broker")
    small = SmallBroker()

    def said() -> list[str]:
        return [event for record in caplog.records if (event := vars(record)["event"]).startswith("disk_")]

    small.publish_until_refused()
    for number in range(20):
        small.publish(1, f"other {number}")
        small.clock.advance(0.4)
        with pytest.raises(StoreFull):
            small.publish()
    assert said() == ["disk_full"]
    small.publish(1, "last")
    small.seconds_pass(4)
    assert said() == ["disk_full"]
    small.seconds_pass(2)
    assert said() == ["disk_full", "disk_has_room"]
    line = next(record for record in caplog.records if vars(record)["event"] == "disk_has_room")
    assert vars(line)["fields"]["free_bytes"] == small.disks[0].free_bytes()


def test_a_full_disk_names_a_consumer_that_holds_its_rows() -> None:
    small = SmallBroker()
    with pytest.raises(StoreFull) as refused:
        small._publish_for_ever()
    held = next(iter(small.engine._broker.state.sessions.values())).held_rows
    assert held >= ROWS
    words = f"consumers hold unacknowledged rows, such as session {small.session} of queue 'q' {held}: "
    assert str(refused.value).endswith(f"; {words}see `mq consumers list`")


def test_of_many_consumers_some_are_looked_at_and_once_a_second() -> None:
    small = SmallBroker()
    small.publish_until_refused()
    state = small.engine._broker.state

    class Counted(dict[int, Session]):
        looked_at = 0

        def values(self) -> Any:
            for session in super().values():
                self.looked_at += 1
                yield session

    session = state.sessions[small.session]
    counted = state.sessions = Counted(dict.fromkeys(range(100000), session))
    small.clock.advance(1)
    for _ in range(10):
        with pytest.raises(StoreFull, match="consumers hold"):
            small.publish()
    assert counted.looked_at == 1000
