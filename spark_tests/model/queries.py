"""Queries of the model: who reads in which batch, and what a batch may not hold because its number was
used.
"""

from __future__ import annotations

from mq_wire.errors import CheckpointTooOld, DataLost, InvalidRequest, OffsetsUnknown, SharedRange
from spark_tests.model.model import Model
from spark_tests.model.plans import destination_of, end_consumer, ended, give_back_unread
from spark_tests.model.staging import last_committed
from spark_tests.model.state import Destination, Plan, Query, Row


def fetch(
    model: Model,
    name: str,
    destination_id: bytes,
    who: tuple[str, bytes, int],
    where: tuple[int, int, int],
    batch: tuple[str, int],
    spark_run: str = "",
    accept: bool = False,
) -> list[tuple[int, Row, int]]:
    """Returns (delivery number, row, delivery count) of numbers [first, last) of a partition; `where` has all
    three.
    """
    partition, first, last = where
    if not 0 < who[2] <= model.epoch:
        raise InvalidRequest(str(who))
    destination = destination_of(model, name, destination_id)
    consumer = destination.consumers.get(who[1])
    if consumer is None:
        raise ended(destination, who[1])
    if last > consumer.next.get(partition, 0):
        raise OffsetsUnknown(str(where))
    asked = [
        plan
        for plan in consumer.plans[consumer.unknown :]
        if not plan.returned and _numbers(plan, partition, first, last)
    ]
    lost = [plan for plan in asked if plan.number <= consumer.forgotten]
    if not accept and (lost or first < consumer.boundary(consumer.unknown).get(partition, 0)):
        raise DataLost(str(where))
    if batch[0]:
        _check_batch(model, batch, asked)
        _join(model, destination, who, batch[0], spark_run)
        _note_read(model, batch)
    rows = []
    for plan in asked:
        if plan not in lost:
            rows += [
                (number, row, plan.failed + row.delivery_count)
                for number, row in _numbers(plan, partition, first, last)
            ]
            plan.read_by = max(plan.read_by, who[2])
            if batch[0]:
                plan.batches.add(batch)
                plan.committed = plan.committed or last_committed(model, batch[0]) == batch[1]
    return rows


def _numbers(plan: Plan, partition: int, first: int, last: int) -> list[tuple[int, Row]]:
    numbered = [(plan.first[partition] + i, row) for i, row in enumerate(plan.rows.get(partition, ()))]
    return [(number, row) for number, row in numbered if first <= number < last]


def _note_read(model: Model, batch: tuple[str, int]) -> None:
    reads = model.queries.setdefault(batch[0], Query()).reads
    reads.setdefault(batch[1], model.plans_cut)
    for old in sorted(reads)[: -model.kept_batches]:
        del reads[old]


def _check_batch(model: Model, batch: tuple[str, int], plans: list[Plan]) -> None:
    """A batch that was read before has the rows that it had, or none."""
    reads = model.queries.get(batch[0], Query()).reads
    if len(reads) == model.kept_batches and batch[1] < min(reads):
        raise CheckpointTooOld(str(batch))
    if any(plan.serial > reads.get(batch[1], model.plans_cut) for plan in plans):
        raise CheckpointTooOld(str(batch))


def join_query(
    model: Model,
    name: str,
    destination_id: bytes,
    who: tuple[str, bytes, int],
    batch: tuple[str, int],
    spark_run: str,
) -> None:
    """A reader says that it is there."""
    if not batch[0] or not 0 < who[2] <= model.epoch:
        raise InvalidRequest(str(who))
    destination = destination_of(model, name, destination_id)
    if who[1] and who[1] not in destination.consumers:
        raise ended(destination, who[1])
    _check_batch(model, batch, [])
    _join(model, destination, who, batch[0], spark_run)
    _note_read(model, batch)


def _join(
    model: Model, destination: Destination, who: tuple[str, bytes, int], query: str, spark_run: str
) -> None:
    """One reader of a queue in a query: one incarnation, and before there is one, one run in a start of the
    query.
    """
    readers = model.queries.setdefault(query, Query()).readers
    if destination.number not in readers:
        readers[destination.number] = (spark_run, who[2], who[1])
        return
    known_spark_run, known_run, known = readers[destination.number]
    both_there = {known_run, who[2]} <= model.runs
    is_second_start = known_run != who[2] and known_spark_run == spark_run and both_there
    if known != who[1] if known and who[1] else is_second_start:
        _refuse(model, destination, known, who[1])
    if who[2] > known_run or (who[2] == known_run and who[1] and not known):
        readers[destination.number] = (spark_run, who[2], who[1] or known)


def _refuse(model: Model, destination: Destination, first: bytes, second: bytes) -> None:
    """What was acknowledged by a query that reads twice is gone; otherwise all goes back."""
    both = [
        consumer for incarnation, consumer in destination.consumers.items() if incarnation in (first, second)
    ]
    if any(consumer.acknowledged for consumer in both):
        if first != second and second in destination.consumers:
            consumer = destination.consumers[second]
            give_back_unread(
                model, consumer, [plan for plan in consumer.plans if plan.pending and not plan.read_by]
            )
    else:
        for consumer in both:
            end_consumer(model, destination, consumer, b"", shared=True)
    raise SharedRange(destination.name)
