"""Which rows a durable consumer gets next: plans, and the incarnations they are made for.

Rules: docs/rules.md, "Plans and delivery numbers".
"""

from __future__ import annotations

from mq_broker.core.handlers import admin, choosing, incarnations
from mq_broker.core.ledger import Ledger
from mq_broker.core.model.destination import Destination
from mq_broker.core.model.durable_consumer import Consumer, Plan
from mq_broker.core.model.selection import Selection
from mq_broker.core.model.state import State
from mq_wire.errors import (
    CheckpointTooOld,
    LimitExceeded,
)
from mq_wire.v1 import subscribe_pb2 as wire
from mq_wire.v1.common_pb2 import Positions


def plan(ledger: Ledger, request: wire.PlanRequest) -> wire.PlanResponse:
    """Acknowledges everything before `start` and assigns what comes next.

    A plan that was read or acknowledged keeps its boundary; one that nobody read is cut anew under fresh
    numbers. With too little ready the answer is idle.

    Nothing is acknowledged of an incarnation of which nobody has read a row yet. A checkpoint that lost its
    first batch begins with such a one, and a sink that knows the number of a batch (Spark's file sink) passes
    over it without a task: the rows wait until something is read, which tells whether this reader may go on,
        or somebody acknowledges them by name.
    """
    who = request.who
    incarnations.check_cluster(ledger.state, who)
    if not who.incarnation and not who.destination_id:
        destination = admin.find_or_create(ledger, who.destination, request.create)
    else:
        destination = ledger.state.destination_of(who.destination, who.destination_id)
    consumer = incarnations.find(ledger, destination, who)
    unread: list[Plan] = []
    lost = False
    if consumer is not None:
        through, lost = _start_of(consumer, request)
        if consumer.is_unproven:
            _check_unread(ledger.state, destination, consumer, through)
        else:
            acknowledge(ledger, destination, consumer, through)
        later = consumer.used_after(through)
        if later is not None:
            # Its number may have been used: a checkpoint that lost it gets the same boundary, whatever is
            # kept of the rows.
            _check_one_queue(ledger.state, destination, consumer)
            return _answer(ledger, destination, consumer, later.end, later.rows, lost)
        unread = [plan for plan in consumer.pending() if plan.number > through]
    if unread and consumer is not None:
        ledger.record(
            plans_returned={
                "destination": destination.number,
                "incarnation": consumer.incarnation,
                "plans": [p.number for p in unread],
            }
        )
    if consumer is None and destination.queue.consumer_named(who.consumer) is not None:
        # A take-over comes first: what the old checkpoint holds goes back, and may be all there is to plan.
        consumer = incarnations.mint(ledger, destination, who)
    if choosing.available(destination, request) < max(request.min_rows, 1):
        return _idle(ledger, destination)
    chosen = choosing.choose(destination, request)
    if consumer is None:
        consumer = incarnations.mint(ledger, destination, who)
    _record_plan(ledger, destination, consumer, who.run, chosen)
    return _answer(
        ledger, destination, consumer, consumer.next, sum(selection.rows for selection in chosen), lost
    )


def _start_of(consumer: Consumer, request: wire.PlanRequest) -> tuple[int, bool]:
    """Returns the last plan before the start that is asked for, and whether data between them is lost."""
    if not request.who.incarnation:
        return consumer.oldest - 1, False
    start = dict(request.start.next)
    return consumer.locate_kept(start) if request.accept_data_loss else (consumer.locate(start), False)


def _check_unread(state: State, destination: Destination, consumer: Consumer, through: int) -> None:
    """Refuses ever more plans of an incarnation of which nobody has read a row: nothing acknowledges them.

    Raises:
        LimitExceeded: there are as many one behind the other as may be.
    """
    plans, limit = consumer.passed_over(through), state.settings.unread_plans_max
    if plans >= limit:
        raise LimitExceeded(
            f"consumer {consumer.label!r} of queue {destination.name!r} has planned {plans} batches and "
            f"read none of them, the limit is "
            f"{limit}: a sink that knows the numbers of these batches passes over them. Start the query "
            f"with a new checkpoint and an empty "
            "sink, and free what is held with `mq consumers release`"
        )


def _check_one_queue(state: State, destination: Destination, consumer: Consumer) -> None:
    """Refuses a checkpoint that has lost a batch, where its query reads several queues.

    One queue gets the same rows again. Another one may have been idle in that batch: its new rows would be
    planned under a number that a sink knows, and a sink that passes over the batch without reading never
    asks.

    Raises:
        CheckpointTooOld: the query reads other queues too.
    """
    for query in state.queries.values():
        reader = query.readers.get(destination.number)
        if (
            reader is not None
            and reader.incarnation == consumer.incarnation
            and sum(n in state.by_number for n in query.readers) > 1
        ):
            raise CheckpointTooOld(
                f"query {query.query_id} has used the batch that comes next before: the checkpoint lost "
                f"its last batches. It reads several "
                "queues, and what they held then cannot be put together again. Start the query with a new "
                "checkpoint; what it had read and "
                "not acknowledged is given back by `mq consumers release`, or to a query with the same "
                "consumer names"
            )


def acknowledge(ledger: Ledger, destination: Destination, consumer: Consumer, through: int) -> int:
    """Acknowledges all plans up to `through`; returns how many rows that were pending."""
    if through <= consumer.acknowledged_plan or through < consumer.oldest:
        return 0
    rows = sum(plan.rows for plan in consumer.pending() if plan.number <= through)
    ledger.record(
        plans_acknowledged={
            "destination": destination.number,
            "incarnation": consumer.incarnation,
            "through": through,
        }
    )
    ledger.state.totals.acknowledged += rows
    return rows


def _record_plan(
    ledger: Ledger, destination: Destination, consumer: Consumer, run: int, chosen: list[Selection]
) -> None:
    assignments = [
        {
            "partition": number,
            "first": consumer.next.get(number, 0),
            "lanes": [
                {"priority": priority, "offsets": offsets.serialize()}
                for priority, offsets in selection.lanes
            ],
        }
        for number, selection in enumerate(chosen)
        if selection.rows
    ]
    ledger.record(
        planned={
            "destination": destination.number,
            "incarnation": consumer.incarnation,
            "plan": consumer.next_plan,
            "run": run,
            "assignments": assignments,
        }
    )


def _answer(
    ledger: Ledger, destination: Destination, consumer: Consumer, end: dict[int, int], rows: int, lost: bool
) -> wire.PlanResponse:
    return wire.PlanResponse(
        cluster_id=ledger.state.cluster_id,
        destination_id=destination.destination_id,
        incarnation=consumer.incarnation,
        end=Positions(next=end),
        rows=rows,
        lag=lag_of(ledger, destination),
        data_loss=lost,
    )


def _idle(ledger: Ledger, destination: Destination) -> wire.PlanResponse:
    return wire.PlanResponse(
        idle=True,
        cluster_id=ledger.state.cluster_id,
        destination_id=destination.destination_id,
        lag=lag_of(ledger, destination),
    )


def lag_of(ledger: Ledger, destination: Destination) -> wire.Lag:
    """Returns what is still waiting, for progress reports."""
    oldest = destination.oldest_time_us(ledger.monotonic_us)
    return wire.Lag(
        rows=destination.queue.ready_rows(),
        bytes=admin.ready_bytes(destination),
        oldest_age_ms=max(ledger.now_us - oldest, 0) // 1000 if oldest is not None else 0,
        duplicates=admin.duplicates_of(ledger.state, destination),
    )
