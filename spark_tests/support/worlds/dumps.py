"""What is durable, as plain dicts: of the core and of the model, to be compared."""

from __future__ import annotations

from collections import Counter
from typing import Any

from pyroaring import BitMap64

from mq_broker.core.broker import Broker
from mq_broker.core.model.audit import SKIPPED
from mq_broker.core.model.destination import Destination, Partition
from mq_broker.core.model.state import State
from mq_broker.core.model.subscription import Backlog
from mq_wire.limits import AUDIT_RANGES
from spark_tests.model import state as plain
from spark_tests.model.model import Model
from spark_tests.model.state import READY

Dump = dict[str, Any]


def dump_broker(broker: Broker) -> Dump:
    """Durable state of the core. What sessions hold counts as ready."""
    state = broker.state
    _check_counts(state)
    return {
        "epoch": state.epoch,
        "destinations": {name: _destination(destination) for name, destination in state.by_name.items()},
        "producers": dict(state.producers),
        "staged": {
            token: (
                (held.epoch, held.query_id, held.batch_id, held.target, held.last_time_us),
                [
                    (
                        state.by_number[f.entry.destination].name,
                        f.entry.partition,
                        f.entry.first_sequence,
                        f.entry.records_crc,
                    )
                    for f in held.frames
                ],
                held.rows,
            )
            for token, held in state.staged.items()
        },
        "markers": {key: (m.version, m.rows, m.query_id, m.time_us) for key, m in state.markers.items()},
        "epochs": {q.query_id: dict(q.epochs) for q in state.queries.values() if q.epochs},
        "plans_cut": state.plans_cut,
        "reads": {q.query_id: dict(q.reads) for q in state.queries.values() if q.reads},
        "readers": {
            q.query_id: {
                n: (r.spark_run_id, r.run, r.incarnation)
                for n, r in q.readers.items()
                if n in state.by_number
            }
            for q in state.queries.values()
            if any(n in state.by_number for n in q.readers)
        },
        "fenced": {
            q.query_id: q.fenced_through for q in state.queries.values() if q.fenced_through is not None
        },
    }


def _check_counts(state: State) -> None:
    """What is counted as it comes and goes is the sum of what is there."""
    assert state.consumers_total == sum(
        len(destination.queue.consumers) for destination in state.by_number.values()
    )
    assert state.query_ends == sum(len(q.readers) + len(q.epochs) for q in state.queries.values())
    sets, staged = list(state.staged.values()), state.staged
    assert staged.batches == sum(len(held.frames) for held in sets)
    frames = [frame for held in sets for frame in held.frames]
    assert staged.rows == sum(held.rows for held in sets) == sum(frame.entry.records.rows for frame in frames)
    assert (
        staged.size_bytes
        == sum(held.size_bytes for held in sets)
        == sum(frame.place.size for frame in frames)
    )
    rows_of = Counter[int]()
    for frame in frames:
        rows_of[frame.entry.destination] += frame.entry.records.rows
    assert dict(staged.rows_of) == dict(rows_of)
    assert staged.queries.keys() == {held.query_id for held in sets}
    for query_id, known in staged.queries.items():
        own = [held for held in sets if held.query_id == query_id]
        assert set(known.tokens) == {held.token for held in own}
        assert (known.rows, known.size_bytes) == (
            sum(held.rows for held in own),
            sum(held.size_bytes for held in own),
        )
    keys = [key for key, _ in state.markers.items()]
    assert len(state.markers) == len(keys)
    assert state.markers.passing.keys() == {key for key in keys if key[0].startswith("write:")}


def _destination(destination: Destination) -> Dump:
    held: list[dict[int, int]] = [{} for _ in destination.partitions]
    for session in destination.queue.sessions.values():
        for number, lanes in session.held.items():
            held[number].update(
                {offset: priority for priority, offsets in enumerate(lanes.offsets) for offset in offsets}
            )
        assert session.held_rows == sum(lanes.rows for lanes in session.held.values())
    return {
        "number": destination.number,
        "id": destination.destination_id,
        "partitions": [
            _partition(partition, backlog, held[number])
            for number, (partition, backlog) in enumerate(
                zip(destination.partitions, destination.queue.backlogs, strict=True)
            )
        ],
        "ended": {incarnation: tuple(how) for incarnation, how in destination.queue.ended.items()},
        "consumers": {
            incarnation: {
                "name": consumer.name,
                "run": consumer.run,
                "minted_by": consumer.minted_by_run,
                "next": consumer.next,
                "floor": consumer.floor,
                "acknowledged": consumer.acknowledged_plan,
                "next_plan": consumer.next_plan,
                "past": {p.number: (p.end, p.returned, p.used, p.serial) for p in consumer.past.values()},
                "plans": {
                    plan.number: (
                        {
                            n: (first, [(p, [*o]) for p, o in selection.lanes])
                            for n, (first, selection) in plan.assignments.items()
                        },
                        (plan.run, plan.end, plan.returned, plan.acknowledged),
                        (plan.opened_by_run, plan.read_by_run, plan.failed_attempts, plan.batches),
                        (plan.serial, plan.committed),
                    )
                    for plan in consumer.plans.values()
                },
            }
            for incarnation, consumer in destination.queue.consumers.items()
        },
    }


