"""A full disk to the last byte: what holds rows and segments lets go of them all the same, and consumers go
on being fed.
"""

from __future__ import annotations

from typing import Any

import pytest

from mq_broker.core.broker import Broker
from mq_broker.core.commands import (
    AddCredit,
    CloseRun,
    CloseSession,
    HoldRun,
    OpenSession,
    ReleaseView,
    ResolveFetch,
    RowsView,
    Settings,
    Tick,
)
from mq_broker.engine.engine import Engine
from mq_broker.engine.opening import recover
from mq_broker.journal.settings import TINY
from mq_broker.testing.memory_disk import MemoryDisk
from mq_wire.errors import StoreFull
from mq_wire.v1.consume_pb2 import Credit, OpenConsumer
from mq_wire.v1.produce_pb2 import ListMarkersRequest, ListStagedRequest, StagedSet, TakeEpochRequest
from mq_wire.v1.subscribe_pb2 import OpenBrowseRequest, OpenFetch, PlanRequest
from spark_tests.support.clock import FakeClock
from spark_tests.support.worlds import commands
from spark_tests.support.worlds.disks import JOURNAL
from spark_tests.support.worlds.lists import CLUSTER

WHO = ("a" * 32, 0)
ROWS = 8


class FullBroker:
    """An engine on a disk with a queue `q` of some rows; `fill` leaves no room, not for snapshots, and none
    in what is kept back.
    """

    def __init__(self) -> None:
        self.disk, self.snapshots, self.clock = MemoryDisk(), MemoryDisk(), FakeClock()
        settings = Settings(default_partitions=1, run_grace_us=1_000_000, browse_ttl_us=1_000_000)
        self.broker: Broker
        self.broker, journal, housekeeping = recover(
            self.disk, self.snapshots, CLUSTER, JOURNAL, settings, TINY, created=False
        )
        self.engine = Engine(
            self.broker, journal, housekeeping, self.clock.wall_us, monotonic=self.clock.monotonic_s
        )
        self.views: list[RowsView] = []
        self.answer(commands.publish("q", 0, WHO, 0, [(b"%d" % row, 4) for row in range(ROWS)]))

    def answer(self, command: Any) -> Any:
        return self.engine.answer(command)

    def open(self, rows: int) -> int:
        opening = OpenConsumer(destination="q", credit=Credit(rows=rows, bytes=1 << 40))
        return int(self.answer(OpenSession(opening, self.views.append)).session)

    def fill(self) -> None:
        self.disk.capacity_bytes = self.snapshots.capacity_bytes = 0
        with pytest.raises(StoreFull):
            self._write_for_ever()

    def _write_for_ever(self) -> None:
        for _ in range(100_000):
            self.answer(TakeEpochRequest())

    def ready(self) -> int:
        return self.broker.state.by_name["q"].queue.ready_rows()


def test_a_session_that_ends_gives_its_rows_back() -> None:
    full = FullBroker()
    session = full.open(rows=ROWS)
    full.answer(AddCredit(session, 1, 1))  # one row was seen, so its failed attempt would be written down
    full.fill()
    assert full.ready() == 0
    full.answer(CloseSession(session))
    assert full.ready() == ROWS
    assert not full.broker.state.sessions


def test_credit_is_taken_and_a_new_session_opened() -> None:
    full = FullBroker()
    session = full.open(rows=1)
    full.fill()
    full.answer(AddCredit(session, 2, 1 << 20))
    assert sum(view.selection.rows for view in full.views) == 3
    full.open(rows=ROWS)
    assert sum(view.selection.rows for view in full.views) == ROWS


def test_views_let_go_of_their_segments() -> None:
    full = FullBroker()
    full.open(rows=ROWS)
    full.fill()
    opened = full.answer(OpenBrowseRequest(destination="q"))
    (view,) = full.answer(ResolveFetch(OpenFetch(browse=opened.browse, last=ROWS)))
    assert view.selection.rows == ROWS
    full.answer(ReleaseView(view))
    assert full.broker.state.pins
    for view in full.views:
        full.answer(ReleaseView(view))
    full.clock.advance(2)
    full.answer(Tick())
    assert not full.broker.state.pins, "the browse view has expired"


def test_what_a_run_planned_comes_back_once_there_is_room() -> None:
    full = FullBroker()
    run = full.answer(HoldRun(0))
    request = PlanRequest(who={"destination": "q", "run": run}, create=True)
    assert full.answer(request).rows == ROWS
    full.fill()
    full.answer(CloseRun(run))
    full.disk.capacity_bytes = None
    full.answer(Tick())
    assert full.ready() == 0, "it may come back within the grace time"
    full.clock.advance(2)
    full.answer(Tick())
    assert full.ready() == ROWS


def test_the_error_says_which_staged_sets_hold_the_space_and_they_can_be_seen() -> None:
    full = FullBroker()
    for number, (query, rows) in enumerate([("", 2), ("q1", ROWS), ("q1", ROWS)]):
        staged = StagedSet(token=number.to_bytes(16, "big"), epoch=1, query_id=query)
        full.answer(commands.publish("q", 0, ("", 0), 0, [(bytes(100), 4)] * rows, staged=staged))
    full.fill()
    with pytest.raises(
        StoreFull,
        match=r"consume and acknowledge.*; 3 staged sets hold 18 rows, \d+ bytes, \d+ of them of query q1: "
        r"see",
    ):
        full.answer(commands.publish("q", 0, WHO, ROWS, [(bytes(4000), 4)]))
    sets = full.answer(ListStagedRequest(query_id="q1")).sets
    assert [held.rows for held in sets] == [ROWS, ROWS]
    assert not full.answer(ListMarkersRequest()).markers


def test_an_error_of_a_full_disk_names_no_staged_sets_where_there_are_none() -> None:
    full = FullBroker()
    full.fill()
    with pytest.raises(StoreFull) as refused:
        full.answer(commands.publish("q", 0, WHO, ROWS, [(bytes(4000), 4)]))
    assert "staged" not in str(refused.value)
