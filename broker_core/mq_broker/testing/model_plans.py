"""Durable consumers of the model: plans, runs, ranges, takeover and release (design.md section 6), row by row."""

from __future__ import annotations

from mq_broker.testing.model import DONE, READY, Consumer, Destination, Model, Plan, Row
from mq_broker.testing.model_staging import committed_by_sink, discard_readers
from mq_wire.errors import (
    DataLost,
    DestinationRecreated,
    IncarnationSuperseded,
    InvalidRequest,
    OffsetsUnknown,
    RunFenced,
    SharedRange,
    UnknownDestination,
)


def hold_run(model: Model, run: int = 0) -> int:
    if run > model.epoch:
        raise InvalidRequest(str(run))
    if not run:
        model.epoch += 1
        run = model.epoch
    model.runs.add(run)
    model.silent.pop(run, None)
    return run


def close_run(model: Model, run: int) -> None:
    model.runs.discard(run)
    model.silent.pop(run, None)
    _return_unread(model, run)


def watch_runs(model: Model, now_us: int) -> None:
    """A run that nobody holds for `run_grace_us` counts as ended."""
    for run in {c.run for d in model.destinations.values() for c in d.consumers.values()} - model.runs:
        if now_us - model.silent.setdefault(run, now_us) >= model.run_grace_us:
            _return_unread(model, run)
            model.silent[run] = now_us


def _return_unread(model: Model, run: int) -> None:
    for destination in model.destinations.values():
        for consumer in destination.consumers.values():
            if consumer.run == run:
                _return(consumer, [plan for plan in consumer.plans if plan.pending and not plan.read_by])


def _return(consumer: Consumer, plans: list[Plan], blame: bool = False) -> None:
    for plan in plans:
        plan.returned = True
        for rows in plan.rows.values():
            for row in rows:
                row.holder = READY
                if blame:
                    row.attempts += plan.failed + (plan.read_by > 0 and plan.read_by >= plan.opened_by)


def choose(destination: Destination, rows: int, below: dict[int, int] | None = None) -> list[Row]:
    """Returns the next rows: highest priority first, and within one always from the partition that gave least so far."""
    chosen: list[Row] = []
    left = [row for row in destination.rows() if row.holder == READY and (below is None or row.offset < below.get(row.partition, 0))]
    for priority in range(9, -1, -1):
        waiting = {n: [row for row in left if (row.partition, row.priority) == (n, priority)] for n in range(len(destination.partitions))}
        given = dict.fromkeys(waiting, 0)
        while len(chosen) < rows and any(waiting.values()):
            number = min((n for n in waiting if waiting[n]), key=lambda n: (given[n], n))
            chosen.append(waiting[number].pop(0))
            given[number] += 1
    return chosen


def _locate(consumer: Consumer, positions: dict[int, int]) -> int:
    asked = {partition: number for partition, number in positions.items() if number}
    for number in range(len(consumer.plans), consumer.forgotten - 1, -1):
        if consumer.boundary(number) == asked:
            return number
    if any(number > consumer.next.get(partition, 0) for partition, number in asked.items()):
        raise OffsetsUnknown(str(asked))
    if all(number <= consumer.boundary(consumer.forgotten).get(partition, 0) for partition, number in asked.items()):
        raise DataLost(str(asked))
    raise InvalidRequest(str(asked))


def destination_of(model: Model, name: str, destination_id: bytes) -> Destination:
    found = model.destinations.get(name)
    if destination_id and (found is None or found.id != destination_id):
        raise DestinationRecreated(name)
    if found is None:
        raise UnknownDestination(name)
    return found


def _find(model: Model, destination: Destination, name: str, incarnation: bytes, run: int) -> Consumer | None:
    if not 0 < run <= model.epoch:
        raise InvalidRequest(str(run))
    consumer = destination.consumers.get(incarnation)
    if incarnation and consumer is None:
        raise _ended(destination, incarnation)
    if not incarnation:
        same = [c for c in destination.consumers.values() if c.name == name and c.minted_by == run]
        consumer = same[0] if same else None
    elif consumer is not None and consumer.name != name:
        raise InvalidRequest(name)
    if consumer is not None:
        if run < consumer.run:
            raise RunFenced(str(run))
        consumer.run = run
    return consumer


def _ended(destination: Destination, incarnation: bytes) -> IncarnationSuperseded | OffsetsUnknown:
    if incarnation in destination.ended:
        return IncarnationSuperseded(incarnation.hex())
    return OffsetsUnknown(incarnation.hex())


def plan(
    model: Model,
    destination: Destination,
    name: str,
    incarnation: bytes,
    run: int,
    start: dict[int, int],
    max_rows: int,
    min_rows: int = 0,
    below: dict[int, int] | None = None,
) -> tuple[bytes, dict[int, int], int] | None:
    """Returns (incarnation, boundary, rows), None where there is nothing to do."""
    consumer = _find(model, destination, name, incarnation, run)
    if consumer is not None:
        through = _locate(consumer, start) if incarnation else consumer.forgotten
        _acknowledge(consumer, through)
        later = [known for known in consumer.plans if known.number > through and known.pending]
        for known in later:
            if known.read_by:
                return consumer.incarnation, known.end, known.count
        _return(consumer, later)
    before = [c for c in destination.consumers.values() if name and c.name == name]
    if consumer is None and before:
        consumer = _mint(model, destination, name, run, before[0])
    if len(choose(destination, 1 << 60, below)) < max(min_rows, 1):
        return None
    chosen = choose(destination, max_rows or 1 << 60, below)
    if consumer is None:
        consumer = _mint(model, destination, name, run, None)
    number, first = len(consumer.plans) + 1, consumer.next
    by_partition: dict[int, list[Row]] = {}
    for row in chosen:
        by_partition.setdefault(row.partition, []).append(row)
        row.holder = ("plan", consumer.incarnation, number)
    start_of = {n: first.get(n, 0) for n in by_partition}
    end = {**first, **{n: start_of[n] + len(rows) for n, rows in by_partition.items()}}
    consumer.plans.append(Plan(number, run, by_partition, start_of, end))
    return consumer.incarnation, end, len(chosen)


