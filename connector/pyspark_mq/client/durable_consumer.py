"""A durable consumer: one that the broker remembers, and that gets the same rows again until it says that it
is done with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from mq_wire.errors import InvalidRequest, MqError, WrongBroker
from mq_wire.limits import PROTOCOL_VERSION
from mq_wire.v1 import admin_pb2, common_pb2, subscribe_pb2
from pyspark_mq.client.boundary import Boundary
from pyspark_mq.client.connection import Connection
from pyspark_mq.client.run import Run, patience_s

#: Feature of brokers that know who reads what in a query.
_JOINS_QUERIES: Final = "queries"


class Plan(NamedTuple):
    """One decision of what a consumer gets next.

    Attributes:
        end: where the range ends that begins at the `start` of the question; None = nothing is ready.
        lag: how much waits in the queue.
        data_loss: whether rows from `start` on are no longer kept, and were passed over.
    """

    end: Boundary | None
    lag: subscribe_pb2.Lag
    data_loss: bool


class Opened(NamedTuple):
    """A range that is settled for this start.

    Attributes:
        who: the name under which its parts are read, in this process or another.
        parts: numbers, rows and bytes in each partition.
        data_loss: whether rows of it are no longer kept, and were left out.
    """

    who: subscribe_pb2.ConsumerRef
    parts: Sequence[subscribe_pb2.RangePart]
    data_loss: bool


class DurableConsumer:
    """One start of a reader that the broker knows by its name, or by the incarnation that the first plan
    gives it.

    Between two boundaries lies a range of rows that are this consumer's alone. In this order:

        planned = consumer.plan(done)             # what comes next; acknowledges everything before `done`
        opened = consumer.open(done, planned.end) # what is delivered is settled for this start
        Fetch(...) of each of opened.parts        # any number of times, also elsewhere, as opened.who
        consumer.acknowledge(planned.end)         # or the next plan() from there on

    Whoever keeps `done` in the same step as the effects of the rows has each row exactly once: after a crash
    the same question has the same answer. The broker and the boundaries hold all state, this object none that
    matters. What was planned and never read goes back when the consumer is closed or its process ends.

    A consumer that has no boundary yet belongs to no broker: where another one stands at the address it
    begins anew there. One that has refuses, with WrongBroker.

    Args:
        connection: used, and left open.
        queue: where from.
        name: durable name; empty = known by its incarnation only.
        accept_data_loss: whether rows that are no longer kept are passed over instead of refused with
            DataLost.
    """

    def __init__(
        self, connection: Connection, queue: str, name: str = "", *, accept_data_loss: bool = False
    ) -> None:
        self._connection = connection
        self._queue, self._name = queue, name
        self._accept_data_loss = accept_data_loss
        self._run: Run | None = None
        self._cluster_id = b""  # of the broker that gave the run
        self._available_below: dict[int, int] | None = None  # log offsets to stop at, by partition

    def close(self) -> None:
        """Ends the run; what it planned and nobody read goes back. The end of the process does the same."""
        if self._run is not None:
            self._run.close()

    # -- the queue -----------------------------------------------------------------------------------------

    def create_queue(self) -> bool:
        """Creates the queue where it is missing; returns whether it was."""
        request = admin_pb2.DescribeDestinationRequest(name=self._queue, create=True)
        return bool(self._call("DescribeDestination", request).created)

    def stop_at_end(self) -> None:
        """Lets plans hold only what is in the queue now.

        Raises:
            UnknownDestination: the queue does not exist.
        """
        described = self._call("DescribeDestination", admin_pb2.DescribeDestinationRequest(name=self._queue))
        self._available_below = {each.partition: each.end_offset for each in described.partitions}

    @property
    def joins_queries(self) -> bool:
        """Whether the broker knows who reads what in a query; asks it."""
        request = admin_pb2.HelloRequest(client=self._connection.client, protocol=PROTOCOL_VERSION)
        return _JOINS_QUERIES in self._call("Hello", request).features

    # -- ranges --------------------------------------------------------------------------------------------

    def plan(
        self,
        start: Boundary,
        *,
        max_rows: int = 0,
        max_bytes: int = 0,
        min_rows: int = 0,
        wait_ms: int = 0,
        create: bool = False,
    ) -> Plan:
        """Says that everything before `start` is done, and returns what comes next.

        Args:
            start: where the last range ended; an initial one at the beginning.
            max_rows, max_bytes: at most so much, one row at least; 0 = no limit.
            min_rows: with fewer ready nothing is.
            wait_ms: how long the broker may wait for something to become ready.
            create: whether a queue that is missing is created.

        Raises:
            RunFenced: a later start has taken over.
            WrongBroker: `start` is of another broker.
            DataLost: rows from `start` on are no longer kept.
            MqError: the broker refuses, or stays away.
        """
        request = subscribe_pb2.PlanRequest(
            who=self.who(start),
            start=_positions(start.positions),
            max_rows=max_rows,
            max_bytes=max_bytes,
            min_rows=min_rows,
            bounded=self._available_below is not None,
            available_below=_positions(self._available_below or {}),
            wait_ms=wait_ms,
            create=create,
            accept_data_loss=self._accept_data_loss,
        )
        try:
            plan = self._call("Plan", request)
        except WrongBroker:
            if not start.initial:
                raise
            self._begin_anew()
            request.who.CopyFrom(self.who(start))
            request.available_below.CopyFrom(_positions(self._available_below or {}))
            plan = self._call("Plan", request)
        return Plan(None if plan.idle else self._end_of(plan), plan.lag, plan.data_loss)

    def open(self, start: Boundary, end: Boundary) -> Opened:
        """Opens a range that was planned, which settles what this start is delivered of it.

        Raises:
            RunFenced: a later start has taken over.
            DataLost: rows of it are no longer kept.
            MqError: the broker refuses, or stays away.
        """
        who = self.who(end)
        request = subscribe_pb2.OpenRangeRequest(
            who=who,
            start=_positions(start.positions),
            end=_positions(end.positions),
            accept_data_loss=self._accept_data_loss,
        )
        opened = self._call("OpenRange", request)
        return Opened(who, opened.parts, opened.data_loss)

    def acknowledge(self, end: Boundary) -> None:
        """Says that everything before `end` is done."""
        request = subscribe_pb2.AcknowledgeRangeRequest(who=self.who(end), end=_positions(end.positions))
        self._call("AcknowledgeRange", request)

    def who(self, at: Boundary) -> subscribe_pb2.ConsumerRef:
        """Returns the name under which the broker knows this start, for ranges that end at `at`."""
        try:
            number = self._hold_run()
        except (WrongBroker, InvalidRequest) as error:  # what brokers say of a run that is not theirs
            if not at.initial:
                self._check_broker(at, error)
                raise
            self._begin_anew()
            number = self._hold_run()
        return subscribe_pb2.ConsumerRef(
            destination=self._queue,
            # Before there is a boundary the run says which broker is meant: its number is somebody else's at
            # another one.
            cluster_id=at.cluster_id or self._cluster_id,
            destination_id=at.destination_id,
            consumer=self._name,
            incarnation=at.incarnation,
            run=number,
        )

    def _end_of(self, plan: subscribe_pb2.PlanResponse) -> Boundary:
        return Boundary(
            destination=self._queue,
            consumer=self._name,
            cluster_id=plan.cluster_id,
            destination_id=plan.destination_id,
            incarnation=plan.incarnation,
            positions=plan.end.next,
        )

    # -- the broker ----------------------------------------------------------------------------------------

    def _hold_run(self) -> int:
        if self._run is None:
            self._run = Run(self._connection)
        number = self._run.number()
        if not self._cluster_id:
            self._cluster_id = self._connection.cluster_id
        return number

    def _check_broker(self, at: Boundary, cause: MqError) -> None:
        there = self._connection.cluster_id
        if there != at.cluster_id:
            raise WrongBroker(
                f"the checkpoint belongs to broker {at.cluster_id.hex()}, and at "
                f"{self._connection.address} is {there.hex()}: correct "
                "option broker, or start with another checkpoint"
            ) from cause

    def _begin_anew(self) -> None:
        """Takes a run of the broker that is at the address now."""
        if self._run is not None:
            self._run.close()
        self._run, self._cluster_id = None, b""
        if self._available_below is not None:
            self.stop_at_end()

    def _call(self, method: str, request: Any) -> Any:
        return self._connection.call(method, request, retry_timeout=patience_s(self._connection))


def _positions(numbers: Mapping[int, int]) -> common_pb2.Positions:
    return common_pb2.Positions(next=dict(numbers))
