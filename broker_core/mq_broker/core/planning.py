"""Which rows a durable consumer gets next: plans, and the incarnations they are made for.

Rules: docs/rules.md, "Plans and delivery numbers".
"""

from __future__ import annotations

from typing import Final

from mq_broker.core import admin, staging
from mq_broker.core.destination import Destination
from mq_broker.core.durable_consumer import Consumer, Plan
from mq_broker.core.lanes import choose
from mq_broker.core.ledger import Ledger
from mq_broker.core.selection import Selection
from mq_broker.core.state import State
from mq_wire.errors import (
    CheckpointTooOld,
    IncarnationSuperseded,
    InvalidRequest,
    LimitExceeded,
    OffsetsUnknown,
    RunFenced,
    SharedRange,
    WrongBroker,
)
from mq_wire.limits import PRIORITIES
from mq_wire.names import check_client_name
from mq_wire.v1 import subscribe_pb2 as wire
from mq_wire.v1.common_pb2 import Positions

PLAN_ROWS_MAX: Final = 8_000_000
#: What somebody can do about two readers of one queue in one query.
SHARED_REMEDY: Final = (
    "Read the queue once and reuse the DataFrame, and start the query with a new checkpoint"
)
#: Bytes of a plan's bitmaps at most: they must fit into one journal entry, also in a segment that is kept
#: back for state.
PLAN_BYTES_MAX: Final = 4 << 20
#: What a row takes in a bitmap at most, alone in its container; and what a container takes.
_ROW_BYTES: Final = 32
_CONTAINER_BYTES: Final = 8208
_CONTAINER_BITS: Final = 16
#: A plan that fills this share of its byte limit is not tried any larger.
_FULL_ENOUGH: Final = 0.9


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
    check_cluster(ledger.state, who)
    if not who.incarnation and not who.destination_id:
        destination = admin.find_or_create(ledger, who.destination, request.create)
    else:
        destination = ledger.state.destination_of(who.destination, who.destination_id)
    consumer = find(ledger, destination, who)
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
        consumer = _mint(ledger, destination, who)
    if _available(destination, request) < max(request.min_rows, 1):
        return _idle(ledger, destination)
    chosen = _choose(destination, request)
    if consumer is None:
        consumer = _mint(ledger, destination, who)
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


def check_cluster(state: State, who: wire.ConsumerRef) -> None:
    if who.cluster_id and who.cluster_id != state.cluster_id:
        raise WrongBroker(
            f"the query began with broker {who.cluster_id.hex()}, this one is {state.cluster_id.hex()}: "
            f"check the address, "
            "or start the query with a new checkpoint"
        )


def find(ledger: Ledger, destination: Destination, who: wire.ConsumerRef) -> Consumer | None:
    """Returns the consumer that asks, adopting its run; None where one has to be minted.

    Raises:
        RunFenced, IncarnationSuperseded, OffsetsUnknown, InvalidRequest.
    """
    if who.consumer:
        check_client_name(who.consumer, "consumer")
    check_run(ledger.state, who)
    if who.incarnation:
        consumer = destination.queue.consumers.get(who.incarnation)
        if consumer is None:
            raise ended(destination, who)
        if consumer.name != who.consumer:
            raise InvalidRequest(
                f"the checkpoint belongs to consumer {consumer.name!r}, the option says {who.consumer!r}: "
                f"restore the "
                "option, or use a new checkpoint"
            )
    else:
        named = destination.queue.consumer_named(who.consumer)
        consumer = (
            (named if named is not None and named.minted_by_run == who.run else None)
            if who.consumer
            else destination.queue.minted_by(who.run)
        )
    if consumer is not None:
        if who.run < consumer.run:
            raise RunFenced(
                f"run {who.run} of consumer {consumer.label!r} was replaced by run {consumer.run}: another "
                f"start of the query is at work"
            )
        if who.run > consumer.run:
            # Written down: the older run stays refused after a restart too.
            ledger.record(
                range_opened={
                    "destination": destination.number,
                    "incarnation": consumer.incarnation,
                    "run": who.run,
                }
            )
    return consumer


def check_run(state: State, who: wire.ConsumerRef) -> None:
    if not 0 < who.run <= state.epoch:
        raise InvalidRequest(f"run {who.run} was never given by this broker: hold a run first")


