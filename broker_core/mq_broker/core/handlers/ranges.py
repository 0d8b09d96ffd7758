"""Ranges of delivery numbers: opened by a run, read any number of times, acknowledged once (docs/rules.md,
"Plans and delivery numbers").
"""

from __future__ import annotations

import contextlib

from mq_broker.core.commands import CloseRun, HoldRun, ResolveFetch, RowsView
from mq_broker.core.handlers import incarnations, planning, queries, staging
from mq_broker.core.handlers.quarantine import check_kept
from mq_broker.core.handlers.views import browse, make_view
from mq_broker.core.ledger import Ledger
from mq_broker.core.model.destination import Destination
from mq_broker.core.model.durable_consumer import Consumer, Past, Plan
from mq_broker.core.model.selection import Selection
from mq_broker.core.model.state import State
from mq_wire.errors import (
    DataLost,
    InvalidRequest,
    LimitExceeded,
    OffsetsUnknown,
    StoreFull,
    UnknownDestination,
    WrongBroker,
)
from mq_wire.v1 import subscribe_pb2 as wire


def hold_run(ledger: Ledger, command: HoldRun) -> int:
    """Returns a new run number, or the given one, which a process holds again after its connection broke."""
    state = ledger.state
    if command.cluster_id and command.cluster_id != state.cluster_id:
        raise WrongBroker(
            f"run {command.run} belongs to broker {command.cluster_id.hex()}, this one is "
            f"{state.cluster_id.hex()}: check the address, "
            "or start the query with a new checkpoint"
        )
    if command.run > state.epoch:
        raise InvalidRequest(f"run {command.run} was never given by this broker: hold run 0 for a new one")
    run = command.run or staging.take_epoch(ledger).epoch
    state.presence.hold(run)
    return run


def close_run(ledger: Ledger, command: CloseRun) -> None:
    """Gives back what this run planned and nobody read. What was read is kept for its checkpoint.

    Where the disk is full that is left to `watch_runs`.
    """
    ledger.state.presence.release(command.run)
    with contextlib.suppress(StoreFull):
        _return_unread(ledger, command.run)


def _return_unread(ledger: Ledger, run: int) -> None:
    for destination, consumer in ledger.state.presence.of_run(run):
        unread = [plan.number for plan in consumer.pending() if not plan.read_by_run]
        if unread:
            ledger.record(
                plans_returned={
                    "destination": destination.number,
                    "incarnation": consumer.incarnation,
                    "plans": unread,
                }
            )


def watch_runs(ledger: Ledger) -> None:
    """Gives back what runs planned whose process did not come back within `run_grace_us` after this broker
    started.
    """
    presence = ledger.state.presence
    presence.look_at_runs(ledger.monotonic_us)
    for run in presence.silent.due(ledger.monotonic_us - ledger.state.settings.run_grace_us):
        _return_unread(ledger, run)
        # Once is enough: what is read later by a zombie reads as nothing.
        presence.silent.set(run, ledger.monotonic_us)


def forget_kept(ledger: Ledger, *, space_is_short: bool) -> None:
    """Lets go of rows that were acknowledged and are kept for a checkpoint, where nobody is there who could
    ask for them.

    That is after `kept_range_ttl_us` without the run of their consumer, where space is short after
    `run_grace_us`: a query may be about to come back. Boundaries stay.
    """
    state = ledger.state
    state.presence.look_at_consumers(ledger.monotonic_us)
    limit = state.settings.run_grace_us if space_is_short else state.settings.kept_range_ttl_us
    for number, incarnation in state.presence.alone.due(ledger.monotonic_us - limit):
        consumer = state.by_number[number].queue.consumers[incarnation]
        ledger.record(
            plans_forgotten={
                "destination": number,
                "incarnation": incarnation,
                "through": consumer.acknowledged_plan,
            }
        )


