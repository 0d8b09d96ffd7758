"""The state as named parts, and back. Only parts that changed are written again; a part of rows covers 2^20
offsets of a partition. What is large is cut into pieces (parts.py).

    broker                         destinations, named producers, counters
    queries/<bucket>               who reads and writes for which query
    markers/<bucket>               who has committed what
    log/<destination>/<partition>  next offset, duplicate audit; none where nobody ever sent anything
    rows/<d>/<p>/<chunk>           ready lanes, counts, frame index
    consumers/<destination>        durable consumers and their plans
    staged/<token>                 a staged set

What connected consumers hold counts as ready: their sessions do not outlive the process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

import numpy as np
from google.protobuf.message import Message
from pyroaring import BitMap64

from mq_broker.core import audit_parts, consumer_parts, owners, parts, retention, stored
from mq_broker.core.model.batches import StagedFrame
from mq_broker.core.model.destination import Destination, Partition
from mq_broker.core.model.facets import restored
from mq_broker.core.model.log import FRAME, KeptPlace, frames_of
from mq_broker.core.model.selection import Lane, range_bitmap
from mq_broker.core.model.staged import StagedSet
from mq_broker.core.model.state import State
from mq_broker.core.model.subscription import Subscription, lanes_of
from mq_broker.core.parts import key_of, part_of
from mq_broker.core.touching import CHUNK_BITS
from mq_wire.store.v1 import store_pb2 as store

#: Frames of one piece: 2 MiB.
_FRAMES: Final = 1 << 15
#: Producers in one element of a log's table.
_PRODUCERS: Final = 1000
#: Offsets of one bitmap of rows whose bytes are damaged: 4 MiB at most.
_QUARANTINED_BITS: Final = 25

_Part = TypeVar("_Part", bound=Message)


def take(state: State, kept: Iterable[str]) -> tuple[list[tuple[str, bytes]], set[str]]:
    """Returns the parts that changed since the last snapshot, and which of the `kept` keys of that one are
    unchanged.

    `state.dirty` is empty afterwards. Call `tidy` before.
    """
    dirty, state.dirty = state.dirty, set()
    gone = tuple(f"{kind}/{part[1]}/" for part in dirty if part[0] == "gone" for kind in ("log", "rows"))
    gone_keys = {f"consumers/{part[1]}" for part in dirty if part[0] == "gone"}
    changed = {key_of(part): part for part in dirty if part[0] != "gone"}

    def is_unchanged(part: str) -> bool:
        return part not in changed and part not in gone_keys and not (gone and part.startswith(gone))

    unchanged = {key for key in kept if is_unchanged(part_of(key))}
    parts = [piece for key, part in changed.items() for piece in _export(state, key, part)]
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
            edges = np.concatenate(
                (index.bases, index.bases + np.maximum(index.frames["span"], 1) - np.uint64(1))
            )
            chunks = set((edges >> np.uint64(CHUNK_BITS)).tolist())
            # Rows without a frame are there only where damage took it.
            chunks.update(
                offset >> CHUNK_BITS
                for _, lane in destination.queue.backlogs[number].ready.lanes()
                for offset in (lane.min(), lane.max())
            )
            state.dirty.update(("rows", destination.number, number, chunk) for chunk in chunks)


def tidy(state: State) -> None:
    """Forgets frames and producers that nobody needs any more; the parts they were in are written anew."""
    retention.trim(state)
    for destination in retention.touched(state):
        for number, partition in enumerate(destination.partitions):
            if partition.log.compact_producers():
                state.dirty.add(("log", destination.number, number))
                chunks = np.unique(partition.log.index().bases >> np.uint64(CHUNK_BITS))
                state.dirty.update(("rows", destination.number, number, chunk) for chunk in chunks.tolist())


def _export(state: State, key: str, part: tuple[object, ...]) -> Iterator[tuple[str, bytes]]:
    kind, *which = part
    if kind == "broker":
        return parts.cut(key, _broker_elements(state))
    if kind in ("queries", "markers"):
        return iter(())  # `owners.export` gives them, all in one go
    if kind == "staged":
        held = state.staged.get(which[0])  # type: ignore[arg-type]
        return iter(()) if held is None else _staged_pieces(key, held)
    destination = state.by_number.get(which[0])  # type: ignore[call-overload]
    if destination is None:
        return iter(())
    if kind == "consumers":
        return consumer_parts.export(key, destination)
    number = int(str(which[1]))
    if kind == "log":
        return _log_pieces(key, destination.partitions[number])
    return _rows_pieces(key, destination, number, int(str(which[2])))


def _broker_elements(state: State) -> Iterator[bytes]:
    yield store.BrokerPart(
        epoch=state.epoch, next_destination=state.next_destination, plans_cut=state.plans_cut
    ).SerializeToString()
    for d in state.by_number.values():
        created = store.DestinationCreated(
            destination=d.number, name=d.name, destination_id=d.destination_id, partitions=len(d.partitions)
        )
        yield store.BrokerPart(destinations=[store.DestinationPart(created=created)]).SerializeToString()
    for producer, epoch in state.producers.items():
        yield store.BrokerPart(
            producers=[store.ProducerOpened(producer_id=producer, epoch=epoch)]
        ).SerializeToString()


def _log_pieces(key: str, partition: Partition) -> Iterator[tuple[str, bytes]]:
    lost = partition.quarantined
    windows = (
        range(lost.min() >> _QUARANTINED_BITS, (lost.max() >> _QUARANTINED_BITS) + 1) if lost else range(0)
    )
    bitmaps = [lost & range_bitmap(at << _QUARANTINED_BITS, (at + 1) << _QUARANTINED_BITS) for at in windows]
    quarantined = [
        store.LogPart(quarantined=found.serialize()).SerializeToString() for found in bitmaps if found
    ]
    return _single(key, _log_elements(partition), quarantined)


def _single(key: str, elements: Iterable[bytes], single: list[bytes]) -> Iterator[tuple[str, bytes]]:
    """Yields the pieces of a part with elements of which a piece holds one only: their field is no list."""
    pieces = [body for _, body in parts.cut(key, [*elements, *single[:1]])]
    return parts.renumbered(key, pieces + single[1:])


def _log_elements(partition: Partition) -> Iterator[bytes]:
    log = partition.log
    yield store.LogPart(next_offset=log.next_offset, duplicates=partition.duplicates).SerializeToString()
    for at in range(0, len(log.producers), _PRODUCERS):
        yield store.LogPart(producers=log.producers[at : at + _PRODUCERS]).SerializeToString()
    yield from audit_parts.export(partition.audit)


def _ready_after_restart(subscription: Subscription, number: int, window: BitMap64) -> list[Lane]:
    """Returns the rows of a window that are ready, or whose holder does not survive a restart."""
    lanes = lanes_of((holder for holder in subscription.holders(number) if not holder.survives), window)
    ready = [(priority, offsets) for priority, offsets in sorted(lanes.items()) if offsets]
    for _, offsets in ready:
        offsets.run_optimize()
    return ready


def _backlog_elements(subscription: Subscription, number: int, window: BitMap64) -> Iterator[store.RowsPart]:
    whose = subscription.number
    for priority, offsets in _ready_after_restart(subscription, number, window):
        lane = store.LaneRows(priority=priority, offsets=offsets.serialize(), subscription=whose)
        yield store.RowsPart(ready=[lane])
    backlog = subscription.backlogs[number]
    for failed, counts in ((False, backlog.handed_out), (True, backlog.failed)):
        for bit, known in enumerate(counts.bits):
            if offsets := known & window:
                count = store.CountBit(
                    bit=bit, offsets=offsets.serialize(), subscription=whose, failed=failed
                )
                yield store.RowsPart(count_bits=[count])


def _rows_pieces(key: str, destination: Destination, number: int, chunk: int) -> Iterator[tuple[str, bytes]]:
    low, high = chunk << CHUNK_BITS, (chunk + 1) << CHUNK_BITS
    window = range_bitmap(low, high)
    elements = [
        element
        for subscription in destination.subscriptions.values()
        for element in _backlog_elements(subscription, number, window)
    ]
    index = destination.partitions[number].log.index()
    first, last = (int(np.searchsorted(index.bases, np.uint64(edge))) for edge in (low, high))
    if not elements and first == last:
        return iter(())
    sparse = [(base, left) for base, left in index.sparse.items() if low <= base < high]
    elements += [
        store.RowsPart(sparse=[{"base": base, "offsets": left.serialize()}]) for base, left in sparse
    ]
    frames = [
        store.RowsPart(
            frames=index.frames[at : min(at + _FRAMES, last)].tobytes(), frame_bytes=FRAME.itemsize
        )
        for at in range(first, last, _FRAMES)
    ]
    return _single(
        key, (part.SerializeToString() for part in elements), [part.SerializeToString() for part in frames]
    )


def _staged_pieces(key: str, held: StagedSet) -> Iterator[tuple[str, bytes]]:
    head = store.StagedPart(
        token=held.token,
        epoch=held.epoch,
        query_id=held.query_id,
        batch_id=held.batch_id,
        run_id=held.run_id,
        last_time_us=held.last_time_us,
        target=held.target,
    )
    return parts.cut(key, (_staged_element(frame) for frame in held.frames), head.SerializeToString())


def _staged_element(frame: StagedFrame) -> bytes:
    known = store.StagedFrame(
        staged=frame.entry,
        segment=frame.place.segment,
        position=frame.place.position,
        size=frame.place.size,
        crc=frame.place.crc,
        priorities=frame.facets.priorities_written(),
        priority=max(frame.facets.frame_priority, 0),
    )
    return store.StagedPart(frames=[known]).SerializeToString()


def restore(state: State, found: Iterator[tuple[str, bytes]]) -> None:
    """Fills a fresh state from the parts of a snapshot.

    Raises:
        DataDirectoryUnusable: a newer version wrote it.
    """
    by_kind: dict[str, list[tuple[str, bytes]]] = {}
    for key, body in found:
        kind, _, _ = part_of(key).partition("/")
        by_kind.setdefault(kind, []).append((key, body))
    stored.check_keys(part_of(key) for pieces in by_kind.values() for key, _ in pieces)
    format_1: list[store.MarkerPart] = []
    for _, broker in _in_order(store.BrokerPart, by_kind.get("broker", [])):
        _restore_broker(state, broker)
        format_1.extend(broker.markers)
    for _, queries in _in_order(store.QueriesPart, by_kind.get("queries", [])):
        owners.restore_queries(state, queries)
    for _, markers in _in_order(store.MarkersPart, by_kind.get("markers", [])):
        owners.restore_markers(state, markers)
    for which, log in _in_order(store.LogPart, by_kind.get("log", [])):
        _restore_log(state.by_number[int(which[0])].partitions[int(which[1])], log)
    state.audits.restore(p.audit for d in state.by_number.values() for p in d.partitions)
    format_1_rows = set()
    for which, rows in _in_order(store.RowsPart, by_kind.get("rows", [])):
        destination, number = state.by_number[int(which[0])], int(which[1])
        _restore_rows(destination, number, rows)
        if rows.frames and not rows.frame_bytes:
            format_1_rows.add(destination.partitions[number])
    for partition in format_1_rows:
        partition.log.count_sparse()
    for which, consumers in _in_order(store.ConsumersPart, by_kind.get("consumers", [])):
        consumer_parts.restore(state.by_number[int(which[0])], consumers)
    state.consumers_total = sum(d.durable_consumers for d in state.by_number.values())
    for _, staged in _in_order(store.StagedPart, by_kind.get("staged", [])):
        _restore_staged(state, staged)
    owners.derive_committed(state, format_1)


def _in_order(kind: type[_Part], pieces: list[tuple[str, bytes]]) -> Iterator[tuple[list[str], _Part]]:
    """Yields pieces part by part, and those of a part as they were cut: names in the key, and the piece."""

    def place(piece: tuple[str, bytes]) -> tuple[list[tuple[int, str]], int]:
        # Numbers have no leading zeros, and tokens one length: this is the order of numbers, and any order of
        # tokens.
        key = piece[0]
        return [(len(at), at) for at in part_of(key).split("/")[1:]], parts.number_of(key)

    for key, body in sorted(pieces, key=place):
        yield part_of(key).split("/")[1:], stored.part_of(kind, key, body)


def _restore_broker(state: State, part: store.BrokerPart) -> None:
    state.epoch = max(state.epoch, part.epoch)
    for known in part.destinations:
        created = known.created
        partitions = [Partition(state.audits) for _ in range(created.partitions)]
        state.add(Destination(created.destination, created.name, created.destination_id, partitions))
    state.next_destination = max(state.next_destination, part.next_destination)
    state.producers |= {opened.producer_id: opened.epoch for opened in part.producers}
    state.plans_cut = max(state.plans_cut, part.plans_cut)
    owners.restore_format_1(state, part)


def _restore_log(partition: Partition, part: store.LogPart) -> None:
    partition.duplicates += part.duplicates
    if part.quarantined:
        partition.quarantined = partition.quarantined | BitMap64.deserialize(part.quarantined)
    partition.log.restore_producers(part.producers, part.next_offset)
    audit_parts.restore(partition.audit, part)


def _restore_rows(destination: Destination, number: int, part: store.RowsPart) -> None:
    for lane in part.ready:
        backlog = destination.subscriptions[lane.subscription].backlogs[number]
        backlog.restore([(lane.priority, BitMap64.deserialize(lane.offsets))])
    for known in part.count_bits:
        backlog = destination.subscriptions[known.subscription].backlogs[number]
        counts = backlog.failed if known.failed else backlog.handed_out
        counts.restore(known.bit, BitMap64.deserialize(known.offsets))
    for above in part.attempts:  # format 1
        destination.queue.backlogs[number].handed_out.add(BitMap64.deserialize(above))
    destination.partitions[number].log.restore(
        frames_of(part.frames, part.frame_bytes),
        {f.base: BitMap64.deserialize(f.offsets) for f in part.sparse},
    )


def _restore_staged(state: State, part: store.StagedPart) -> None:
    target = part.target if part.HasField("target") else None
    held = state.staged.get(part.token) or StagedSet(
        part.token, part.epoch, part.query_id, part.batch_id, part.run_id, target
    )
    for frame in part.frames:
        place = KeptPlace(frame.segment, frame.position, frame.size, frame.crc)
        facets = restored(frame.priority, frame.priorities)
        state.staged.add(held, frame.staged, place, facets, part.last_time_us)
