"""A broker with one queue, as most tests of single rules need it, and a query that reads from it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from mq_broker.core.commands import (
    Acknowledge,
    AddCredit,
    CloseRun,
    CloseSession,
    HandOver,
    HoldRun,
    OpenSession,
    Release,
    ReleaseView,
    ResolveFetch,
    RowRanges,
    RowsView,
    SessionEnd,
    Settings,
)
from mq_broker.core.model.destination import Destination
from mq_broker.core.model.subscription import Subscription
from mq_wire.v1 import produce_pb2 as produce
from mq_wire.v1 import subscribe_pb2 as wire
from mq_wire.v1.consume_pb2 import OpenConsumer
from spark_tests.support.worlds import commands
from spark_tests.support.worlds.lists import ListWorld, ReadRow

QUEUE = "q"
WHO = ("a" * 32, 0)
Numbers = dict[int, int]


def _named(ranges: Iterable[tuple[int, int, int]]) -> RowRanges:
    return [
        (partition, np.array([start], np.int64), np.array([stop], np.int64))
        for partition, start, stop in ranges
    ]


class Scene(ListWorld):
    """`publish` numbers values by itself: the row at offset 3 of partition 1 is b"1:3"."""

    def __init__(self, partitions: int = 1, settings: Settings | None = None) -> None:
        super().__init__(settings or Settings(default_partitions=partitions))
        self.sequences: Numbers = {}
        self.delivered: dict[int, list[ReadRow]] = {}

    def publish(self, *priorities: int, partition: int = 0, size: int = 0) -> None:
        """One batch with a row for each priority; `size` fills values up."""
        first = self.sequences.get(partition, 0)
        rows = [
            ((b"%d:%d" % (partition, first + at)).ljust(size, b"."), priority)
            for at, priority in enumerate(priorities)
        ]
        self.handle(commands.publish(QUEUE, partition, WHO, first, rows))
        self.sequences[partition] = first + len(rows)

    @property
    def destination(self) -> Destination:
        return self.broker.state.by_name[QUEUE]

    @property
    def queue(self) -> Subscription:
        return self.destination.queue

    def ready(self, partition: int = 0) -> list[int]:
        """Offsets that are ready, next one first."""
        return [
            offset
            for _, offsets in self.queue.backlogs[partition].ready.selection().lanes
            for offset in offsets
        ]

    def read_all(self, views: list[RowsView]) -> list[ReadRow]:
        rows = [row for view in views for row in self.read(view)]
        for view in views:
            self.handle(ReleaseView(view))
        return rows

    def run(self) -> int:
        run: int = self.handle(HoldRun(0))
        return run

    def close_run(self, run: int) -> None:
        self.handle(CloseRun(run))

    def query(self, name: str = "", run: int = 0) -> Query:
        return Query(self, name, run or self.run())

    # Connected consumers.

    def connect(self, rows: int, size: int = 1 << 40, batch: int = 0) -> int:
        opened = OpenConsumer(destination=QUEUE, batch_rows_max=batch, create=True)
        opened.credit.rows, opened.credit.bytes = rows, size
        views: list[RowsView] = []
        session: int = self.handle(OpenSession(opened, views.append)).session
        self.delivered[session] = []
        self._views = {**getattr(self, "_views", {}), session: views}
        return session

    def deliveries(self, session: int) -> list[list[ReadRow]]:
        """Lets rows go; what arrived since the last time, view by view."""
        self.dispatch()
        views = self._views[session]
        batches = [self.read_all([view]) for view in views]
        views.clear()
        self.delivered[session] += [row for batch in batches for row in batch]
        return batches

    def received(self, session: int) -> list[ReadRow]:
        return [row for batch in self.deliveries(session) for row in batch]

    def credit(self, session: int, rows: int, size: int = 0) -> None:
        self.handle(AddCredit(session, rows, size))

    def acknowledge(self, session: int, *ranges: tuple[int, int, int]) -> int:
        """Ranges are (partition, first, after the last)."""
        return int(self.handle(Acknowledge(session, _named(ranges))))

    def disconnect(self, session: int, end: SessionEnd = SessionEnd.GOODBYE) -> None:
        self.handle(CloseSession(session, end))

    def hand_over(self, session: int, *ranges: tuple[int, int, int]) -> None:
        """Ranges as in `acknowledge`."""
        self.handle(HandOver(session, _named(ranges)))

    def release(self, session: int, *ranges: tuple[int, int, int], uncounted: bool = False) -> int:
        return int(self.handle(Release(session, _named(ranges), uncounted)))

    # Staged sets.

    def _epoch(self, query: str) -> int:
        known = self.broker.state.queries.get(query)
        return max(known.epoch(None), 1) if known is not None else 1

    def stage(self, token: int, first: int = 0, rows: int = 2, **more: Any) -> produce.Receipt:
        """`more`: queue, partition, epoch (one that may write), query, batch, target (None = not said),
        values, skip.
        """
        query = more.get("query", "q1")
        epoch = more.get("epoch") or self._epoch(query)
        target = more.get("target")
        staged = produce.StagedSet(
            token=token.to_bytes(16, "big"),
            epoch=epoch,
            query_id=query,
            batch_id=more.get("batch", 0),
            target=target,
        )
        values = more.get("values") or [(b"%d" % at, 4) for at in range(first, first + rows)]
        receipt: produce.Receipt = self.handle(
            commands.publish(
                more.get("queue", QUEUE), more.get("partition", 0), ("", 0), first, values, staged=staged
            )
        )
        return receipt

    def commit(self, *tokens: tuple[int, int], **more: Any) -> produce.CommitStagedResponse:
        """Tokens are (number, rows). `more`: fields of the request."""
        named = [produce.StagedToken(token=token.to_bytes(16, "big"), rows=rows) for token, rows in tokens]
        rows = more.pop("rows", sum(count for _, count in tokens))
        request = produce.CommitStagedRequest(
            tokens=named, owner=more.pop("owner", "query:q1"), rows=rows, **more
        )
        reply: produce.CommitStagedResponse = self.handle(request)
        return reply


class Query:
    """A durable consumer, with the offsets that its checkpoint would hold."""

    def __init__(self, scene: Scene, name: str, run: int) -> None:
        self.scene, self.name, self.run = scene, name, run
        self.destination_id = self.incarnation = b""
        self.next: Numbers = {}

    def copy(self, run: int = 0) -> Query:
        """The same checkpoint in other hands."""
        other = Query(self.scene, self.name, run or self.run)
        other.destination_id, other.incarnation, other.next = self.destination_id, self.incarnation, self.next
        return other

    @property
    def who(self) -> wire.ConsumerRef:
        return commands.who(QUEUE, self.destination_id, self.name, self.incarnation, self.run)

    def plan(self, start: Numbers | None = None, **limits: Any) -> wire.PlanResponse:
        """Asks for the next boundary behind `start`, by default behind the last one; idle leaves everything
        as it is.
        """
        where = commands.positions(self.next if start is None else start)
        below = limits.pop("below", None)
        if below is not None:
            limits |= {"bounded": True, "available_below": commands.positions(below)}
        reply: wire.PlanResponse = self.scene.handle(
            wire.PlanRequest(who=self.who, start=where, create=True, **limits)
        )
        if not reply.idle:
            self.destination_id, self.incarnation, self.next = (
                reply.destination_id,
                reply.incarnation,
                dict(reply.end.next),
            )
        return reply

    def open(self, start: Numbers, end: Numbers, **more: Any) -> list[tuple[int, int, int, int]]:
        """(partition, first, last, rows) of each part."""
        request = wire.OpenRangeRequest(
            who=self.who, start=commands.positions(start), end=commands.positions(end), **more
        )
        return [
            (part.partition, part.first, part.last, part.rows) for part in self.scene.handle(request).parts
        ]

    def fetch(
        self, first: int, last: int, partition: int = 0, batch: tuple[str, int] = ("", 0), **more: Any
    ) -> list[ReadRow]:
        """`more`: spark_run_id (by default one for each run), accept_data_loss."""
        more.setdefault("spark_run_id", f"spark run of {self.run}")
        opened = wire.OpenFetch(
            who=self.who,
            partition=partition,
            first=first,
            last=last,
            query_id=batch[0],
            batch_id=batch[1],
            **more,
        )
        return self.scene.read_all(self.scene.handle(ResolveFetch(opened)))

    def read(
        self, start: Numbers, end: Numbers, batch: tuple[str, int] = ("", 0), **more: Any
    ) -> list[ReadRow]:
        """Opens the range and reads all of it."""
        parts = self.open(start, end, accept_data_loss=more.get("accept_data_loss", False))
        return [
            row
            for partition, first, last, _ in parts
            for row in self.fetch(first, last, partition, batch, **more)
        ]

    def join(self, query: str = "q1", batch: int = 0, spark_run_id: str = "") -> None:
        """Says that it reads in a batch of a query."""
        spark_run_id = spark_run_id or f"spark run of {self.run}"
        self.scene.handle(
            wire.JoinQueryRequest(who=self.who, query_id=query, batch_id=batch, spark_run_id=spark_run_id)
        )

    def acknowledge(self, end: Numbers) -> int:
        rows: int = self.scene.handle(
            wire.AcknowledgeRangeRequest(who=self.who, end=commands.positions(end))
        ).rows
        return rows