def _partition(partition: Partition, backlog: Backlog, held: dict[int, int]) -> Dump:
    ready = {offset: priority for priority, offsets in enumerate(backlog.ready.offsets) for offset in offsets}
    assert backlog.ready.counts == [len(offsets) for offsets in backlog.ready.offsets]
    assert not ready.keys() & held.keys(), "rows are held and ready at once"
    return {
        "next": partition.log.next_offset,
        "duplicates": partition.duplicates,
        "ready": dict(sorted((ready | held).items())),
        "failed": _counts(backlog.failed.bits),
        "handed_out": _counts(backlog.handed_out.bits),
        "audit": [
            (
                name,
                mark.epoch,
                mark.next_sequence,
                mark.rows,
                mark.last_offset,
                [tuple(known) for known in mark.ranges],
            )
            for name, mark in [
                *partition.audit.anonymous.items(),
                *sorted(partition.audit.named.items()),
            ]
        ],
    }


def _counts(bits: tuple[BitMap64, ...]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for bit, known in enumerate(bits):
        for offset in known:
            counts[offset] = counts.get(offset, 0) + (1 << bit)
    return dict(sorted(counts.items()))


def dump_model(model: Model) -> Dump:
    """Durable state of the model in the same form."""
    return {
        "epoch": model.epoch,
        "destinations": {
            name: _plain_destination(destination) for name, destination in model.destinations.items()
        },
        "producers": dict(model.producers),
        "staged": {
            token: (
                (held.epoch, held.query, held.batch, held.target, held.time_us),
                [(batch.destination, batch.partition, batch.first, batch.crc) for batch in held.batches],
                held.count,
            )
            for token, held in model.staged.items()
        },
        "markers": dict(model.markers),
        "epochs": {query: dict(epochs) for query, epochs in model.query_epochs.items() if epochs},
        "plans_cut": model.plans_cut,
        "reads": {name: dict(query.reads) for name, query in model.queries.items() if query.reads},
        "readers": {
            name: there
            for name, query in model.queries.items()
            if (
                there := {
                    n: reader
                    for n, reader in query.readers.items()
                    if any(d.number == n for d in model.destinations.values())
                }
            )
        },
        "fenced": dict(model.fenced),
    }


def _plain_destination(destination: plain.Destination) -> Dump:
    return {
        "number": destination.number,
        "id": destination.id,
        "partitions": [_plain_partition(partition) for partition in destination.partitions],
        "ended": dict(destination.ended),
        "consumers": {
            incarnation: {
                "name": consumer.name,
                "run": consumer.run,
                "minted_by": consumer.minted_by,
                "next": consumer.next,
                "floor": consumer.boundary(consumer.unknown),
                "acknowledged": consumer.acknowledged,
                "next_plan": len(consumer.plans) + 1,
                "past": {
                    plan.number: (plan.end, plan.returned, plan.used, plan.serial) for plan in consumer.past()
                },
                "plans": {plan.number: _plain_plan(plan) for plan in consumer.kept()},
            }
            for incarnation, consumer in destination.consumers.items()
        },
    }


def _plain_plan(plan: plain.Plan) -> tuple[Any, ...]:
    assignments = {}
    for number, rows in plan.rows.items() if not plan.returned else ():
        priorities = sorted({row.priority for row in rows}, reverse=True)
        assignments[number] = (
            plan.first[number],
            [(p, [row.offset for row in rows if row.priority == p]) for p in priorities],
        )
    return (
        assignments,
        (plan.run, plan.end, plan.returned, plan.acknowledged),
        (plan.opened_by, plan.read_by, plan.failed, plan.batches),
        (plan.serial, plan.committed),
    )


def _plain_partition(partition: plain.Partition) -> Dump:
    return {
        "duplicates": partition.duplicates,
        "next": len(partition.rows),
        "ready": {
            row.offset: row.priority
            for row in partition.rows
            if row.holder == READY or row.holder[0] == "session"
        },
        "failed": {r.offset: r.failed for r in partition.rows if r.failed and r.holder != plain.DONE},
        "handed_out": {
            r.offset: r.handed_out for r in partition.rows if r.handed_out and r.holder != plain.DONE
        },
        "audit": [
            (
                name,
                mark.epoch,
                mark.next,
                mark.rows,
                mark.last_offset,
                [
                    (
                        batch.first,
                        batch.rows,
                        batch.crc,
                        SKIPPED if batch.base is None else batch.base,
                        batch.time_us,
                    )
                    for batch in mark.batches[-AUDIT_RANGES:]
                ],
            )
            for name, mark in [
                *((n, m) for n, m in partition.marks if not n.startswith("name/")),
                *sorted((n, m) for n, m in partition.marks if n.startswith("name/")),
            ]
        ],
    }


def check_same(actual: Dump, expected: Dump) -> None:
    """Fails with the places where two dumps differ."""
    lines = _differences(actual, expected, "")
    assert not lines, "\n".join(lines)


def _differences(actual: Any, expected: Any, path: str) -> list[str]:
    if actual == expected:
        return []
    if isinstance(actual, dict) and isinstance(expected, dict):
        keys = [*actual, *(key for key in expected if key not in actual)]
        return [
            line
            for key in keys
            for line in _differences(actual.get(key), expected.get(key), f"{path}/{key!r}")
        ]
    if isinstance(actual, list) and isinstance(expected, list) and len(actual) == len(expected):
        pairs = enumerate(zip(actual, expected, strict=True))
        return [line for at, (one, other) in pairs for line in _differences(one, other, f"{path}[{at}]")]
    return [f"{path}: {actual!r} instead of {expected!r}"]