def open_range(ledger: Ledger, request: wire.OpenRangeRequest) -> wire.OpenRangeResponse:
    """Fixes what this run reads between two boundaries. A range that an earlier run read in vain counts one
    failed attempt.
    """
    destination, consumer = _consumer_of(ledger, request.who)
    start, end = dict(request.start.next), dict(request.end.next)
    if request.accept_data_loss:
        (after, from_lost), (through, to_lost) = consumer.locate_kept(start), consumer.locate_kept(end)
    else:
        after, through, from_lost, to_lost = consumer.locate(start), consumer.locate(end), False, False
    if through < after:
        raise InvalidRequest(
            f"a range of consumer {consumer.label!r} ends before it starts: pass offsets on unchanged"
        )
    gone = _gone(consumer, after, through)
    if gone and not request.accept_data_loss:
        raise DataLost(_not_kept(f"the range from {start} to {end}", consumer))
    plans = [plan for plan in consumer.between(after, through) if not plan.returned]
    damaged = False
    for plan in plans:
        for number, (_, selection) in plan.assignments.items():
            damaged = damaged or bool(destination.partitions[number].lost_of(selection))
            if not request.accept_data_loss:
                check_kept(destination, number, selection)
    fresh = [plan for plan in plans if plan.opened_by_run < request.who.run]
    last = consumer.plans.get(through)
    if last is not None and last.returned and not last.opened_by_run and through > after:
        fresh.append(last)  # a batch ends there, an empty one: who asks again gets the same
    if fresh:
        failed = [plan.number for plan in fresh if plan.pending and _read_in_vain(plan, request.who.run)]
        ledger.record(
            range_opened={
                "destination": destination.number,
                "incarnation": consumer.incarnation,
                "run": request.who.run,
                "plans": [plan.number for plan in fresh],
                "failed": failed,
            }
        )
    return wire.OpenRangeResponse(
        parts=_parts(destination, consumer, plans, after, through),
        data_loss=from_lost or to_lost or gone or damaged,
    )


def _gone(consumer: Consumer, after: int, through: int) -> bool:
    """Whether plans (after, through] had rows that are no longer kept."""
    return any(after < past.number <= through and not past.returned for past in consumer.past.values())


def _not_kept(asked: str, consumer: Consumer) -> str:
    return (
        f"{asked} of consumer {consumer.label!r} was acknowledged, and its rows are no longer kept: the "
        f"checkpoint lost its last batches, "
        "or is an old copy. Start with a new checkpoint. failOnDataLoss=false goes on without these rows: "
        "the batch is then empty, and a sink of format mq that has it already refuses it"
    )


def _read_in_vain(plan: Plan, run: int) -> bool:
    """Whether the last run that opened the plan also read it, and our sink has not committed what came
    of it.
    """
    return plan.read_since_opened and plan.read_by_run < run and not plan.committed


def _parts(
    destination: Destination, consumer: Consumer, plans: list[Plan], after: int, through: int
) -> list[wire.RangePart]:
    start, end = consumer.boundary(after), consumer.boundary(through)
    parts = []
    for number in sorted(end):
        if end[number] <= start.get(number, 0):
            continue
        index = destination.partitions[number].log.index()
        selections = [plan.assignments[number][1] for plan in plans if number in plan.assignments]
        rows = sum(selection.rows for selection in selections)
        size = sum(index.bytes_of(selection) for selection in selections)
        parts.append(
            wire.RangePart(
                partition=number, first=start.get(number, 0), last=end[number], rows=rows, bytes=size
            )
        )
    return parts


def _consumer_of(ledger: Ledger, who: wire.ConsumerRef) -> tuple[Destination, Consumer]:
    incarnations.check_cluster(ledger.state, who)
    if not who.incarnation:
        raise InvalidRequest(
            "a range needs the incarnation that its offsets were planned for: pass offsets on unchanged"
        )
    destination = ledger.state.destination_of(who.destination, who.destination_id)
    consumer = incarnations.find(ledger, destination, who)
    assert consumer is not None
    return destination, consumer


def acknowledge_range(ledger: Ledger, request: wire.AcknowledgeRangeRequest) -> wire.AcknowledgeRangeResponse:
    """Acknowledges everything before `end`."""
    destination, consumer = _consumer_of(ledger, request.who)
    through = consumer.locate(dict(request.end.next))
    return wire.AcknowledgeRangeResponse(rows=planning.acknowledge(ledger, destination, consumer, through))


