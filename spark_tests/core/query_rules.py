"""Random commands of durable consumers."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from mq_broker.core.commands import (
    CloseRun,
    HoldRun,
    ReleaseView,
    ResolveFetch,
    RowsView,
)
from mq_broker.testing import model_plans as plans
from mq_wire.v1 import subscribe_pb2 as wire
from spark_tests.core import commands
from spark_tests.core.both_sides import (
    Checkpoint,
    destinations,
    partitions,
    pick,
    queries,
    versions,
)
from spark_tests.core.consuming_rules import ConsumingRules
from spark_tests.core.producing_rules import ProducingRules


class QueryRules(ProducingRules, ConsumingRules):
    """Runs, plans, ranges, and queries that put them together."""

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
            self.stage(known.destination, 0, *batch, None, [4, 4], more=False, newer=1)
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
