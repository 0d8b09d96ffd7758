"""Durable consumers of the model: plans, runs, ranges, takeover and release (docs/rules.md, "Plans and
delivery numbers"), row by row.
"""

from __future__ import annotations

from mq_wire.errors import (
    CheckpointTooOld,
    DataLost,
    DestinationRecreated,
    IncarnationSuperseded,
    InvalidRequest,
    OffsetsUnknown,
    RunFenced,
    SharedRange,
    UnknownDestination,
)
from spark_tests.model.model import Model
from spark_tests.model.staging import discard_readers
from spark_tests.model.state import DONE, READY, Consumer, Destination, Plan, Row


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
                give_back_unread(
                    model, consumer, [plan for plan in consumer.plans if plan.pending and not plan.read_by]
                )


def give_back_unread(model: Model, consumer: Consumer, plans: list[Plan]) -> None:
    """Of plans that were given back and never opened the last ones are known."""
    if plans:
        give_back(consumer, plans)
        for plan in [plan for plan in consumer.kept() if plan.returned and not plan.used][
            : -model.kept_returned
        ]:
            plan.dropped = True


def give_back(consumer: Consumer, plans: list[Plan], blame: bool = False) -> None:
    for plan in plans:
        plan.returned = True
        charged = plan.failed > 0 or (plan.read_by > 0 and plan.read_by >= plan.opened_by)
        plan.opened_by = 0
        for rows in plan.rows.values():
            for row in rows:
                row.holder = READY
                row.handed_out += blame and charged


def choose(destination: Destination, rows: int, below: dict[int, int] | None = None) -> list[Row]:
    """Returns the next rows: highest priority first, and within one always from the partition that gave least
    so far.
    """
    chosen: list[Row] = []
    left = [
        row
        for row in destination.rows()
        if row.holder == READY and (below is None or row.offset < below.get(row.partition, 0))
    ]
    for priority in range(9, -1, -1):
        waiting = {
            n: [row for row in left if (row.partition, row.priority) == (n, priority)]
            for n in range(len(destination.partitions))
        }
        given = dict.fromkeys(waiting, 0)
        while len(chosen) < rows and any(waiting.values()):
            number = min((n for n in waiting if waiting[n]), key=lambda n: (given[n], n))
            chosen.append(waiting[number].pop(0))
            given[number] += 1
    return chosen


def _locate(consumer: Consumer, positions: dict[int, int]) -> int:
    asked = {partition: number for partition, number in positions.items() if number}
    for number in range(len(consumer.plans), consumer.unknown - 1, -1):
        is_known = number == consumer.unknown or not consumer.plans[number - 1].dropped
        if is_known and consumer.boundary(number) == asked:
            return number
    if any(number > consumer.next.get(partition, 0) for partition, number in asked.items()):
        raise OffsetsUnknown(str(asked))
    if all(
        number <= consumer.boundary(consumer.unknown).get(partition, 0) for partition, number in asked.items()
    ):
        raise DataLost(str(asked))
    raise InvalidRequest(str(asked))


def _locate_kept(consumer: Consumer, positions: dict[int, int], accept: bool) -> tuple[int, bool]:
    """As `_locate`; with `accept` what lies before all that is known is the first boundary that is, and data
    is lost.
    """
    try:
        return _locate(consumer, positions), False
    except DataLost:
        if not accept:
            raise
        return consumer.unknown, True


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
        raise ended(destination, incarnation)
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


def ended(
    destination: Destination, incarnation: bytes
) -> IncarnationSuperseded | OffsetsUnknown | SharedRange:
    if incarnation in destination.ended:
        if destination.ended[incarnation][2]:
            return SharedRange(incarnation.hex())
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
    accept: bool = False,
) -> tuple[bytes, dict[int, int], int] | None:
    """Returns (incarnation, boundary, rows), None where there is nothing to do."""
    consumer = _find(model, destination, name, incarnation, run)
    if consumer is not None:
        through = _locate_kept(consumer, start, accept)[0] if incarnation else consumer.unknown
        if consumer.acknowledged or any(
            p.read_by for p in consumer.plans
        ):  # else it waits for the first reader
            _acknowledge(model, consumer, through)
        later = consumer.plans[through:]
        for known in later:
            if known.used:
                _check_one_queue(model, destination, consumer)
                kept = known.number > consumer.forgotten and not known.returned
                return consumer.incarnation, known.end, known.count if kept else 0
        give_back_unread(model, consumer, [known for known in later if known.pending])
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
    model.plans_cut += 1
    consumer.plans.append(Plan(number, run, by_partition, start_of, end, serial=model.plans_cut))
    return consumer.incarnation, end, len(chosen)


def _check_one_queue(model: Model, destination: Destination, consumer: Consumer) -> None:
    """A query over several queues cannot go on without the batch that its checkpoint lost."""
    numbers = {d.number for d in model.destinations.values()}
    for query in model.queries.values():
        reader = query.readers.get(destination.number)
        if (
            reader is not None
            and reader[2] == consumer.incarnation
            and len(numbers & query.readers.keys()) > 1
        ):
            raise CheckpointTooOld(f"{destination.name} {consumer.incarnation.hex()}")