def _acknowledge(consumer: Consumer, through: int) -> int:
    if through <= consumer.acknowledged:
        return 0
    rows = 0
    for plan in consumer.plans[:through]:
        if plan.pending:
            rows += plan.count
            plan.acknowledged = True
            _done(plan)
    consumer.forgotten, consumer.acknowledged = consumer.acknowledged, through
    return rows


def _done(plan: Plan) -> None:
    for rows in plan.rows.values():
        for row in rows:
            row.holder, row.attempts = DONE, 0


def _mint(model: Model, destination: Destination, name: str, run: int, before: Consumer | None) -> Consumer:
    incarnation = model.new_identity()
    if before is not None:
        if run < before.run:
            raise RunFenced(str(run))
        end_consumer(model, destination, before, incarnation)
    destination.consumers[incarnation] = Consumer(name, incarnation, run, run)
    return destination.consumers[incarnation]


def end_consumer(model: Model, destination: Destination, consumer: Consumer, successor: bytes) -> tuple[int, int]:
    """Returns how many rows went back, and how many count as acknowledged."""
    pending = [plan for plan in consumer.plans if plan.pending]
    done = [plan for plan in pending if committed_by_sink(model, plan.batches)]
    freed = [plan for plan in pending if plan not in done]
    for plan in done:
        _done(plan)
    for plan in freed:
        discard_readers(model, plan.batches)
        for query, batch in plan.batches:
            model.fenced[query] = max(batch, model.fenced.get(query, batch))
    _return(consumer, freed, blame=True)
    del destination.consumers[consumer.incarnation]
    destination.ended[consumer.incarnation] = (successor, consumer.name)
    return sum(plan.count for plan in freed), sum(plan.count for plan in done)


def acknowledge_range(
    model: Model, name: str, destination_id: bytes, who: tuple[str, bytes, int], end: dict[int, int]
) -> int:
    consumer = _find(model, destination_of(model, name, destination_id), *who)
    assert consumer is not None
    return _acknowledge(consumer, _locate(consumer, end))


def open_range(
    model: Model, name: str, destination_id: bytes, who: tuple[str, bytes, int], start: dict[int, int], end: dict[int, int]
) -> dict[int, tuple[int, int, int]]:
    """Returns partition -> (first, last, rows)."""
    consumer = _find(model, destination_of(model, name, destination_id), *who)
    assert consumer is not None
    after, through = _locate(consumer, start), _locate(consumer, end)
    if through < after:
        raise InvalidRequest(f"{start} {end}")
    plans = [plan for plan in consumer.plans[after:through] if not plan.returned]
    for plan in plans:
        if plan.opened_by < who[2]:
            in_vain = 0 < plan.read_by < who[2] and plan.read_by >= plan.opened_by
            if plan.pending and in_vain and not committed_by_sink(model, plan.batches):
                plan.failed += 1
            plan.opened_by = who[2]
    parts = {}
    for partition, last in consumer.boundary(through).items():
        first = consumer.boundary(after).get(partition, 0)
        if last > first:
            parts[partition] = (first, last, sum(len(plan.rows.get(partition, ())) for plan in plans))
    return parts


def fetch(
    model: Model, name: str, destination_id: bytes, who: tuple[str, bytes, int], where: tuple[int, int, int], batch: tuple[str, int]
) -> list[tuple[int, Row, int]]:
    """Returns (delivery number, row, delivery count) of numbers [first, last) of a partition; `where` has all three."""
    partition, first, last = where
    if not 0 < who[2] <= model.epoch:
        raise InvalidRequest(str(who))
    destination = destination_of(model, name, destination_id)
    consumer = destination.consumers.get(who[1])
    if consumer is None:
        raise _ended(destination, who[1])
    if last > consumer.next.get(partition, 0):
        raise OffsetsUnknown(str(where))
    if first < consumer.boundary(consumer.forgotten).get(partition, 0):
        raise DataLost(str(where))
    others = [plan for other in destination.consumers.values() if other is not consumer for plan in other.plans if plan.pending]
    if batch[0] and any(batch in plan.batches for plan in others):
        raise SharedRange(str(batch))
    rows = []
    for plan in consumer.kept():
        numbered = [(plan.first[partition] + i, row) for i, row in enumerate(plan.rows.get(partition, ()))]
        wanted = [(number, row, plan.failed + 1 + row.attempts) for number, row in numbered if first <= number < last]
        if plan.returned or not wanted:
            continue
        rows += wanted
        plan.read_by = max(plan.read_by, who[2])
        if batch[0]:
            plan.batches.add(batch)
    return rows


def release_consumer(model: Model, name: str, consumer: str) -> tuple[int, int]:
    destination = destination_of(model, name, b"")
    found = [c for c in destination.consumers.values() if consumer in (c.name, c.incarnation.hex())]
    if len(found) != 1:
        raise UnknownDestination(consumer)
    return end_consumer(model, destination, found[0], b"")
