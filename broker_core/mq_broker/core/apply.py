"""What each journal entry does to the state, live and at recovery alike. Nothing is decided here, and nothing
refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pyroaring import BitMap64

from mq_broker.core import apply_consumers, owners
from mq_broker.core.model.audit import SKIPPED, Range
from mq_broker.core.model.batches import in_partitions
from mq_broker.core.model.destination import Destination, Partition
from mq_broker.core.model.facets import Facets
from mq_broker.core.model.log import Place
from mq_broker.core.model.markers import Marker
from mq_broker.core.model.staged import StagedSet
from mq_broker.core.model.state import State
from mq_broker.core.touching import partition_of, subscription_of, touch
from mq_wire.store.v1 import store_pb2 as store


@dataclass(frozen=True, slots=True)
class Body:
    """The records that came with an entry: where they lie, and the facets of their rows."""

    place: Place
    facets: Facets


def apply(state: State, entry: store.Entry, body: Body | None) -> None:
    """Changes `state` as `entry` says. `body` belongs to entries with records."""
    kind = entry.WhichOneof("what")
    if kind is None:
        raise AssertionError("an entry of a newer version cannot be applied: recovery must have refused it")
    _APPLY[kind](state, getattr(entry, kind), entry.time_us, body)


def _destination_created(
    state: State, what: store.DestinationCreated, time_us: int, body: Body | None
) -> None:
    partitions = [Partition(state.audits) for _ in range(what.partitions)]
    destination = Destination(what.destination, what.name, what.destination_id, partitions)
    state.add(destination)
    state.next_destination = what.destination + 1
    state.dirty.add(("broker",))


def _destination_deleted(
    state: State, what: store.DestinationDeleted, time_us: int, body: Body | None
) -> None:
    state.is_crowded = False
    state.consumers_total -= state.by_number[what.destination].durable_consumers
    state.remove(what.destination)
    for token, held in list(state.staged.items()) if state.staged.rows_of[what.destination] else ():
        if what.destination in held.rows_of:
            _drop_staged(state, token)
    state.dirty.add(("broker",))
    state.dirty.add(("gone", what.destination))


def _producer_opened(state: State, what: store.ProducerOpened, time_us: int, body: Body | None) -> None:
    state.producers[what.producer_id] = what.epoch
    state.dirty.add(("broker",))


def _published(state: State, what: store.Published, time_us: int, body: Body | None) -> None:
    assert body is not None
    destination, partition = partition_of(state, what.destination, what.partition)
    records = what.records
    base = partition.log.append(
        records.rows,
        records.columns,
        body.place,
        body.facets.frame_priority,
        what.producer_id,
        what.first_sequence,
        time_us,
    )
    assert base == what.base_offset, (destination.name, what.partition, base, what.base_offset)
    _append(destination, what.partition, base, body.facets, records.rows)
    partition.audit.record(
        what.producer_id,
        what.epoch,
        Range(what.first_sequence, records.rows, what.records_crc, base, time_us),
    )
    _note_forgotten(state)
    touch(state, what.destination, what.partition, base, base + records.rows)
    state.stir(destination.name)


def _note_forgotten(state: State) -> None:
    """Snapshots forget the producers that audits have forgotten."""
    forgot = state.audits.forgot
    while forgot:
        audit = forgot.pop()
        state.dirty.add(("log", *audit.place))


def _append(destination: Destination, partition: int, base: int, facets: Facets, rows: int) -> None:
    for subscription in destination.subscriptions.values():
        subscription.backlogs[partition].append(base, facets, rows)


def _skipped(state: State, what: store.Skipped, time_us: int, body: Body | None) -> None:
    _, partition = partition_of(state, what.destination, what.partition)
    partition.audit.record(
        what.producer_id, what.epoch, Range(what.first_sequence, what.rows, 0, SKIPPED, time_us)
    )
    _note_forgotten(state)
    state.dirty.add(("log", what.destination, what.partition))


def _staged(state: State, what: store.Staged, time_us: int, body: Body | None) -> None:
    assert body is not None
    held = state.staged.get(what.token)
    if what.moved:
        if held is not None:
            held.move(what, body.place)
            state.dirty.add(("staged", what.token))
        return
    target = _target_of(what)
    if held is None:
        held = StagedSet(what.token, what.epoch, what.query_id, what.batch_id, what.run_id, target)
    state.staged.add(held, what, body.place, body.facets, time_us)
    if what.query_id:
        owners.raise_epoch(state, what.query_id, target, what.epoch)
    state.dirty.add(("staged", what.token))


def _target_of(what: store.Staged | store.StagedDiscarded) -> str | None:
    return what.target if what.HasField("target") else None


def _drop_staged(state: State, token: bytes) -> None:
    held = state.staged.pop(token)
    assert held is not None
    state.is_crowded = False
    state.dirty.add(("staged", token))


def _staged_committed(state: State, what: store.StagedCommitted, time_us: int, body: Body | None) -> None:
    state.is_crowded = False
    sets = []
    for token in what.tokens:
        held = state.staged.pop(token)
        assert held is not None
        state.dirty.add(("staged", token))
        sets.append(held.frames)
    for number, partition, frames, priorities in in_partitions(sets, time_us):
        destination, found = partition_of(state, number, partition)
        base = found.log.extend(frames)
        for subscription in destination.subscriptions.values():
            subscription.backlogs[partition].append_runs(base, priorities)
        touch(state, number, partition, base, found.log.next_offset)
        state.stir(destination.name)
    if what.owner:
        owners.set_marker(
            state,
            what.owner,
            what.target,
            Marker(what.version, what.run_id, what.rows, what.query_id, time_us),
        )
        if query := owners.query_of(what.owner):
            owners.mark_committed(state, query, what.version)


def _staged_discarded(state: State, what: store.StagedDiscarded, time_us: int, body: Body | None) -> None:
    target = _target_of(what)
    for token in what.tokens:
        _drop_staged(state, token)
    if what.older:
        for held in state.staged.of_query(what.query_id, target):
            if held.epoch < what.epochs_below:
                _drop_staged(state, held.token)
    if what.HasField("batches_through"):
        for held in state.staged.of_query(what.query_id, target):
            if held.batch_id <= what.batches_through:
                _drop_staged(state, held.token)
    if what.epochs_below:
        owners.raise_epoch(state, what.query_id, target, what.epochs_below)


def _acknowledged(state: State, what: store.Acknowledged, time_us: int, body: Body | None) -> None:
    subscription = subscription_of(state, what)
    for rows in what.rows:
        offsets = BitMap64.deserialize(rows.offsets)
        subscription.backlogs[rows.partition].acknowledge(offsets)
        touch(state, what.destination, rows.partition, offsets.min(), offsets.max() + 1)


def _returned(state: State, what: store.Returned, time_us: int, body: Body | None) -> None:
    subscription = subscription_of(state, what)
    for blamed, named in ((False, what.rows), (True, what.failed)):
        for rows in named:
            offsets = BitMap64.deserialize(rows.offsets)
            backlog = subscription.backlogs[rows.partition]
            (backlog.failed if blamed else backlog.handed_out).add(offsets)
            touch(state, what.destination, rows.partition, offsets.min(), offsets.max() + 1)


def _epoch_taken(state: State, what: store.EpochTaken, time_us: int, body: Body | None) -> None:
    state.epoch = what.epoch
    state.dirty.add(("broker",))


def _marker_forgotten(state: State, what: store.MarkerForgotten, time_us: int, body: Body | None) -> None:
    owners.drop_marker(state, what.owner, what.target)
    query_id = owners.query_of(what.owner)
    if query_id in state.queries:
        left = (marker.version for (owner, _), marker in state.markers.items() if owner == what.owner)
        state.queries[query_id].committed = max(left, default=None)


def _moved(state: State, what: store.Moved, time_us: int, body: Body | None) -> None:
    assert body is not None
    _, partition = partition_of(state, what.destination, what.partition)
    left = BitMap64.deserialize(what.offsets)
    index = partition.log.index()
    base = int(index.bases[index.between(left.min(), left.min() + 1)[0]])
    partition.log.move(base, what.records.columns, body.place, left)
    touch(state, what.destination, what.partition, base, left.max() + 1)


def _quarantined(state: State, what: store.Quarantined, time_us: int, body: Body | None) -> None:
    for rows in what.rows:
        destination, partition = partition_of(state, what.destination, rows.partition)
        offsets = BitMap64.deserialize(rows.offsets)
        partition.quarantined = partition.quarantined | offsets
        for subscription in destination.subscriptions.values():
            subscription.backlogs[rows.partition].lose(offsets)
        touch(state, what.destination, rows.partition, offsets.min(), offsets.max() + 1)


def _duplicates_counted(state: State, what: store.DuplicatesCounted, time_us: int, body: Body | None) -> None:
    _, partition = partition_of(state, what.destination, what.partition)
    partition.duplicates += what.rows
    state.dirty.add(("log", what.destination, what.partition))


_APPLY: Final[dict[str, Callable[[State, Any, int, Body | None], None]]] = {
    "destination_created": _destination_created,
    "destination_deleted": _destination_deleted,
    "producer_opened": _producer_opened,
    "published": _published,
    "skipped": _skipped,
    "staged": _staged,
    "staged_committed": _staged_committed,
    "staged_discarded": _staged_discarded,
    "acknowledged": _acknowledged,
    "returned": _returned,
    "epoch_taken": _epoch_taken,
    "consumer_minted": apply_consumers.consumer_minted,
    "planned": apply_consumers.planned,
    "plans_returned": apply_consumers.plans_returned,
    "plans_acknowledged": apply_consumers.plans_acknowledged,
    "range_opened": apply_consumers.range_opened,
    "range_read": apply_consumers.range_read,
    "consumer_ended": apply_consumers.consumer_ended,
    "marker_forgotten": _marker_forgotten,
    "moved": _moved,
    "quarantined": _quarantined,
    "duplicates_counted": _duplicates_counted,
    "query_joined": apply_consumers.query_joined,
    "plans_forgotten": apply_consumers.plans_forgotten,
}
