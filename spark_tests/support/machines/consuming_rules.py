"""Random commands of connected consumers, of people who look, and the passing of time."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from mq_broker.core.commands import (
    Acknowledge,
    AddCredit,
    Ask,
    CloseSession,
    Drain,
    HandOver,
    OpenSession,
    Release,
    ReleaseView,
    ResolveFetch,
    SessionEnd,
    Tick,
)
from mq_wire.v1 import admin_pb2 as admin
from mq_wire.v1 import subscribe_pb2 as wire
from mq_wire.v1.consume_pb2 import Asked, Drained, OpenConsumer
from spark_tests.model import plans as plans
from spark_tests.model import staging as staging
from spark_tests.model.state import DONE
from spark_tests.support.machines.both_sides import (
    BYTES,
    PARTITIONS,
    BothSides,
    destinations,
    pick,
)


class ConsumingRules(BothSides):
    """Sessions, browsing, deletion."""

    @rule(name=destinations, credit=st.integers(0, 30), batch=st.sampled_from([0, 1, 3]))
    def open_session(self, name: str, credit: int, batch: int) -> None:
        self.prepare()
        box: list[int] = []
        opened = OpenConsumer(destination=name, batch_rows_max=batch, create=True)
        opened.credit.rows, opened.credit.bytes = credit, BYTES
        expected = self.model.open_session(name, credit)
        box.append(expected)
        command = OpenSession(
            opened, lambda view: self.arrived.append((box, view)), lambda what: self.hear(box, what)
        )
        assert self.world.handle(command).session == expected
        self.finish()

    @precondition(lambda self: self.model.sessions)
    @rule(which=pick, rows=st.integers(1, 20))
    def add_credit(self, which: int, rows: int) -> None:
        number = self.session(which)
        self.both(
            lambda: self.model.add_credit(number, rows), AddCredit(number, rows, BYTES), lambda reply: None
        )

    @precondition(lambda self: self.model.sessions)
    @rule(which=pick, rows=st.integers(0, 20))
    def ask(self, which: int, rows: int) -> None:
        number = self.session(which)
        if rows:
            self.both(
                lambda: self.model.add_credit(number, rows),
                AddCredit(number, rows, BYTES),
                lambda reply: None,
            )
        self.both(
            lambda: self.model._session(number), Ask(number, rows), lambda reply: self.model._session(number)
        )

    def hear(self, box: list[int], what: Any) -> None:
        """A session is answered, or ended from the broker's side."""
        if isinstance(what, Drained):
            assert not self.world.broker.state.sessions[box[0]].wants_rows()
        if isinstance(what, Asked):
            state = self.world.broker.state
            session = state.sessions[box[0]]
            ready = state.by_name[session.destination].queue.ready_rows()
            assert not (session.wants_rows() and ready), (
                f"session {box[0]} is told that there is nothing, with {ready} rows ready"
            )

    def session(self, which: int) -> int:
        """One that is open, or now and then the next one to be opened."""
        numbers = [*self.model.sessions] * 3 + [self.model.opened_sessions + 1]
        return numbers[which % len(numbers)]

    @precondition(lambda self: self.model.sessions)
    @rule(which=pick, chosen=st.lists(pick, min_size=1, max_size=8), everything=st.booleans())
    def acknowledge(self, which: int, chosen: list[int], everything: bool) -> None:
        number = self.session(which)
        rows = self.some_held(number, chosen, everything)
        if not everything and chosen[0] % 5 == 0:
            rows.add((chosen[0] % PARTITIONS, chosen[0] % 40))
        if rows:
            self.both(
                lambda: self.model.acknowledge(number, sorted(rows)),
                Acknowledge(number, _ranges(rows)),
                lambda count: count,
            )

    def some_held(self, number: int, chosen: list[int], everything: bool) -> set[tuple[int, int]]:
        """Returns rows that a session holds; none where it is not there."""
        session = self.model.sessions.get(number)
        held = session.held if session is not None else []
        picked = held if everything else [held[c % len(held)] for c in chosen if held]
        return {(row.partition, row.offset) for row in picked}

    @precondition(lambda self: self.model.sessions)
    @rule(which=pick, chosen=st.lists(pick, max_size=8), everything=st.booleans())
    def hand_over(self, which: int, chosen: list[int], everything: bool) -> None:
        number = self.session(which)
        rows = self.some_held(number, chosen, everything)
        session = self.model.sessions.get(number)
        if session is not None and chosen:  # what it held once and does not hold any more
            rows |= {
                (row.partition, row.offset)
                for row in session.delivered[:3]
                if row.holder != ("session", number)
            }
        self.both(
            lambda: self.model.hand_over(number, sorted(rows)),
            HandOver(number, _ranges(rows)),
            lambda reply: reply,
        )

    @precondition(lambda self: self.model.sessions)
    @rule(
        which=pick,
        chosen=st.lists(pick, min_size=1, max_size=8),
        everything=st.booleans(),
        uncounted=st.booleans(),
    )
    def release(self, which: int, chosen: list[int], everything: bool, uncounted: bool) -> None:
        number = self.session(which)
        rows = self.some_held(number, chosen, everything)
        if not everything and chosen[0] % 5 == 0:
            rows.add((chosen[0] % PARTITIONS, chosen[0] % 40))
        self.both(
            lambda: self.model.release(number, sorted(rows), uncounted),
            Release(number, _ranges(rows), uncounted),
            lambda count: count,
        )

    @precondition(lambda self: self.model.sessions)
    @rule(which=pick)
    def drain(self, which: int) -> None:
        number = self.session(which)
        self.both(lambda: self.model.drain(number), Drain(number, 1), lambda reply: None)

    @precondition(lambda self: self.model.sessions)
    @rule(which=pick, end=st.sampled_from(SessionEnd), unsent=st.integers(0, 2))
    def close_session(self, which: int, end: SessionEnd, unsent: int = 0) -> None:
        """`unsent`: so many of its last deliveries never left."""
        number = self.session(which)
        views = self.views.pop(number, [])[-unsent:] if unsent else []
        rows = [(view.partition, offset) for view in views for offset in view.selection.offsets()]
        self.both(
            lambda: self.model.close_session(number, end.name.lower(), rows),
            CloseSession(number, end, tuple(views)),
            lambda reply: None,
        )

    @rule(
        name=destinations,
        credit=st.integers(1, 12),
        more=st.integers(0, 12),
        done=st.lists(pick, max_size=4),
        end=st.sampled_from([None, *SessionEnd]),
    )
    def receive(self, name: str, credit: int, more: int, done: list[int], end: SessionEnd | None) -> None:
        """A consumer comes, sees some of what it gets, is done with less, and goes."""
        self.open_session(name, credit, 0)
        which = len(self.model.sessions) - 1
        if more:
            self.add_credit(which, more)
        if done:
            self.acknowledge(which, [d * 5 + 1 for d in done], False)
        if end is not None:
            self.close_session(which, end)

    @rule(name=destinations)
    def browse(self, name: str) -> None:
        request = wire.OpenBrowseRequest(destination=name)
        if name not in self.model.destinations:
            self.both(lambda: self.model.destination(name, create=False), request, lambda reply: None)
            return
        self.prepare()
        self.model.new_identity()
        opened = self.world.handle(request)
        self.world.settle()
        seen = 0
        for part in opened.parts:
            fetch = wire.OpenFetch(browse=opened.browse, partition=part.partition, first=0, last=part.last)
            views = self.world.handle(ResolveFetch(fetch))
            rows = [row for view in views for row in self.world.read(view, batch_rows_max=7)]
            left = [
                row
                for row in self.model.destinations[name].partitions[part.partition].rows
                if row.holder != DONE
            ]
            left.sort(key=lambda row: (-row.priority, row.offset))
            assert [(row.number, row.offset) for row in rows] == [
                (at, known.offset) for at, known in enumerate(left)
            ]
            for row, known in zip(rows, left, strict=True):
                self.check_row(row, known, known.delivery_count)
            for view in views:
                self.world.handle(ReleaseView(view))
            seen += len(rows)
        assert seen == sum(row.holder != DONE for row in self.model.destinations[name].rows())
        self.finish()

    @rule(name=destinations, rare=st.integers(0, 5), again=st.booleans())
    def delete(self, name: str, rare: int, again: bool) -> None:
        if rare:
            return
        there = self.model.destinations.get(name)
        if there is not None:
            self.deleted.append((name, there.id))
        self.both(
            lambda: self.model.delete(name), admin.DeleteDestinationRequest(name=name), lambda reply: None
        )
        if there is not None and again:
            made = admin.DescribeDestinationRequest(name=name, create=True)
            self.both(lambda: self.model.destination(name).id, made, lambda reply: reply.destination_id)
            self.delete_late(-1)

    @precondition(lambda self: self.deleted)
    @rule(which=pick)
    def delete_late(self, which: int) -> None:
        name, identity = self.deleted[which % len(self.deleted)]

        def expect() -> None:
            there = self.model.destinations.get(name)
            if there is not None and there.id == identity:  # a crash has undone the deletion
                self.model.delete(name)

        self.both(
            expect, admin.DeleteDestinationRequest(name=name, destination_id=identity), lambda reply: None
        )

    @rule(hours=st.sampled_from([0, 1, 25]), minutes=st.sampled_from([0, 1, 3]), short=st.booleans())
    def time_passes(self, hours: int, minutes: int, short: bool) -> None:
        self.world.now_us += (hours * 60 + minutes) * 60_000_000

        def expect() -> None:
            self.model.count_duplicates()
            staging.expire(self.model, self.now)
            plans.watch_runs(self.model, self.now)
            plans.forget_kept(self.model, self.now, short)

        self.both(expect, Tick(short), lambda reply: None)


def _ranges(rows: set[tuple[int, int]]) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """Returns rows (partition, offset) as acknowledgements name them, neighbours as one range."""
    result = []
    for partition in sorted({partition for partition, _ in rows}):
        offsets = sorted(offset for number, offset in rows if number == partition)
        starts = [offset for offset in offsets if offset - 1 not in offsets]
        stops = [offset + 1 for offset in offsets if offset + 1 not in offsets]
        result.append((partition, np.array(starts, np.int64), np.array(stops, np.int64)))
    return result