def _acknowledge(model: Model, consumer: Consumer, through: int) -> int:
    if through <= consumer.acknowledged:
        return 0
    rows = 0
    for plan in consumer.plans[:through]:
        if plan.pending:
            rows += plan.count
            plan.acknowledged = True
            _done(plan)
    _forget(model, consumer, consumer.acknowledged)
    consumer.acknowledged = through
    return rows


def _forget(model: Model, consumer: Consumer, through: int) -> None:
    """Rows of plans up to `through` are let go; of those before, the last boundaries are known."""
    consumer.forgotten = max(through, consumer.forgotten)
    past = consumer.past()
    if len(past) > model.kept_boundaries:
        consumer.unknown = past[-model.kept_boundaries - 1].number


def forget_kept(model: Model, now_us: int, short: bool) -> None:
    """What is kept for nobody goes after a while."""
    alone = {}
    for destination in model.destinations.values():
        for consumer in destination.consumers.values():
            keeps = consumer.acknowledged > consumer.forgotten and not any(
                plan.pending for plan in consumer.plans
            )
            if keeps and consumer.run not in model.runs:
                since = alone[consumer.incarnation] = model.alone.get(consumer.incarnation, now_us)
                if now_us - since >= (model.run_grace_us if short else model.kept_range_ttl_us):
                    _forget(model, consumer, consumer.acknowledged)
    model.alone = alone


def _done(plan: Plan) -> None:
    for rows in plan.rows.values():
        for row in rows:
            row.holder, row.failed, row.handed_out = DONE, 0, 0


def _mint(model: Model, destination: Destination, name: str, run: int, before: Consumer | None) -> Consumer:
    incarnation = model.new_identity()
    if before is not None:
        if run < before.run:
            raise RunFenced(str(run))
        end_consumer(model, destination, before, incarnation)
    destination.consumers[incarnation] = Consumer(name, incarnation, run, run)
    return destination.consumers[incarnation]


def end_consumer(
    model: Model, destination: Destination, consumer: Consumer, successor: bytes, shared: bool = False
) -> tuple[int, int]:
    """Returns how many rows went back, and how many count as acknowledged."""
    pending = [plan for plan in consumer.plans if plan.pending]
    done = [plan for plan in pending if plan.committed]
    freed = [plan for plan in pending if plan not in done]
    for plan in done:
        _done(plan)
    for plan in freed:
        discard_readers(model, plan.batches)
        for query, batch in plan.batches:
            model.fenced[query] = max(batch, model.fenced.get(query, batch))
    give_back(consumer, freed, blame=not shared)
    del destination.consumers[consumer.incarnation]
    destination.ended[consumer.incarnation] = (successor, consumer.name, shared)
    if len(destination.ended) > model.kept_ended:
        del destination.ended[next(iter(destination.ended))]
    return sum(plan.count for plan in freed), sum(plan.count for plan in done)


def acknowledge_range(
    model: Model, name: str, destination_id: bytes, who: tuple[str, bytes, int], end: dict[int, int]
) -> int:
    consumer = _find(model, destination_of(model, name, destination_id), *who)
    assert consumer is not None
    return _acknowledge(model, consumer, _locate(consumer, end))


def open_range(
    model: Model,
    name: str,
    destination_id: bytes,
    who: tuple[str, bytes, int],
    start: dict[int, int],
    end: dict[int, int],
    accept: bool = False,
) -> tuple[dict[int, tuple[int, int, int]], bool]:
    """Returns partition -> (first, last, rows), and whether data is lost."""
    consumer = _find(model, destination_of(model, name, destination_id), *who)
    assert consumer is not None
    (after, from_lost), (through, to_lost) = (
        _locate_kept(consumer, start, accept),
        _locate_kept(consumer, end, accept),
    )
    if through < after:
        raise InvalidRequest(f"{start} {end}")
    gone = any(not plan.returned for plan in consumer.plans[after : min(through, consumer.forgotten)])
    if gone and not accept:
        raise DataLost(str(start))
    plans = [plan for plan in consumer.plans[max(after, consumer.forgotten) : through] if not plan.returned]
    last_plan = consumer.plans[through - 1] if through > max(after, consumer.forgotten) else None
    if last_plan is not None and last_plan.returned:
        last_plan.opened_by = last_plan.opened_by or who[2]
    for plan in plans:
        if plan.opened_by < who[2]:
            in_vain = 0 < plan.read_by < who[2] and plan.read_by >= plan.opened_by
            if plan.pending and in_vain and not plan.committed:
                plan.failed += 1
            plan.opened_by = who[2]
    parts = {}
    for partition, last in consumer.boundary(through).items():
        first = consumer.boundary(after).get(partition, 0)
        if last > first:
            parts[partition] = (first, last, sum(len(plan.rows.get(partition, ())) for plan in plans))
    return parts, from_lost or to_lost or gone


def release_consumer(model: Model, name: str, consumer: str) -> tuple[int, int]:
    destination = destination_of(model, name, b"")
    found = [c for c in destination.consumers.values() if consumer in (c.name, c.incarnation.hex())]
    if len(found) != 1:
        raise UnknownDestination(consumer)
    return end_consumer(model, destination, found[0], b"")
