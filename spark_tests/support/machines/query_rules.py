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
from mq_wire.v1 import subscribe_pb2 as wire
from spark_tests.model import plans as plans
from spark_tests.model import queries as rules
from spark_tests.support.machines.both_sides import (
    Checkpoint,
    destinations,
    partitions,
    pick,
    queries,
    versions,
)
from spark_tests.support.machines.consuming_rules import ConsumingRules
from spark_tests.support.machines.producing_rules import ProducingRules
from spark_tests.support.worlds import commands


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

    @rule(
        name=destinations,
        consumer=st.sampled_from(["", "", "night"]),
        query=st.sampled_from(["own", "own", "own", "", "q0", "q1"]),
    )
    def new_checkpoint(self, name: str, consumer: str, query: str = "own") -> None:
        """Some queries have two readers, by mistake; of some the broker is not told."""
        own = f"c{len(self.checkpoints)}"
        self.checkpoints.append(Checkpoint(name, consumer, own if query == "own" else query))

    @rule(which=pick, count=st.sampled_from([1, 1, 1, 2, 99]))
    def lose_files(self, which: int, count: int) -> None:
        """The last files of a checkpoint are gone: the query goes on before them, under the same numbers."""
        known = self.checkpoint(which)
        del known.boundaries[max(len(known.boundaries) - count, 1) :]
        if known.boundaries == [{}]:
            known.incarnation = known.destination_id = b""

    @rule(which=pick, run=pick, number=versions, is_alone=st.booleans())
    def join_query(self, which: int, run: int, number: int, is_alone: bool) -> None:
        known = self.checkpoint(which)
        who = (known.name, known.incarnation, self.run(run))
        spark_run = f"spark run of {who[2]}" if is_alone else "one spark run"
        request = wire.JoinQueryRequest(
            who=commands.who(known.destination, known.destination_id, *who),
            query_id=known.query,
            batch_id=number,
            spark_run_id=spark_run,
        )
        batch, there = (known.query, number), (known.destination, known.destination_id)
        self.both(
            lambda: rules.join_query(self.model, *there, who, batch, spark_run), request, lambda reply: None
        )

    def checkpoint(self, which: int) -> Checkpoint:
        return self.checkpoints[-1 - which % min(len(self.checkpoints), 5)]

    @rule(
        which=pick,
        run=pick,
        max_rows=st.sampled_from([0, 1, 5]),
        other=st.one_of(st.none(), st.none(), st.none(), st.tuples(queries, versions)),
        until=st.sampled_from(["planned", "opened", "read", "staged", "committed", "acknowledged"]),
        accept=st.booleans(),
    )
    def query_step(
        self,
        which: int,
        run: int,
        max_rows: int,
        other: tuple[str, int] | None,
        until: str,
        accept: bool = False,
    ) -> None:
        """A batch of a query as Spark runs it, up to some point; `other`: under another number than
        its own.
        """
        known = self.checkpoint(which)
        start = known.boundaries[-1]
        self.plan(which, 0, run, max_rows, 0, None, accept)
        if until == "planned" or not known.incarnation:
            return
        batch = other or (known.query, len(known.boundaries) - 1)
        self._read_range(
            known, self.run(run), start, known.boundaries[-1], batch if until != "opened" else None, accept
        )
        if until in ("staged", "committed"):
            self.stage(known.destination, 0, *batch, None, [4, 4], more=False, newer=1)
        if until == "committed" and batch[0]:
            token, held = self.staged[-1][1], self.model.staged.get(self.staged[-1][1])
            self._commit(
                [(token, held.count if held is not None else 1)],
                f"query:{batch[0]}",
                "",
                batch[1],
                wrong=0,
                keep=False,
            )
        if until == "acknowledged":
            self.acknowledge_range(which, run, 0)

    @rule(
        name=destinations,
        count=st.integers(1, 6),
        lost=st.sampled_from([0, 1, 1, 2, 3, 99]),
        accept=st.booleans(),
        gone=st.booleans(),
    )
    def long_query(self, name: str, count: int, lost: int, accept: bool, gone: bool) -> None:
        """Some batches, one after the other; then the checkpoint loses its last files, and the query
        goes on.
        """
        if not self.checkpoints or self.checkpoints[-1].destination != name or not self.checkpoints[-1].query:
            self.new_checkpoint(name, "", "own")
        for _ in range(count):
            self.load(name, [(0, [4]), (1, [7, 4])])
            self.query_step(0, 0, 2, None, "read")
        self.plan(0, 0, 0, 1, 99, None)
        if lost:
            self.lose_files(0, lost)
            if gone:
                self.close_run(0)
                self.time_passes(25, 0, False)
                self.time_passes(25, 0, False)
            self.hold_run(0)
            for _ in range(3):
                self.query_step(0, 0, 2, None, "read", accept)

    @rule(name=destinations, ends=st.sampled_from(["again", "released"]))
    def read_and_then(self, name: str, ends: str) -> None:
        """A query has read a batch: it starts again without the file that tells of it, or its sink commits
        and an operator releases it.
        """
        self.hold_run(0)
        self.new_checkpoint(name, "", f"own{len(self.checkpoints)}")
        for until in ("read", "read" if ends == "again" else "committed"):
            self.load(name, [(0, [4]), (1, [7, 4])])
            self.query_step(0, 0, 2, None, until)
        self.load(name, [(0, [9])])
        if ends == "again":
            self.lose_files(0, 1)
            self.hold_run(0)
            self.plan(0, 0, 0, 5, 0, None)
        else:
            self.release(0, 0)

    @rule(name=destinations, rows=st.booleans(), join=st.booleans())
    def read_twice(self, name: str, rows: bool, join: bool) -> None:
        """One query with two readers of one queue."""
        self.load(name, [(0, [4] * 6)])
        query = f"twice{len(self.checkpoints)}"
        for _ in range(2):
            self.hold_run(0)
            self.new_checkpoint(name, "", query)
            if join:
                self.join_query(0, 0, 0, is_alone=False)
            if rows:
                self.plan(0, 0, 0, 2, 0, None)
        for which in (0, 1):
            known = self.checkpoint(which)
            if known.incarnation:
                run = self.runs[-1 - which]
                self._read_range(known, run, {}, known.boundaries[-1], (query, 1), False)

    @rule(
        name=destinations,
        consumer=st.sampled_from(["night", "day"]),
        batch=st.tuples(queries, versions),
        waiting=st.booleans(),
    )
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
        accept=st.booleans(),
    )
    def plan(
        self,
        which: int,
        back: int,
        run: int,
        max_rows: int,
        min_rows: int,
        below: dict[int, int] | None,
        accept: bool = False,
    ) -> None:
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
            accept_data_loss=accept,
        )

        def expect() -> Any:
            if known.incarnation:
                destination = plans.destination_of(self.model, known.destination, known.destination_id)
            else:
                destination = self.model.destination(known.destination)
            return plans.plan(
                self.model,
                destination,
                known.name,
                known.incarnation,
                number,
                start,
                max_rows,
                min_rows,
                below,
                accept,
            )

        planned = self.both(
            expect, request, lambda r: None if r.idle else (r.incarnation, dict(r.end.next), r.rows)
        )
        if planned is not None:
            known.destination_id = self.model.destinations[known.destination].id
            known.incarnation = planned[0]
            if planned[1] not in known.boundaries:
                known.boundaries.append(planned[1])

    @precondition(lambda self: any(c.incarnation for c in self.checkpoints))
    @rule(
        which=pick,
        run=pick,
        after=pick,
        through=pick,
        other=st.one_of(st.none(), st.tuples(queries, versions)),
        read=st.booleans(),
        accept=st.booleans(),
    )
    def read_range(
        self,
        which: int,
        run: int,
        after: int,
        through: int,
        other: tuple[str, int] | None,
        read: bool,
        accept: bool,
    ) -> None:
        known = self.checkpoint(which)
        if not known.incarnation:
            return
        last = known.boundaries[-1 - through % min(len(known.boundaries), 3)]
        start = known.boundaries[max(known.boundaries.index(last) - 1 - after % 2, 0)]
        batch = other or (known.query, known.boundaries.index(last))
        self._read_range(known, self.run(run), start, last, batch if read else None, accept)

    def _read_range(
        self,
        known: Checkpoint,
        run: int,
        start: dict[int, int],
        last: dict[int, int],
        batch: tuple[str, int] | None,
        accept: bool,
    ) -> None:
        """Opens a range, and reads it where there is a batch to read it for."""
        who = (known.name, known.incarnation, run)
        ref = commands.who(known.destination, known.destination_id, *who)
        opened = self.both(
            lambda: plans.open_range(
                self.model, known.destination, known.destination_id, who, start, last, accept
            ),
            wire.OpenRangeRequest(
                who=ref,
                start=commands.positions(start),
                end=commands.positions(last),
                accept_data_loss=accept,
            ),
            lambda reply: (
                {part.partition: (part.first, part.last, part.rows) for part in reply.parts},
                reply.data_loss,
            ),
        )
        if opened is None or batch is None:
            return
        for partition, (first, end, rows) in sorted(opened[0].items()):
            got = self.fetch(known, who, (partition, first, end), batch, accept)
            assert got is None or got == rows

    @precondition(lambda self: any(c.incarnation for c in self.checkpoints))
    @rule(
        which=pick,
        run=pick,
        partition=partitions,
        first=st.integers(0, 20),
        count=st.integers(1, 20),
        batch=versions,
        accept=st.booleans(),
    )
    def read_some(
        self, which: int, run: int, partition: int, first: int, count: int, batch: int, accept: bool
    ) -> None:
        known = self.checkpoint(which)
        if known.incarnation:
            who = (known.name, known.incarnation, self.run(run))
            self.fetch(known, who, (partition, first, first + count), (known.query, batch), accept)

    def fetch(
        self,
        known: Checkpoint,
        who: tuple[str, bytes, int],
        where: tuple[int, int, int],
        batch: tuple[str, int],
        accept: bool,
    ) -> int | None:
        """Returns how many rows came, None for an error."""
        spark_run = f"spark run of {who[2]}"
        opened = wire.OpenFetch(
            who=commands.who(known.destination, known.destination_id, *who),
            partition=where[0],
            first=where[1],
            last=where[2],
            query_id=batch[0],
            batch_id=batch[1],
            spark_run_id=spark_run,
            accept_data_loss=accept,
        )
        there = (known.destination, known.destination_id)
        views: list[RowsView] = []
        expected = self.both(
            lambda: [
                (number, row.offset)
                for number, row, _ in rules.fetch(self.model, *there, who, where, batch, spark_run, accept)
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
                plan.failed + kept.delivery_count
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
            lambda: plans.acknowledge_range(
                self.model, known.destination, known.destination_id, who, through
            ),
            wire.AcknowledgeRangeRequest(
                who=commands.who(known.destination, known.destination_id, *who),
                end=commands.positions(through),
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