def resolve_fetch(ledger: Ledger, command: ResolveFetch) -> list[RowsView]:
    """Returns the rows with delivery numbers [first, last) of a partition, or of a browse view.

    Never fenced: within a run the same numbers give the same rows until they are acknowledged, and returned
        ones nothing.

    Raises:
        DataLost: acknowledged, and no longer kept; or damaged on the disk, unless the caller accepts to read
            on without.
        OffsetsUnknown: beyond all that was ever assigned.
        CheckpointTooOld: cut after this batch was first read, so that its number stands for other rows.
        SharedRange: another consumer of this queue is read in the same query.
        LimitExceeded: too many queries, or too many batches that read one plan.
    """
    opened = command.open
    if opened.browse:
        return browse(ledger, opened)
    incarnations.check_cluster(ledger.state, opened.who)
    incarnations.check_run(ledger.state, opened.who)
    destination = ledger.state.destination_of(opened.who.destination, opened.who.destination_id)
    consumer = destination.queue.consumers.get(opened.who.incarnation)
    if consumer is None:
        raise incarnations.ended(destination, opened.who)
    if opened.partition >= len(destination.partitions):
        raise UnknownDestination(f"destination {destination.name!r} has no partition {opened.partition}")
    lost = _check_kept(consumer, opened)
    plans: list[Plan] = [
        plan for plan in consumer.plans.values() if not plan.returned and _overlaps(plan, opened)
    ]
    if not opened.accept_data_loss:
        for plan in plans:
            check_kept(destination, opened.partition, _asked_of(plan, opened))
    if opened.query_id:
        queries.check_batch(
            ledger, destination, opened, [past.serial for past in lost] + [plan.serial for plan in plans]
        )
        _check_batches(ledger.state, consumer, plans, opened)
        queries.join(ledger, destination, opened)
    _note_read(ledger, consumer, plans, opened, destination)
    return [view for plan in plans for view in _views(ledger.state, destination, plan, opened)]


def _overlaps(plan: Plan, opened: wire.OpenFetch) -> bool:
    if opened.partition not in plan.assignments:
        return False
    first, selection = plan.assignments[opened.partition]
    return max(first, opened.first) < min(first + selection.rows, opened.last)


def _check_kept(consumer: Consumer, opened: wire.OpenFetch) -> list[Past]:
    """Returns the plans that had rows among what is asked for, which are no longer kept; the caller has
    accepted that.
    """
    floor, following = consumer.floor.get(opened.partition, 0), consumer.next.get(opened.partition, 0)
    asked = f"deliveries {opened.first} to {opened.last} of partition {opened.partition}"
    if opened.last > following:
        raise OffsetsUnknown(
            f"{asked} of consumer {consumer.label!r} were never given (the next one is {following}): was "
            f"the broker restored from an older "
            "backup? Start a query with a new checkpoint"
        )
    lost = [past for past in consumer.past.values() if past.held(opened.partition, opened.first, opened.last)]
    if not opened.accept_data_loss and (lost or opened.first < floor):
        raise DataLost(_not_kept(asked, consumer))
    return lost


def _check_batches(state: State, consumer: Consumer, plans: list[Plan], opened: wire.OpenFetch) -> None:
    """Refuses to read one plan in ever more batches: a checkpoint gives it one.

    Raises:
        LimitExceeded: as many have read it as are remembered.
    """
    batch, limit = (opened.query_id, opened.batch_id), state.settings.batches_per_plan_max
    for plan in plans:
        if batch not in plan.batches and len(plan.batches) >= limit:
            raise LimitExceeded(
                f"what consumer {consumer.label!r} planned last was read in {limit} batches, and batch "
                f"{opened.batch_id} of query "
                f"{opened.query_id} would be one more: read one plan in one batch. Acknowledge it, or "
                f"release the consumer with "
                "`mq consumers release`"
            )


def _note_read(
    ledger: Ledger, consumer: Consumer, plans: list[Plan], opened: wire.OpenFetch, destination: Destination
) -> None:
    batch = (opened.query_id, opened.batch_id)
    new = [
        plan.number
        for plan in plans
        if plan.read_by_run < opened.who.run or (opened.query_id and batch not in plan.batches)
    ]
    if new or queries.is_new(ledger.state, opened):
        ledger.record(
            range_read={
                "destination": destination.number,
                "incarnation": consumer.incarnation,
                "run": opened.who.run,
                "plans": new,
                "query_id": opened.query_id,
                "batch_id": opened.batch_id,
            }
        )


def _asked_of(plan: Plan, opened: wire.OpenFetch) -> Selection:
    first, selection = plan.assignments[opened.partition]
    return selection.slice(max(opened.first - first, 0), opened.last - first)


def _views(state: State, destination: Destination, plan: Plan, opened: wire.OpenFetch) -> list[RowsView]:
    partition = destination.partitions[opened.partition]
    start = max(plan.assignments[opened.partition][0], opened.first)
    asked = _asked_of(plan, opened)
    stretches = asked.stretches(partition.lost_of(asked))
    state.totals.delivered += sum(rows.rows for _, rows in stretches)
    return [
        make_view(
            state,
            destination,
            opened.partition,
            rows,
            first_delivery=start + at,
            delivery_count=plan.failed_attempts + 1,
            counts=destination.queue.backlogs[opened.partition].counts,
        )
        for at, rows in stretches
    ]
