"""The durable consumers of a queue as a part of a snapshot, and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pyroaring import BitMap64

from mq_broker.core import parts
from mq_broker.core.model.destination import Destination
from mq_broker.core.model.durable_consumer import Consumer, Past, Plan, between, end_of, packed
from mq_broker.core.model.selection import Lane, Selection
from mq_broker.core.model.subscription import Ended
from mq_wire.store.v1 import store_pb2 as store


def export(key: str, destination: Destination) -> Iterator[tuple[str, bytes]]:
    """Yields the pieces of the part."""
    return parts.cut(key, (element.SerializeToString() for element in _elements(destination)))


def _elements(destination: Destination) -> Iterator[store.ConsumersPart]:
    for number, subscription in destination.subscriptions.items():
        for incarnation, how in subscription.ended.items():
            ended = store.EndedPart(incarnation=incarnation, subscription=number, **how._asdict())
            yield store.ConsumersPart(ended=[ended])
        for consumer in subscription.consumers.values():
            for part in _consumer(destination, consumer):
                part.subscription = number
                yield store.ConsumersPart(consumers=[part])


def _consumer(destination: Destination, consumer: Consumer) -> Iterator[store.ConsumerPart]:
    """Yields a consumer with as many plans as a piece holds, and then the rest of its plans under its
    incarnation alone.
    """
    part = store.ConsumerPart(
        consumer=consumer.name,
        incarnation=consumer.incarnation,
        run=consumer.run,
        minted_by_run=consumer.minted_by_run,
        next_plan=consumer.next_plan,
        next=consumer.next,
        floor=consumer.floor,
        minted_time_us=consumer.minted_time_us,
        acknowledged_plan=consumer.acknowledged_plan,
    )
    size = part.ByteSize()
    for plan in _plan_parts(destination, consumer):
        if size + plan.ByteSize() > parts.PIECE_BYTES:
            yield part
            part, size = store.ConsumerPart(incarnation=consumer.incarnation), 0
        part.plans.append(plan)
        size += plan.ByteSize()
    yield part


def _plan_parts(destination: Destination, consumer: Consumer) -> Iterator[store.PlanPart]:
    at = consumer.floor
    for past in consumer.past.values():
        yield _past_part(past, at)
        at = past.end
    for plan in consumer.plans.values():
        yield _plan_part(destination, consumer, plan, at)
        at = plan.end


def _plan_part(
    destination: Destination, consumer: Consumer, plan: Plan, start: dict[int, int]
) -> store.PlanPart:
    assignments = [
        store.Assignment(partition=number, first=first, lanes=lane_rows(selection.lanes))
        for number, (first, selection) in plan.assignments.items()
    ]
    # Numbers that no assignment accounts for were those of plans that are not known any more.
    is_told = end_of(start, plan.assignments) == plan.end
    return store.PlanPart(
        planned=store.Planned(
            destination=destination.number,
            incarnation=consumer.incarnation,
            plan=plan.number,
            run=plan.run,
            assignments=assignments,
        ),
        time_us=plan.time_us,
        returned=plan.returned,
        acknowledged=plan.acknowledged,
        opened_by_run=plan.opened_by_run,
        read_by_run=plan.read_by_run,
        failed_attempts=plan.failed_attempts,
        batches=[store.QueryBatch(query_id=query, batch_id=batch) for query, batch in sorted(plan.batches)],
        counts={} if is_told else between(start, plan.end),
        serial=plan.serial,
        committed=plan.committed,
        emptied=plan.emptied,
    )


def _past_part(past: Past, start: dict[int, int]) -> store.PlanPart:
    counts, end = between(start, past.end), past.end
    # Where there are numbers of a plan that is not known any more before its own, it tells where its own
    # begin.
    own = (
        []
        if past.numbers == counts
        else [{"partition": at, "first": end[at] - count} for at, count in past.numbers.items()]
    )
    return store.PlanPart(
        planned=store.Planned(plan=past.number, assignments=own),
        returned=past.returned,
        acknowledged=not past.returned and past.used,
        opened_by_run=int(past.returned and past.used),
        serial=past.serial,
        forgotten=True,
        counts=counts,
    )


def lane_rows(lanes: Iterable[Lane]) -> list[store.LaneRows]:
    """Returns lanes as they are written."""
    return [store.LaneRows(priority=priority, offsets=offsets.serialize()) for priority, offsets in lanes]


def selection_of(assignment: store.Assignment) -> Selection:
    """Returns the rows of one partition of a plan."""
    return Selection.of((lane.priority, BitMap64.deserialize(lane.offsets)) for lane in assignment.lanes)


def plan_of(what: store.Planned, time_us: int, start: dict[int, int]) -> Plan:
    """Returns the plan that an entry describes, whose numbers begin at `start`."""
    assignments = {a.partition: (a.first, selection_of(a)) for a in what.assignments}
    return Plan(what.plan, what.run, time_us, assignments, packed(end_of(start, assignments)))


def restore(destination: Destination, part: store.ConsumersPart) -> None:
    """Takes over one piece; all of them in order."""
    for ended in part.ended:
        destination.subscriptions[ended.subscription].ended[ended.incarnation] = Ended(
            ended.successor, ended.consumer, ended.shared
        )
    for known in part.consumers:
        subscription = destination.subscriptions[known.subscription]
        consumer = subscription.consumers.get(known.incarnation)
        if consumer is None:
            consumer = Consumer(
                known.consumer, known.incarnation, known.run, known.minted_by_run, known.minted_time_us
            )
            consumer.floor, consumer.acknowledged_plan = dict(known.floor), known.acknowledged_plan
            consumer.next, consumer.next_plan = dict(known.next), known.next_plan
            subscription.consumers[consumer.incarnation] = consumer
        at = consumer.boundary(next(reversed(consumer.plans), consumer.last_past))
        for kept in known.plans:
            at = _restore_plan(destination, known.subscription, consumer, kept, at)


def _restore_plan(
    destination: Destination,
    subscription: int,
    consumer: Consumer,
    kept: store.PlanPart,
    before: dict[int, int],
) -> dict[int, int]:
    """Takes over a plan that follows the boundary `before`; returns its own."""
    start = before | {partition: before.get(partition, 0) + count for partition, count in kept.counts.items()}
    if kept.forgotten:
        used = kept.acknowledged or kept.opened_by_run > 0
        own = {
            given.partition: start[given.partition] - given.first for given in kept.planned.assignments
        } or dict(kept.counts)
        past = Past(kept.planned.plan, kept.serial, packed(start), packed(own), kept.returned, used)
        consumer.past[past.number] = past
        return start
    plan = plan_of(kept.planned, kept.time_us, start)
    plan.returned, plan.acknowledged, plan.emptied = kept.returned, kept.acknowledged, kept.emptied
    plan.opened_by_run, plan.read_by_run = kept.opened_by_run, kept.read_by_run
    plan.failed_attempts = kept.failed_attempts
    plan.serial, plan.committed = kept.serial, kept.committed
    plan.batches = {(batch.query_id, batch.batch_id) for batch in kept.batches}
    if plan.returned and plan.assignments:
        plan.assignments, plan.emptied = {}, True  # older versions kept them
    consumer.plans[plan.number] = plan
    for number, (_, selection) in plan.assignments.items():
        if selection.rows:
            backlog = destination.subscriptions[subscription].backlogs[number]
            backlog.restore_plan(plan, selection.offsets() - destination.partitions[number].quarantined)
    return plan.end
