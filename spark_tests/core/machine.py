"""Random commands to the core and to the model at once: same answers, same errors, same state, same rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mq_broker.core.commands import (
    Acknowledge,
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
from mq_broker.testing import model_plans as plans
from mq_broker.testing import model_staging as staging
from mq_broker.testing.model import DONE, Model
from mq_wire.errors import MqError
from mq_wire.v1 import admin_pb2 as admin
from mq_wire.v1 import produce_pb2 as produce
from mq_wire.v1 import subscribe_pb2 as wire
from mq_wire.v1.consume_pb2 import OpenConsumer
from spark_tests.core import commands
from spark_tests.core.dumps import check_same, dump_broker, dump_model
from spark_tests.core.worlds import ListWorld, ReadRow

PARTITIONS = 2
SETTINGS = Settings(default_partitions=PARTITIONS, anonymous_producers_max=2)
UNNAMED = ["a" * 32, "b" * 32, "c" * 32]
BYTES = 1 << 40

destinations = st.sampled_from(["eu", "us.east"])
partitions = st.integers(0, PARTITIONS - 1)
priorities = st.one_of(st.just([4]), st.lists(st.integers(0, 9), min_size=1, max_size=12), st.lists(st.just(7), min_size=1, max_size=9))
pick = st.integers(0, 1 << 30)
queries = st.sampled_from(["", "q0", "q1"])
versions = st.integers(0, 3)
jumps = st.sampled_from([0, 0, 0, 0, 1, 3])
newer_epochs = st.integers(0, 4)


@dataclass
class Checkpoint:
    """What a query remembers: whose offsets, and every boundary it was ever given."""

    destination: str
    name: str
    destination_id: bytes = b""
    incarnation: bytes = b""
    boundaries: list[dict[int, int]] = field(default_factory=lambda: [{}])


class BrokerMachine(RuleBasedStateMachine):
    """Drives both. `world` is what subclasses vary."""

    world: ListWorld

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(partitions=PARTITIONS, anonymous_max=2)
        self.arrived: list[tuple[list[int], RowsView]] = []
        self.sent: list[tuple[str, int, tuple[str, int], int, list[tuple[bytes, int]], bool]] = []
        self.staged: list[tuple[tuple[str, int], bytes, tuple[int, str, int], int, list[tuple[bytes, int]]]] = []
        self.checkpoints: list[Checkpoint] = []
        self.runs: list[int] = []
        self.names: list[tuple[str, int]] = []
        self.values = 0

    @initialize()
    def begin(self) -> None:
        self.world = self.make_world()
        self.load("eu", [(0, [4, 4, 9]), (1, [0, 4, 7, 7])])
        self.hold_run(0)
        self.new_checkpoint("eu", "")
        self.new_checkpoint("eu", "night")

    def make_world(self) -> ListWorld:
        return ListWorld(SETTINGS)

    # ---- both sides

    def both(self, expect: Callable[[], Any], command: Any, shown: Callable[[Any], Any]) -> Any:
        """Returns what both answer, None where both raise the same error."""
        self.prepare()
        expected: Any
        actual: Any
        try:
            expected = expect()
        except MqError as error:
            expected = type(error)
        try:
            actual = shown(self.world.handle(command))
        except MqError as error:
            actual = type(error)
        assert actual == expected, f"{actual} instead of {expected} for {command}"
        self.finish()
        return None if isinstance(expected, type) else expected

    def prepare(self) -> None:
        """Begins a command."""
        self.world.now_us += 1000

    def finish(self) -> None:
        """Ends a command."""
        self.dispatch()

    def dispatch(self) -> None:
        """Lets rows go, and checks each of them."""
        self.world.dispatch()
        for number, view in self.arrived:
            for row in self.world.read(view, batch_rows_max=5):
                known = self.model.deliver(number[0], row.partition, row.offset)
                self.check_row(row, known, known.attempts + 1)
            self.world.handle(ReleaseView(view))
        self.arrived.clear()
        self.model.check_dispatched()

    @staticmethod
    def check_row(row: ReadRow, known: Any, delivery_count: int) -> None:
        assert (row.partition, row.offset, row.value) == (known.partition, known.offset, known.value)
        assert (row.priority, row.delivery_count) == (known.priority, delivery_count)
        assert (row.producer, row.sequence, row.time_us) == (known.producer, known.sequence, known.time_us)

    @property
    def now(self) -> int:
        """The time of the command in hand."""
        return self.world.now_us

    def fresh_rows(self, wanted: list[int]) -> list[tuple[bytes, int]]:
        self.values += 1
        return [(b"%d.%d" % (self.values, at) * (1 + at % 3), priority) for at, priority in enumerate(wanted)]

    @invariant()
    def same_state(self) -> None:
        if hasattr(self, "world"):
            check_same(dump_broker(self.world.broker), dump_model(self.model))

    # ---- producing

    @rule(name=destinations, partition=partitions, who=pick, wanted=priorities, keys=st.booleans(), jump=jumps)
    def publish(self, name: str, partition: int, who: int, wanted: list[int], keys: bool, jump: int) -> None:
        known = [*((producer, 0) for producer in UNNAMED), *self.names]
        producer = known[who % len(known)]
        there = self.model.destinations.get(name)
        mark = there.partitions[partition].mark(producer[0]) if there is not None else None
        first = (mark.next if mark is not None and mark.epoch == producer[1] else 0) + jump
        rows = self.fresh_rows(wanted)
        self.sent.append((name, partition, producer, first, rows, keys))
        self._publish(len(self.sent) - 1)

    @precondition(lambda self: self.sent)
    @rule(which=pick)
    def publish_again(self, which: int) -> None:
        self._publish(-1 - which % min(len(self.sent), 8))

    @rule(name=destinations, batches=st.lists(st.tuples(partitions, priorities), min_size=1, max_size=4))
    def load(self, name: str, batches: list[tuple[int, list[int]]]) -> None:
        for partition, wanted in batches:
            self.publish(name, partition, 0, wanted, keys=False, jump=0)

    @precondition(lambda self: self.sent)
    @rule(which=pick, shift=st.integers(0, 2), wanted=priorities, count=st.integers(1, 4), skip=st.booleans())
    def publish_oddly(self, which: int, shift: int, wanted: list[int], count: int, skip: bool) -> None:
        if skip:
            self.skip(which, shift, count)
            return
        name, partition, producer, first, _, keys = self.sent[which % len(self.sent)]
        self.sent.append((name, partition, producer, first + shift, self.fresh_rows(wanted), keys))
        self._publish(len(self.sent) - 1)
        self.sent.pop()

    def _publish(self, which: int) -> None:
        name, partition, producer, first, rows, keys = self.sent[which]
        command = commands.publish(name, partition, producer, first, rows, keys)
        self.both(
            lambda: self.model.publish(name, partition, producer, first, rows, command.records_crc, self.now),
            command,
            lambda receipt: (receipt.base_offset, receipt.duplicates),
        )

    def skip(self, which: int, shift: int, count: int) -> None:
        name, partition, producer, first, rows, _ = self.sent[which % len(self.sent)]
        first += shift * len(rows)
        self.both(
            lambda: self.model.skip(name, partition, producer, first, count, self.now),
            commands.skip(name, partition, producer, first, count),
            lambda receipt: None,
        )

    @rule(name=st.sampled_from(["loader", "archive"]))
    def open_producer(self, name: str) -> None:
        producer = self.both(
            lambda: self.model.open_producer(name), produce.OpenProducerRequest(name=name), lambda reply: (reply.producer_id, reply.epoch)
        )
        self.names.append(producer)

    # ---- connected consumers

    @rule(name=destinations, credit=st.integers(0, 30), batch=st.sampled_from([0, 1, 3]))
    def open_session(self, name: str, credit: int, batch: int) -> None:
        self.prepare()
        box: list[int] = []
        opened = OpenConsumer(destination=name, batch_rows_max=batch, create=True)
        opened.credit.rows, opened.credit.bytes = credit, BYTES
        expected = self.model.open_session(name, credit)
        box.append(expected)
        command = OpenSession(opened, lambda view: self.arrived.append((box, view)))
        assert self.world.handle(command).session == expected
        self.finish()

    @precondition(lambda self: self.model.sessions)
    @rule(which=pick, rows=st.integers(1, 20))
    def add_credit(self, which: int, rows: int) -> None:
        number = self.session(which)
        self.both(lambda: self.model.add_credit(number, rows), AddCredit(number, rows, 0), lambda reply: None)

    def session(self, which: int) -> int:
        """One that is open, or now and then the next one to be opened."""
        numbers = [*self.model.sessions] * 3 + [self.model.opened_sessions + 1]
        return numbers[which % len(numbers)]

    @precondition(lambda self: self.model.sessions)
    @rule(which=pick, chosen=st.lists(pick, min_size=1, max_size=8), everything=st.booleans())
    def acknowledge(self, which: int, chosen: list[int], everything: bool) -> None:
        number = self.session(which)
        session = self.model.sessions.get(number)
        held = [r for r in session.delivered if r.holder == ("session", number)] if session is not None else []
        rows = {(r.partition, r.offset) for r in (held if everything else [held[c % len(held)] for c in chosen if held])}
        if not everything and chosen[0] % 5 == 0:
            rows.add((chosen[0] % PARTITIONS, chosen[0] % 40))
        if rows:
            self.both(
                lambda: self.model.acknowledge(number, sorted(rows)), Acknowledge(number, _ranges(rows)), lambda count: count
            )

    @precondition(lambda self: self.model.sessions)
    @rule(which=pick)
    def close_session(self, which: int) -> None:
        number = self.session(which)
        self.both(lambda: self.model.close_session(number), CloseSession(number), lambda reply: None)

    @rule(name=destinations, credit=st.integers(1, 12), more=st.integers(0, 12), done=st.lists(pick, max_size=4), stay=st.booleans())
    def receive(self, name: str, credit: int, more: int, done: list[int], stay: bool) -> None:
        """A consumer comes, sees some of what it gets, is done with less, and goes."""
        self.open_session(name, credit, 0)
        which = len(self.model.sessions) - 1
        if more:
            self.add_credit(which, more)
        if done:
            self.acknowledge(which, [d * 5 + 1 for d in done], False)
        if not stay:
            self.close_session(which)

    # ---- durable consumers

    @rule(which=st.one_of(st.just(0), pick))
    def hold_run(self, which: int) -> None:
        run = self.run(which) if which else 0
        held = self.both(lambda: plans.hold_run(self.model, run), HoldRun(run), lambda reply: reply)
        if not run:
            self.runs.append(held)

    @rule(which=pick)
    def close_run(self, which: int) -> None:
        run = self.run(which)
        self.both(lambda: plans.close_run(self.model, run), CloseRun(run), lambda reply: None)

    def run(self, which: int) -> int:
        """The newest run, an older one, or one that was never given."""
        runs = [*self.runs[-1:] * 4, *self.runs, self.model.epoch + 1]
        return runs[which % len(runs)]

    @rule(name=destinations, consumer=st.sampled_from(["", "", "night"]))
    def new_checkpoint(self, name: str, consumer: str) -> None:
        self.checkpoints.append(Checkpoint(name, consumer))

    def checkpoint(self, which: int) -> Checkpoint:
        return self.checkpoints[-1 - which % min(len(self.checkpoints), 5)]

    @rule(
        which=pick,
        run=pick,
        max_rows=st.sampled_from([0, 1, 5]),
        batch=st.tuples(queries, versions),
        until=st.sampled_from(["planned", "opened", "read", "staged", "committed", "acknowledged"]),
    )
    def query_step(self, which: int, run: int, max_rows: int, batch: tuple[str, int], until: str) -> None:
        """A batch of a query as Spark runs it, up to some point."""
        known = self.checkpoint(which)
        start = known.boundaries[-1]
        self.plan(which, 0, run, max_rows, 0, None)
        if until == "planned" or not known.incarnation:
            return
        self._read_range(known, self.run(run), start, known.boundaries[-1], batch if until != "opened" else None)
        if until in ("staged", "committed"):
            self.stage(known.destination, 0, *batch, [4, 4], more=False, newer=1)
        if until == "committed" and batch[0]:
            token, held = self.staged[-1][1], self.model.staged.get(self.staged[-1][1])
            self._commit([(token, held.count if held is not None else 1)], f"query:{batch[0]}", "", batch[1], wrong=0, keep=False)
        if until == "acknowledged":
            self.acknowledge_range(which, run, 0)

    @rule(name=destinations, consumer=st.sampled_from(["night", "day"]), batch=st.tuples(queries, versions), waiting=st.booleans())
    def take_over(self, name: str, consumer: str, batch: tuple[str, int], waiting: bool) -> None:
        """A query reads, its checkpoint is lost, and it starts anew."""
        for until in ("read", "planned"):
            self.hold_run(0)
            self.new_checkpoint(name, consumer)
            if waiting and until == "planned":
                self.open_session(name, 5, 0)
            self.query_step(0, 0, 5, batch, until)

    @rule(
        which=pick,
        back=st.sampled_from([0, 0, 0, 0, 1, 2]),
        run=pick,
        max_rows=st.sampled_from([0, 1, 5, 11]),
        min_rows=st.sampled_from([0, 0, 6]),
        below=st.one_of(st.none(), st.dictionaries(partitions, st.integers(0, 30))),
    )
    def plan(self, which: int, back: int, run: int, max_rows: int, min_rows: int, below: dict[int, int] | None) -> None:
        known = self.checkpoint(which)
        start = known.boundaries[-1 - back % len(known.boundaries)]
        number = self.run(run)
        request = wire.PlanRequest(
            who=commands.who(known.destination, known.destination_id, known.name, known.incarnation, number),
            start=commands.positions(start),
            max_rows=max_rows,
            min_rows=min_rows,
            bounded=below is not None,
            available_below=commands.positions(below or {}),
            create=True,
        )

        def expect() -> Any:
            if known.incarnation:
                destination = plans.destination_of(self.model, known.destination, known.destination_id)
            else:
                destination = self.model.destination(known.destination)
            return plans.plan(self.model, destination, known.name, known.incarnation, number, start, max_rows, min_rows, below)

        planned = self.both(expect, request, lambda r: None if r.idle else (r.incarnation, dict(r.end.next), r.rows))
        if planned is not None:
            known.destination_id = self.model.destinations[known.destination].id
            known.incarnation = planned[0]
            if planned[1] not in known.boundaries:
                known.boundaries.append(planned[1])

    @precondition(lambda self: any(c.incarnation for c in self.checkpoints))
    @rule(which=pick, run=pick, after=pick, through=pick, query=queries, batch=versions, read=st.booleans())
    def read_range(self, which: int, run: int, after: int, through: int, query: str, batch: int, read: bool) -> None:
        known = self.checkpoint(which)
        if not known.incarnation:
            return
        last = known.boundaries[-1 - through % min(len(known.boundaries), 3)]
        start = known.boundaries[max(known.boundaries.index(last) - 1 - after % 2, 0)]
        self._read_range(known, self.run(run), start, last, (query, batch) if read else None)

    def _read_range(
        self, known: Checkpoint, run: int, start: dict[int, int], last: dict[int, int], batch: tuple[str, int] | None
    ) -> None:
        """Opens a range, and reads it where there is a batch to read it for."""
        who = (known.name, known.incarnation, run)
        ref = commands.who(known.destination, known.destination_id, *who)
        parts = self.both(
            lambda: plans.open_range(self.model, known.destination, known.destination_id, who, start, last),
            wire.OpenRangeRequest(who=ref, start=commands.positions(start), end=commands.positions(last)),
            lambda reply: {part.partition: (part.first, part.last, part.rows) for part in reply.parts},
        )
        if parts is None or batch is None:
            return
        for partition, (first, end, rows) in sorted(parts.items()):
            got = self.fetch(known, who, (partition, first, end), batch)
            assert got is None or got == rows

    @precondition(lambda self: any(c.incarnation for c in self.checkpoints))
    @rule(which=pick, run=pick, partition=partitions, first=st.integers(0, 20), count=st.integers(1, 20), query=queries, batch=versions)
    def read_some(self, which: int, run: int, partition: int, first: int, count: int, query: str, batch: int) -> None:
        known = self.checkpoint(which)
        if known.incarnation:
            self.fetch(known, (known.name, known.incarnation, self.run(run)), (partition, first, first + count), (query, batch))

    def fetch(
        self, known: Checkpoint, who: tuple[str, bytes, int], where: tuple[int, int, int], batch: tuple[str, int]
    ) -> int | None:
        """Returns how many rows came, None for an error."""
        opened = wire.OpenFetch(
            who=commands.who(known.destination, known.destination_id, *who),
            partition=where[0],
            first=where[1],
            last=where[2],
            query_id=batch[0],
            batch_id=batch[1],
        )
        views: list[RowsView] = []
        expected = self.both(
            lambda: [
                (number, row.offset)
                for number, row, _ in plans.fetch(self.model, known.destination, known.destination_id, who, where, batch)
            ],
            ResolveFetch(opened),
            lambda reply: self._read_views(reply, views),
        )
        for view in views:
            self.world.handle(ReleaseView(view))
        return None if expected is None else len(expected)

    def _read_views(self, reply: list[RowsView], views: list[RowsView]) -> list[tuple[int, int]]:
        self.world.settle()
        views += reply
        rows = [row for view in reply for row in self.world.read(view)]
        for row in rows:
            destination = self.model.destinations[reply[0].destination]
            kept = destination.partitions[row.partition].rows[row.offset]
            counts = [
                plan.failed + 1 + kept.attempts
                for consumer in destination.consumers.values()
                for plan in consumer.kept()
                if not plan.returned and any(other is kept for other in plan.rows.get(row.partition, ()))
            ]
            assert row.delivery_count in counts
            self.check_row(row, kept, row.delivery_count)
        return [(row.number, row.offset) for row in rows]

    @precondition(lambda self: any(c.incarnation for c in self.checkpoints))
    @rule(which=pick, run=pick, end=pick)
    def acknowledge_range(self, which: int, run: int, end: int) -> None:
        known = self.checkpoint(which)
        if not known.incarnation:
            return
        through = known.boundaries[-1 - end % min(len(known.boundaries), 3)]
        who = (known.name, known.incarnation, self.run(run))
        self.both(
            lambda: plans.acknowledge_range(self.model, known.destination, known.destination_id, who, through),
            wire.AcknowledgeRangeRequest(
                who=commands.who(known.destination, known.destination_id, *who), end=commands.positions(through)
            ),
            lambda reply: reply.rows,
        )

    @precondition(lambda self: any(c.incarnation for c in self.checkpoints))
    @rule(which=pick, rare=st.integers(0, 3))
    def release(self, which: int, rare: int) -> None:
        known = self.checkpoint(which)
        if rare or not known.incarnation:
            return
        consumer = known.name or known.incarnation.hex()
        self.both(
            lambda: plans.release_consumer(self.model, known.destination, consumer),
            wire.ReleaseConsumerRequest(destination=known.destination, consumer=consumer),
            lambda reply: (reply.returned_rows, reply.acknowledged_rows),
        )

    # ---- staged sets

    @rule(name=destinations, partition=partitions, query=queries, batch=versions, wanted=priorities, more=st.booleans(), newer=newer_epochs)
    def stage(self, name: str, partition: int, query: str, batch: int, wanted: list[int], more: bool, newer: int) -> None:
        rows = self.fresh_rows(wanted)
        if more and self.staged:
            _, token, writer, _, _ = self.staged[-1]
            held = self.model.staged.get(token)
            first = sum(len(b.rows) for b in held.batches if (b.destination, b.partition) == (name, partition)) if held is not None else 0
        else:
            token = len(self.staged).to_bytes(16, "little")
            writer = (max(self.model.query_epochs.get(query, 0) + newer - 1, 0), query, batch)
            first = 0
        self.staged.append(((name, partition), token, writer, first, rows))
        self._stage(-1)

    @precondition(lambda self: self.staged)
    @rule(which=pick, shift=st.sampled_from([0, 0, 1, 5]), other=st.booleans())
    def stage_again(self, which: int, shift: int, other: bool) -> None:
        where, token, writer, first, rows = self.staged[-1 - which % min(len(self.staged), 4)]
        self.staged.append((where, token, writer, first + shift, self.fresh_rows([4]) if other else rows))
        self._stage(-1)
        self.staged.pop()

    def _stage(self, which: int) -> None:
        where, token, writer, first, rows = self.staged[which]
        held = produce.StagedSet(token=token, epoch=writer[0], query_id=writer[1], batch_id=writer[2])
        command = commands.publish(*where, ("", 0), first, rows, staged=held)
        self.both(
            lambda: staging.stage(self.model, where, token, writer, first, rows, command.records_crc, self.now),
            command,
            lambda receipt: receipt.duplicates,
        )

    @rule(
        chosen=st.lists(pick, max_size=3),
        owner=st.sampled_from(["", "query:q0", "query:q1", "app:x"]),
        goal=st.sampled_from(["", "", "eu"]),
        version=versions,
        wrong=st.sampled_from([0, 0, 0, 0, 1]),
        keep=st.booleans(),
    )
    def commit_staged(self, chosen: list[int], owner: str, goal: str, version: int, wrong: int, keep: bool) -> None:
        recent = [token for _, token, _, _, _ in self.staged[-4:]]
        tokens = [recent[c % len(recent)] for c in chosen if recent]
        named = [(token, held.count if (held := self.model.staged.get(token)) is not None else 1) for token in tokens]
        self._commit(named, owner, goal, version, wrong, keep)

    def _commit(self, named: list[tuple[bytes, int]], owner: str, goal: str, version: int, wrong: int, keep: bool) -> None:
        rows = sum(count for _, count in named) + wrong
        request = produce.CommitStagedRequest(
            tokens=[produce.StagedToken(token=token, rows=count) for token, count in named],
            owner=owner,
            target=goal,
            version=version,
            rows=rows,
            keep_mismatch=keep,
        )
        self.both(
            lambda: staging.commit(self.model, named, owner, goal, version, rows, self.now, keep),
            request,
            lambda reply: (reply.already_committed, reply.rows),
        )

    @precondition(lambda self: self.staged)
    @rule(which=pick)
    def discard_staged(self, which: int) -> None:
        token = self.staged[which % len(self.staged)][1]
        self.both(lambda: staging.discard(self.model, [token]), produce.DiscardStagedRequest(tokens=[token, token]), lambda r: r.rows)

    # ---- all of it

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
            left = [row for row in self.model.destinations[name].partitions[part.partition].rows if row.holder != DONE]
            left.sort(key=lambda row: (-row.priority, row.offset))
            assert [(row.number, row.offset) for row in rows] == [(at, known.offset) for at, known in enumerate(left)]
            for row, known in zip(rows, left, strict=True):
                self.check_row(row, known, known.attempts + 1)
            for view in views:
                self.world.handle(ReleaseView(view))
            seen += len(rows)
        assert seen == sum(row.holder != DONE for row in self.model.destinations[name].rows())
        self.finish()

    @rule(name=destinations, rare=st.integers(0, 5))
    def delete(self, name: str, rare: int) -> None:
        if not rare:
            self.both(lambda: self.model.delete(name), admin.DeleteDestinationRequest(name=name), lambda reply: None)

    @rule(hours=st.sampled_from([0, 1, 25]), minutes=st.sampled_from([0, 1, 3]))
    def time_passes(self, hours: int, minutes: int) -> None:
        self.world.now_us += (hours * 60 + minutes) * 60_000_000

        def expect() -> None:
            staging.expire(self.model, self.now)
            plans.watch_runs(self.model, self.now)

        self.both(expect, Tick(), lambda reply: None)


def _ranges(rows: set[tuple[int, int]]) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """Returns rows (partition, offset) as acknowledgements name them, neighbours as one range."""
    result = []
    for partition in sorted({partition for partition, _ in rows}):
        offsets = sorted(offset for number, offset in rows if number == partition)
        starts = [offset for offset in offsets if offset - 1 not in offsets]
        stops = [offset + 1 for offset in offsets if offset + 1 not in offsets]
        result.append((partition, np.array(starts, np.int64), np.array(stops, np.int64)))
    return result
