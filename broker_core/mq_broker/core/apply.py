"""What each journal entry does to the state, live and at recovery alike. Nothing is decided here, and nothing
refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from pyroaring import BitMap64

from mq_broker.core import owners
from mq_broker.core.audit import SKIPPED, Range
from mq_broker.core.consumer_parts import plan_of
from mq_broker.core.destination import Destination, Partition
from mq_broker.core.durable_consumer import Consumer, Plan
from mq_broker.core.facets import Facets
from mq_broker.core.log import Place
from mq_broker.core.markers import Marker
from mq_broker.core.query import Reader
from mq_broker.core.selection import Selection
from mq_broker.core.staged import StagedFrame, StagedSet, bare
from mq_broker.core.state import State
from mq_broker.core.subscription import Ended, Subscription
from mq_wire.store.v1 import store_pb2 as store

#: Chunk of the offsets that one snapshot part covers.
CHUNK_BITS: Final = 20


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


def _partition(state: State, destination: int, partition: int) -> tuple[Destination, Partition]:
    found = state.by_number[destination]
    return found, found.partitions[partition]


def _touch(state: State, destination: int, partition: int, start: int, stop: int) -> None:
    state.by_number[destination].partitions[partition].changes += 1
    state.dirty.add(("log", destination, partition))
    for chunk in range(start >> CHUNK_BITS, ((stop - 1) >> CHUNK_BITS) + 1):
        state.dirty.add(("rows", destination, partition, chunk))


def _touch_rows(state: State, destination: int, partition: int, selection: Selection) -> None:
    if selection.rows:
        _touch(state, destination, partition, *selection.span())


def _destination_created(
    state: State, what: store.DestinationCreated, time_us: int, body: Body | None
) -> None:
    partitions = [Partition(state.settings.anonymous_producers_max) for _ in range(what.partitions)]
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
        if any(frame.entry.destination == what.destination for frame in held.frames):
            _drop_staged(state, token)
    state.dirty.add(("broker",))
    state.dirty.add(("gone", what.destination))


def _producer_opened(state: State, what: store.ProducerOpened, time_us: int, body: Body | None) -> None:
    state.producers[what.producer_id] = what.epoch
    state.dirty.add(("broker",))


def _published(state: State, what: store.Published, time_us: int, body: Body | None) -> None:
    assert body is not None
    destination, partition = _partition(state, what.destination, what.partition)
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
    _touch(state, what.destination, what.partition, base, base + records.rows)
    state.stir(destination.name)


def _append(destination: Destination, partition: int, base: int, facets: Facets, rows: int) -> None:
    for subscription in destination.subscriptions.values():
        subscription.backlogs[partition].append(base, facets, rows)


def _skipped(state: State, what: store.Skipped, time_us: int, body: Body | None) -> None:
    _, partition = _partition(state, what.destination, what.partition)
    partition.audit.record(
        what.producer_id, what.epoch, Range(what.first_sequence, what.rows, 0, SKIPPED, time_us)
    )
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
    state.staged.add(held, StagedFrame(bare(what), body.place, body.facets), time_us)
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
    for token in what.tokens:
        held = state.staged.pop(token)
        assert held is not None
        state.dirty.add(("staged", token))
        for frame in held.frames:
            entry, records = frame.entry, frame.entry.records
            destination, partition = _partition(state, entry.destination, entry.partition)
            priority = frame.facets.frame_priority
            base = partition.log.append(records.rows, records.columns, frame.place, priority, "", 0, time_us)
            _append(destination, entry.partition, base, frame.facets, records.rows)
            _touch(state, entry.destination, entry.partition, base, base + records.rows)
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
    subscription = _subscription(state, what)
    for rows in what.rows:
        offsets = BitMap64.deserialize(rows.offsets)
        subscription.backlogs[rows.partition].acknowledge(offsets)
        _touch(state, what.destination, rows.partition, offsets.min(), offsets.max() + 1)


def _returned(state: State, what: store.Returned, time_us: int, body: Body | None) -> None:
    subscription = _subscription(state, what)
    for rows in what.rows:
        offsets = BitMap64.deserialize(rows.offsets)
        subscription.backlogs[rows.partition].attempts.add(offsets)
        _touch(state, what.destination, rows.partition, offsets.min(), offsets.max() + 1)


def _epoch_taken(state: State, what: store.EpochTaken, time_us: int, body: Body | None) -> None:
    state.epoch = what.epoch
    state.dirty.add(("broker",))


class _OfSubscription(Protocol):
    """An entry about what one subscription has read."""

    @property
    def destination(self) -> int: ...
    @property
    def subscription(self) -> int: ...


class _OfConsumer(_OfSubscription, Protocol):
    """An entry about one durable consumer."""

    @property
    def incarnation(self) -> bytes: ...


def _subscription(state: State, what: _OfSubscription) -> Subscription:
    return state.by_number[what.destination].subscriptions[what.subscription]


def _consumer(state: State, what: _OfConsumer) -> tuple[Destination, Subscription, Consumer]:
    state.dirty.add(("consumers", what.destination))
    subscription = _subscription(state, what)
    subscription.changes += 1
    return state.by_number[what.destination], subscription, subscription.consumers[what.incarnation]


def _consumer_minted(state: State, what: store.ConsumerMinted, time_us: int, body: Body | None) -> None:
    _subscription(state, what).consumers[what.incarnation] = Consumer(
        what.consumer, what.incarnation, what.run, what.run, time_us
    )
    state.consumers_total += 1
    state.dirty.add(("consumers", what.destination))


def _planned(state: State, what: store.Planned, time_us: int, body: Body | None) -> None:
    _, subscription, consumer = _consumer(state, what)
    plan = plan_of(what, time_us, consumer.next)
    state.plans_cut += 1
    plan.serial = state.plans_cut
    state.dirty.add(("broker",))
    for number, (_, selection) in plan.assignments.items():
        subscription.backlogs[number].plan(selection)
        _touch_rows(state, what.destination, number, selection)
    consumer.add(plan)
    consumer.run = max(consumer.run, what.run)


def _give_back(
    state: State, destination: Destination, subscription: Subscription, plan: Plan, charge: int
) -> None:
    for number, (_, selection) in plan.assignments.items():
        backlog = subscription.backlogs[number]
        backlog.give_back(selection)
        if charge and selection.rows:
            backlog.attempts.add(selection.offsets(), charge)
        _touch_rows(state, destination.number, number, selection)
    plan.returned, plan.emptied, plan.assignments = True, True, {}
    state.stir(destination.name)


def _let_go(state: State, destination: Destination, subscription: Subscription, plan: Plan) -> None:
    """Nobody can get the rows of a plan any more: its frames may be forgotten, in snapshots too, or moved."""
    for number, (_, selection) in plan.assignments.items():
        if selection.rows:
            subscription.backlogs[number].lose(selection.offsets())
            _touch_rows(state, destination.number, number, selection)


def _plans_returned(state: State, what: store.PlansReturned, time_us: int, body: Body | None) -> None:
    destination, subscription, consumer = _consumer(state, what)
    for number in what.plans:
        _give_back(state, destination, subscription, consumer.plans[number], charge=0)
        # Who opens it from now on finds it empty.
        consumer.plans[number].opened_by_run = 0
    consumer.drop_returned(state.settings.kept_returned)


def _plans_acknowledged(state: State, what: store.PlansAcknowledged, time_us: int, body: Body | None) -> None:
    destination, subscription, consumer = _consumer(state, what)
    for plan in consumer.between(0, what.through):
        if plan.pending:
            for number, (_, selection) in plan.assignments.items():
                if selection.rows:
                    subscription.backlogs[number].keep(selection.offsets())
                    _touch_rows(state, what.destination, number, selection)
    before = consumer.acknowledged_plan
    consumer.acknowledge(what.through)
    _forget_plans(state, destination, subscription, consumer, before)


def _forget_plans(
    state: State, destination: Destination, subscription: Subscription, consumer: Consumer, through: int
) -> None:
    for plan in consumer.between(0, through):
        if not plan.returned:
            _let_go(state, destination, subscription, plan)
    consumer.forget(through, state.settings.kept_boundaries)


def _plans_forgotten(state: State, what: store.PlansForgotten, time_us: int, body: Body | None) -> None:
    _forget_plans(state, *_consumer(state, what), what.through)


def _query_joined(state: State, what: store.QueryJoined, time_us: int, body: Body | None) -> None:
    owners.set_reader(
        state, what.query_id, what.destination, Reader(what.spark_run_id, what.run, what.incarnation)
    )


def _range_opened(state: State, what: store.RangeOpened, time_us: int, body: Body | None) -> None:
    _, _, consumer = _consumer(state, what)
    consumer.run = max(consumer.run, what.run)
    for number in what.failed:
        consumer.plans[number].failed_attempts += 1
    for number in what.plans:
        consumer.plans[number].opened_by_run = what.run


def _range_read(state: State, what: store.RangeRead, time_us: int, body: Body | None) -> None:
    if what.query_id:
        owners.note_read(state, what)
    if not what.plans:
        return  # an empty batch: its number counts as used all the same
    _, _, consumer = _consumer(state, what)
    for number in what.plans:
        plan = consumer.plans[number]
        plan.read_by_run = max(plan.read_by_run, what.run)
        if what.query_id:
            plan.batches.add((what.query_id, what.batch_id))
            plan.committed = plan.committed or state.queries[what.query_id].committed == what.batch_id


def _consumer_ended(state: State, what: store.ConsumerEnded, time_us: int, body: Body | None) -> None:
    destination, subscription, consumer = _consumer(state, what)
    for number in what.returned:
        plan = consumer.plans[number]
        # Two readers of one query: reading by mistake is no failed attempt.
        charge = 0 if what.shared else plan.failed_attempts + plan.read_since_opened
        _give_back(state, destination, subscription, plan, charge)
        for query_id, batch in plan.batches:
            owners.touch_query(state, query_id).fence(batch)
    for plan in consumer.plans.values():
        if not plan.returned:  # acknowledged now or before
            _let_go(state, destination, subscription, plan)
    del subscription.consumers[what.incarnation]
    state.consumers_total -= 1
    state.is_crowded = False
    subscription.note_ended(
        what.incarnation, Ended(what.successor, consumer.name, what.shared), state.settings.kept_ended
    )
    state.dirty.add(("broker",))


def _marker_forgotten(state: State, what: store.MarkerForgotten, time_us: int, body: Body | None) -> None:
    owners.drop_marker(state, what.owner, what.target)
    query_id = owners.query_of(what.owner)
    if query_id in state.queries:
        left = (marker.version for (owner, _), marker in state.markers.items() if owner == what.owner)
        state.queries[query_id].committed = max(left, default=None)


def _moved(state: State, what: store.Moved, time_us: int, body: Body | None) -> None:
    assert body is not None
    _, partition = _partition(state, what.destination, what.partition)
    left = BitMap64.deserialize(what.offsets)
    index = partition.log.index()
    base = int(index.bases[index.between(left.min(), left.min() + 1)[0]])
    partition.log.move(base, what.records.columns, body.place, left)
    _touch(state, what.destination, what.partition, base, left.max() + 1)


def _quarantined(state: State, what: store.Quarantined, time_us: int, body: Body | None) -> None:
    for rows in what.rows:
        destination, partition = _partition(state, what.destination, rows.partition)
        offsets = BitMap64.deserialize(rows.offsets)
        partition.quarantined = partition.quarantined | offsets
        for subscription in destination.subscriptions.values():
            subscription.backlogs[rows.partition].lose(offsets)
        _touch(state, what.destination, rows.partition, offsets.min(), offsets.max() + 1)


def _duplicates_counted(state: State, what: store.DuplicatesCounted, time_us: int, body: Body | None) -> None:
    _, partition = _partition(state, what.destination, what.partition)
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
    "consumer_minted": _consumer_minted,
    "planned": _planned,
    "plans_returned": _plans_returned,
    "plans_acknowledged": _plans_acknowledged,
    "range_opened": _range_opened,
    "range_read": _range_read,
    "consumer_ended": _consumer_ended,
    "marker_forgotten": _marker_forgotten,
    "moved": _moved,
    "quarantined": _quarantined,
    "duplicates_counted": _duplicates_counted,
    "query_joined": _query_joined,
    "plans_forgotten": _plans_forgotten,
}
