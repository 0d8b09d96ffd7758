"""The state as named parts, and back. Only parts that changed are written again; a part of rows covers 2^20 offsets of a partition.

    broker                         destinations, named producers, counters
    queries/<bucket>               who reads and writes for which query
    markers/<bucket>               who has committed what
    log/<destination>/<partition>  next offset, duplicate audit; none where nobody ever sent anything
    rows/<d>/<p>/<chunk>           ready lanes, failed attempts, frame index
    consumers/<destination>        durable consumers and their plans
    staged/<token>                 a staged set

What connected consumers hold counts as ready: their sessions do not outlive the process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import numpy as np
from pyroaring import BitMap64

from mq_broker.core import owners, space
from mq_broker.core.apply import CHUNK_BITS, plan_of
from mq_broker.core.audit import ProducerMark, Range
from mq_broker.core.consumer import Consumer, Past, Plan, between, packed
from mq_broker.core.destination import Destination, Ended, Partition
from mq_broker.core.log import FRAME, KeptPlace
from mq_broker.core.selection import Lane, range_bitmap
from mq_broker.core.staged import StagedFrame, StagedSet
from mq_broker.core.state import State
from mq_wire.limits import AUDIT_RANGES, PRIORITIES
from mq_wire.store.v1 import store_pb2 as store


def key_of(part: tuple[object, ...]) -> str:
    """Returns the name of a changed part, as `State.dirty` holds it."""
    return "/".join(item.hex() if isinstance(item, bytes) else str(item) for item in part)


def take(state: State, kept: Iterable[str]) -> tuple[list[tuple[str, bytes]], set[str]]:
    """Returns the parts that changed since the last snapshot, and which of the `kept` keys of that one are unchanged.

    `state.dirty` is empty afterwards. Call `tidy` before.
    """
    dirty, state.dirty = state.dirty, set()
    gone = tuple(f"{kind}/{part[1]}/" for part in dirty if part[0] == "gone" for kind in ("log", "rows"))
    gone_keys = {f"consumers/{part[1]}" for part in dirty if part[0] == "gone"}
    changed = {key_of(part): part for part in dirty if part[0] != "gone"}
    unchanged = {key for key in kept if key not in changed and key not in gone_keys and not (gone and key.startswith(gone))}
    parts = [(key, body) for key, part in changed.items() if (body := _export(state, part)) is not None]
    return parts + owners.export(state, dirty), unchanged


def mark_all(state: State) -> None:
    """Marks every part as changed: the next snapshot builds on no other."""
    state.dirty.add(("broker",))
    owners.mark_all(state)
    state.dirty.update(("staged", token) for token in state.staged)
    for destination in state.by_number.values():
        state.dirty.add(("consumers", destination.number))
        for number, partition in enumerate(destination.partitions):
            state.dirty.add(("log", destination.number, number))
            index = partition.log.index()
            edges = np.concatenate((index.bases, index.bases + np.maximum(index.frames["span"], 1) - np.uint64(1)))
            chunks = set((edges >> np.uint64(CHUNK_BITS)).tolist())
            # Rows without a frame are there only where damage took it.
            chunks.update(offset >> CHUNK_BITS for _, lane in partition.ready.selection().lanes for offset in (lane.min(), lane.max()))
            state.dirty.update(("rows", destination.number, number, chunk) for chunk in chunks)


def tidy(state: State) -> None:
    """Forgets frames and producers that nobody needs any more; the parts they were in are written anew."""
    space.trim(state)
    for destination in space.touched(state):
        for number, partition in enumerate(destination.partitions):
            if partition.log.compact_producers():
                state.dirty.add(("log", destination.number, number))
                chunks = np.unique(partition.log.index().bases >> np.uint64(CHUNK_BITS))
                state.dirty.update(("rows", destination.number, number, chunk) for chunk in chunks.tolist())


def _export(state: State, part: tuple[object, ...]) -> bytes | None:
    kind, *which = part
    if kind == "broker":
        return _broker_part(state).SerializeToString()
    if kind in ("queries", "markers"):
        return None  # `owners.export` gives them, all in one go
    if kind == "staged":
        held = state.staged.get(which[0])  # type: ignore[arg-type]
        return None if held is None else _staged_part(held).SerializeToString()
    destination = state.by_number.get(which[0])  # type: ignore[call-overload]
    if destination is None:
        return None
    if kind == "consumers":
        return _consumers_part(destination).SerializeToString()
    number = int(str(which[1]))
    if kind == "log":
        return _log_part(destination.partitions[number]).SerializeToString()
    return _rows_part(destination, number, int(str(which[2])))


def _broker_part(state: State) -> store.BrokerPart:
    return store.BrokerPart(
        epoch=state.epoch,
        next_destination=state.next_destination,
        destinations=[
            store.DestinationPart(
                created=store.DestinationCreated(
                    destination=d.number, name=d.name, destination_id=d.destination_id, partitions=len(d.partitions)
                )
            )
            for d in state.by_number.values()
        ],
        producers=[store.ProducerOpened(producer_id=producer, epoch=epoch) for producer, epoch in state.producers.items()],
        plans_cut=state.plans_cut,
    )


def _log_part(partition: Partition) -> store.LogPart:
    log = partition.log
    part = store.LogPart(next_offset=log.next_offset, duplicates=partition.duplicates, producers=log.producers)
    if partition.quarantined:
        part.quarantined = partition.quarantined.serialize()
    for producer, mark in partition.audit.marks.items():
        ranges = list(zip(*mark.ranges, strict=True)) if mark.ranges else [()] * 5
        part.audits.add(
            producer_id=producer,
            epoch=mark.epoch,
            next_sequence=mark.next_sequence,
            rows=mark.rows,
            last_offset=max(mark.last_offset, 0),
            range_first=ranges[0],
            range_rows=ranges[1],
            range_crc=ranges[2],
            range_base=ranges[3],
            range_time_us=ranges[4],
        )
    return part


def _rows_part(destination: Destination, number: int, chunk: int) -> bytes | None:
    low, high = chunk << CHUNK_BITS, (chunk + 1) << CHUNK_BITS
    window = range_bitmap(low, high)
    partition = destination.partitions[number]
    held = [session.held[number] for session in destination.sessions.values() if number in session.held]
    ready = []
    for priority in range(PRIORITIES):
        offsets = partition.ready.offsets[priority] & window
        for lanes in held:
            if lanes.counts[priority]:
                offsets |= lanes.offsets[priority] & window
        if offsets:
            offsets.run_optimize()
            ready.append((priority, offsets))
    index = partition.log.index()
    first, last = (int(np.searchsorted(index.bases, np.uint64(edge))) for edge in (low, high))
    attempts = [level & window for level in partition.attempts]
    if not ready and first == last and not any(attempts):
        return None
    part = store.RowsPart(
        ready=_lane_rows(ready),
        attempts=[level.serialize() for level in attempts],
        frames=index.frames[first:last].tobytes(),
        sparse=[store.SparseFrame(base=base, offsets=left.serialize()) for base, left in index.sparse.items() if low <= base < high],
    )
    return part.SerializeToString()


def _lane_rows(lanes: Iterable[Lane]) -> list[store.LaneRows]:
    return [store.LaneRows(priority=priority, offsets=offsets.serialize()) for priority, offsets in lanes]


def _consumers_part(destination: Destination) -> store.ConsumersPart:
    part = store.ConsumersPart()
    for incarnation, ended in destination.ended.items():
        part.ended.add(incarnation=incarnation, **ended._asdict())
    for consumer in destination.consumers.values():
        part.consumers.add(
            consumer=consumer.name,
            incarnation=consumer.incarnation,
            run=consumer.run,
            minted_by_run=consumer.minted_by_run,
            next_plan=consumer.next_plan,
            plans=[*(_past_part(past) for past in consumer.past.values()), *_plan_parts(destination, consumer)],
            next=consumer.next,
            floor=consumer.floor,
            minted_time_us=consumer.minted_time_us,
            acknowledged_plan=consumer.acknowledged_plan,
        )
    return part


def _plan_parts(destination: Destination, consumer: Consumer) -> Iterator[store.PlanPart]:
    at = consumer.boundary(consumer.last_past)
    for plan in consumer.plans.values():
        yield _plan_part(destination, consumer, plan, at)
        at = plan.end


def _plan_part(destination: Destination, consumer: Consumer, plan: Plan, start: dict[int, int]) -> store.PlanPart:
    assignments = [
        store.Assignment(partition=number, first=first, lanes=_lane_rows(selection.lanes))
        for number, (first, selection) in plan.assignments.items()
    ]
    return store.PlanPart(
        planned=store.Planned(
            destination=destination.number, incarnation=consumer.incarnation, plan=plan.number, run=plan.run, assignments=assignments
        ),
        time_us=plan.time_us,
        returned=plan.returned,
        acknowledged=plan.acknowledged,
        opened_by_run=plan.opened_by_run,
        read_by_run=plan.read_by_run,
        failed_attempts=plan.failed_attempts,
        batches=[store.QueryBatch(query_id=query, batch_id=batch) for query, batch in sorted(plan.batches)],
        counts=between(start, plan.end) if not assignments else {},
        serial=plan.serial,
        committed=plan.committed,
    )


def _past_part(past: Past) -> store.PlanPart:
    return store.PlanPart(
        planned=store.Planned(plan=past.number),
        returned=past.returned,
        acknowledged=not past.returned and past.used,
        opened_by_run=int(past.returned and past.used),
        serial=past.serial,
        forgotten=True,
        counts=past.numbers,
    )


def _staged_part(held: StagedSet) -> store.StagedPart:
    part = store.StagedPart(
        token=held.token,
        epoch=held.epoch,
        query_id=held.query_id,
        batch_id=held.batch_id,
        run_id=held.run_id,
        last_time_us=held.last_time_us,
        target=held.target,
    )
    for frame in held.frames:
        priorities = b"" if isinstance(frame.priorities, int) else frame.priorities.astype(np.int8).tobytes()
        part.frames.add(
            staged=frame.entry,
            segment=frame.place.segment,
            position=frame.place.position,
            size=frame.place.size,
            crc=frame.place.crc,
            priorities=priorities,
            priority=frame.priorities if isinstance(frame.priorities, int) else 0,
        )
    return part


def restore(state: State, parts: Iterator[tuple[str, bytes]]) -> None:
    """Fills a fresh state from the parts of a snapshot."""
    format_1: list[store.MarkerPart] = []
    by_kind: dict[str, list[tuple[list[str], bytes]]] = {kind: [] for kind in ("queries", "markers", "log", "rows", "consumers", "staged")}
    for key, body in parts:
        kind, *which = key.split("/")
        if kind == "broker":
            broker = store.BrokerPart.FromString(body)
            _restore_broker(state, broker)
            format_1.extend(broker.markers)
        else:
            by_kind[kind].append((which, body))
    for _, body in by_kind["queries"]:
        owners.restore_queries(state, store.QueriesPart.FromString(body))
    for _, body in by_kind["markers"]:
        owners.restore_markers(state, store.MarkersPart.FromString(body))
    for which, body in by_kind["log"]:
        _restore_log(state.by_number[int(which[0])].partitions[int(which[1])], store.LogPart.FromString(body))
    for which, body in sorted(by_kind["rows"], key=lambda part: [int(number) for number in part[0]]):
        _restore_rows(state.by_number[int(which[0])].partitions[int(which[1])], store.RowsPart.FromString(body))
    for which, body in by_kind["consumers"]:
        _restore_consumers(state.by_number[int(which[0])], store.ConsumersPart.FromString(body))
    for _, body in by_kind["staged"]:
        _restore_staged(state, store.StagedPart.FromString(body))
    owners.derive_committed(state, format_1)


def _restore_broker(state: State, part: store.BrokerPart) -> None:
    state.epoch = part.epoch
    for known in part.destinations:
        created = known.created
        partitions = [Partition(state.settings.anonymous_producers_max) for _ in range(created.partitions)]
        destination = Destination(created.destination, created.name, created.destination_id, partitions)
        state.by_name[created.name] = state.by_number[created.destination] = destination
        state.partitions_total += len(partitions)
    state.next_destination = part.next_destination
    state.producers = {opened.producer_id: opened.epoch for opened in part.producers}
    state.plans_cut = part.plans_cut
    owners.restore_format_1(state, part)


def _restore_log(partition: Partition, part: store.LogPart) -> None:
    partition.duplicates = part.duplicates
    if part.quarantined:
        partition.quarantined = BitMap64.deserialize(part.quarantined)
    partition.log.restore_producers(list(part.producers), part.next_offset)
    for audit in part.audits:
        columns = (audit.range_first, audit.range_rows, audit.range_crc, audit.range_base, audit.range_time_us)
        ranges = deque((Range(*row) for row in zip(*columns, strict=True)), maxlen=AUDIT_RANGES)
        mark = ProducerMark(audit.epoch, audit.next_sequence, audit.rows, audit.last_offset if audit.rows else -1, ranges)
        partition.audit.restore(audit.producer_id, mark)


def _restore_rows(partition: Partition, part: store.RowsPart) -> None:
    partition.ready.add((lane.priority, BitMap64.deserialize(lane.offsets)) for lane in part.ready)
    for level, offsets in enumerate(part.attempts):
        if level == len(partition.attempts):
            partition.attempts.append(BitMap64())
        partition.attempts[level] = partition.attempts[level] | BitMap64.deserialize(offsets)
    partition.log.restore(np.frombuffer(part.frames, FRAME), {f.base: BitMap64.deserialize(f.offsets) for f in part.sparse})


def _restore_consumers(destination: Destination, part: store.ConsumersPart) -> None:
    destination.ended = {ended.incarnation: Ended(ended.successor, ended.consumer, ended.shared) for ended in part.ended}
    for known in part.consumers:
        consumer = Consumer(known.consumer, known.incarnation, known.run, known.minted_by_run, known.minted_time_us)
        consumer.floor, consumer.acknowledged_plan = dict(known.floor), known.acknowledged_plan
        at = dict(known.floor)
        for kept in known.plans:
            if kept.forgotten:
                at = at | {partition: at.get(partition, 0) + count for partition, count in kept.counts.items()}
                used = kept.acknowledged or kept.opened_by_run > 0
                past = Past(kept.planned.plan, kept.serial, packed(at), packed(dict(kept.counts)), kept.returned, used)
                consumer.past[past.number] = past
                continue
            # Counts where `mq repair` left a gap.
            start = at | {partition: at.get(partition, 0) + count for partition, count in kept.counts.items()}
            plan = plan_of(kept.planned, kept.time_us, start)
            plan.returned, plan.acknowledged = kept.returned, kept.acknowledged
            plan.opened_by_run, plan.read_by_run = kept.opened_by_run, kept.read_by_run
            plan.failed_attempts = kept.failed_attempts
            plan.serial, plan.committed = kept.serial, kept.committed
            plan.batches = {(batch.query_id, batch.batch_id) for batch in kept.batches}
            consumer.plans[plan.number] = plan
            at = plan.end
        consumer.next, consumer.next_plan = dict(known.next), known.next_plan
        destination.consumers[consumer.incarnation] = consumer


def _restore_staged(state: State, part: store.StagedPart) -> None:
    target = part.target if part.HasField("target") else None
    held = StagedSet(part.token, part.epoch, part.query_id, part.batch_id, part.run_id, target)
    for frame in part.frames:
        place = KeptPlace(frame.segment, frame.position, frame.size, frame.crc)
        priorities = np.frombuffer(frame.priorities, np.int8) if frame.priorities else frame.priority
        state.staged.add(held, StagedFrame(frame.staged, place, priorities), part.last_time_us)