def ended(
    destination: Destination, who: wire.ConsumerRef
) -> IncarnationSuperseded | OffsetsUnknown | SharedRange:
    """Returns the error for an incarnation that is not there (any more)."""
    known = destination.queue.ended.get(who.incarnation)
    if known is None:
        return OffsetsUnknown(
            f"destination {destination.name!r} knows no consumer {who.incarnation.hex()}: was the broker "
            f"restored from an older backup? "
            "Start the query with a new checkpoint"
        )
    label = known.consumer or who.incarnation.hex()
    if known.shared:
        return SharedRange(
            f"consumer {label!r} was one of two readers of queue {destination.name!r} in one query, or its "
            f"checkpoint lost its first "
            f"batch: its rows went back to the queue. {SHARED_REMEDY}"
        )
    if not known.successor:
        return IncarnationSuperseded(
            f"consumer {label!r} was released by an operator, its rows went to others: start the query "
            f"with a new checkpoint"
        )
    return IncarnationSuperseded(
        f"consumer {label!r} lives on as incarnation {known.successor.hex()} under another checkpoint; "
        f"this one "
        f"({who.incarnation.hex()}) is over. Use the newer checkpoint, or another consumer name. If one "
        f"query reads this queue twice "
        "(a self-join), read it once and reuse the DataFrame"
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


def _mint(ledger: Ledger, destination: Destination, who: wire.ConsumerRef) -> Consumer:
    before = destination.queue.consumer_named(who.consumer)
    if before is None:
        _check_consumers(ledger.state)
    incarnation = ledger.new_id()
    if before is not None:
        if who.run < before.run:
            raise RunFenced(
                f"run {who.run} of consumer {before.label!r} was replaced by run {before.run}: another "
                f"start of the query is at work"
            )
        end_consumer(ledger, destination, before, incarnation)
    ledger.record(
        consumer_minted={
            "destination": destination.number,
            "consumer": who.consumer,
            "incarnation": incarnation,
            "run": who.run,
        }
    )
    return destination.queue.consumers[incarnation]


def _check_consumers(state: State) -> None:
    limit = state.settings.consumers_max
    if state.consumers_total >= limit:
        raise LimitExceeded(
            f"the broker has {state.consumers_total} durable consumers, the limit is {limit} "
            f"(consumers_max): end those whose checkpoints "
            "are gone with `mq consumers release`, or give queries that begin anew each time a consumer name"
        )


def end_consumer(
    ledger: Ledger, destination: Destination, consumer: Consumer, successor: bytes, *, shared: bool = False
) -> tuple[int, int]:
    """Takes a consumer's rows away: returns how many went back, and how many count as acknowledged since our
    sink committed their batch.

    Staged sets of batches that read the freed rows are dropped in the same turn.
    """
    pending = list(consumer.pending())
    done = [plan for plan in pending if plan.committed]
    freed = [plan for plan in pending if plan not in done]
    rows = sum(plan.rows for plan in freed), sum(plan.rows for plan in done)
    staging.discard_readers(ledger, {batch for plan in freed for batch in plan.batches})
    ledger.record(
        consumer_ended={
            "destination": destination.number,
            "incarnation": consumer.incarnation,
            "successor": successor,
            "acknowledged": [plan.number for plan in done],
            "returned": [plan.number for plan in freed],
            "shared": shared,
        }
    )
    return rows


def _below(destination: Destination, request: wire.PlanRequest) -> list[int | None]:
    return [
        request.available_below.next.get(n, 0) if request.bounded else None
        for n in range(len(destination.partitions))
    ]


def _available(destination: Destination, request: wire.PlanRequest) -> int:
    """Returns how many rows there are to choose from: the minimum is asked of these, not of what the maximum
    leaves of them.
    """
    if not request.bounded:
        return destination.queue.ready_rows()
    below = request.available_below.next
    rows = 0
    for priority, numbers in enumerate(destination.queue.ready.partitions):
        for number in numbers:
            rows += destination.queue.backlogs[number].ready.count_below(priority, below.get(number, 0))
    return rows


def _choose(destination: Destination, request: wire.PlanRequest) -> list[Selection]:
    """Returns the next rows within the limits of rows and bytes, one row at least: fewer rows are chosen
    anew, so that priority rules.
    """
    lanes, below = [backlog.ready for backlog in destination.queue.backlogs], _below(destination, request)
    rows = min(request.max_rows or PLAN_ROWS_MAX, PLAN_ROWS_MAX)
    chosen = choose(lanes, rows, below)
    while _entry_bytes(chosen) > PLAN_BYTES_MAX:
        chosen = choose(lanes, sum(selection.rows for selection in chosen) // 2, below)
    size = _bytes(destination, chosen)
    if not request.max_bytes or size <= request.max_bytes:
        return chosen
    # More rows never have fewer bytes, so halving finds the number; the first guess, by the mean size, is
    # mostly good enough.
    best, few, many = choose(lanes, 1, below), 1, sum(selection.rows for selection in chosen)
    guess = max(many * request.max_bytes // size, few + 1)
    while few < guess < many:
        chosen = choose(lanes, guess, below)
        size = _bytes(destination, chosen)
        if size > request.max_bytes:
            many = guess
        else:
            best, few = chosen, guess
            if size >= request.max_bytes * _FULL_ENOUGH:
                break
        guess = (few + many) // 2
    return best


def _entry_bytes(chosen: list[Selection]) -> int:
    if sum(selection.rows for selection in chosen) * _ROW_BYTES <= PLAN_BYTES_MAX:
        return 0  # whatever the pattern
    return sum(len(offsets.serialize()) for selection in chosen for _, offsets in selection.lanes)


def plan_bytes(state: State, request: wire.PlanRequest) -> int:
    """Returns what a plan may take in the journal at most: by its rows, and by how far the rows that are
    there lie apart.
    """
    destination = state.by_name.get(request.who.destination)
    if destination is None:
        return 0
    containers = sum(
        ((partition.log.next_offset - destination.floor(number)) >> _CONTAINER_BITS) + 2
        for number, partition in enumerate(destination.partitions)
    )
    by_rows = min(request.max_rows or PLAN_ROWS_MAX, destination.enqueued) * _ROW_BYTES
    return min(by_rows, containers * PRIORITIES * _CONTAINER_BYTES, PLAN_BYTES_MAX)


def _bytes(destination: Destination, chosen: list[Selection]) -> int:
    return sum(
        destination.partitions[n].log.index().bytes_of(selection) for n, selection in enumerate(chosen)
    )


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
