"""Applies entries to a state that lacks some earlier ones.

Entries have absolute values: offsets, numbers of plans, identities. So missing entries are noticed, and
entries after them can still be applied. Two rules hold when entries are missing: a row counts as acknowledged
only if an entry says so, and no number is used twice.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from pyroaring import BitMap64

from mq_broker.core import apply, owners
from mq_broker.core.consumer_parts import plan_of
from mq_broker.core.model.audit import SKIPPED, Range
from mq_broker.core.model.batches import StagedFrame
from mq_broker.core.model.destination import Destination
from mq_broker.core.model.durable_consumer import Consumer, Plan, packed
from mq_broker.core.model.facets import facets_of, stored_facets
from mq_broker.core.model.markers import Marker
from mq_broker.core.model.selection import offsets_array
from mq_broker.core.model.staged import StagedSet
from mq_broker.core.model.subscription import Ended
from mq_broker.core.stored import entry_of
from mq_broker.journal.frames import BodyPlace
from mq_broker.repair.gaps import Gaps, Key
from mq_wire.store.v1 import store_pb2 as store


class Replay:
    """Applies entries to a state, and fills its gaps.

    Args:
        gaps: of the state.
    """

    def __init__(self, gaps: Gaps) -> None:
        self.gaps = gaps
        self.state = gaps.state
        #: Frames whose bytes were found damaged while reading: (segment, position).
        self.damaged: set[tuple[int, int]] = set()

    def entry(self, header: bytes | memoryview, body: memoryview | None, place: BodyPlace | None) -> None:
        """Applies one entry. If `body` is None and `place` is not, the bytes of the body are damaged.

        Raises:
            DataDirectoryUnusable: a newer version wrote the entry.
        """
        entry = entry_of(header)
        kind = str(entry.WhichOneof("what"))
        handler = _HANDLERS.get(kind)
        given = self._body(entry, kind, body, place) if place is not None else None
        if handler is not None:
            handler(self, getattr(entry, kind), entry, given)
        else:
            apply.apply(self.state, entry, given)

    def _body(self, entry: store.Entry, kind: str, body: memoryview | None, place: BodyPlace) -> apply.Body:
        records = getattr(entry, kind).records
        if body is not None:
            return apply.Body(place, stored_facets(records, pa.py_buffer(body)))
        self.damaged.add((place.segment, place.position))
        return apply.Body(place, facets_of(records, None))

    def _consumer(self, number: int, incarnation: bytes) -> Consumer | None:
        destination = self.state.by_number.get(number)
        return destination.queue.consumers.get(incarnation) if destination is not None else None

    # One handler for each kind of entry that depends on earlier entries.

    def _created(self, what: store.DestinationCreated, entry: store.Entry, _: apply.Body | None) -> None:
        old = self.state.by_name.get(what.name)
        if what.destination in self.state.by_number:
            return
        if old is not None:  # its deletion is lost
            apply.apply(self.state, store.Entry(destination_deleted={"destination": old.number}), None)
        following = self.state.next_destination
        apply.apply(self.state, entry, None)
        self.state.next_destination = max(following, what.destination + 1)

    def _deleted(self, what: store.DestinationDeleted, entry: store.Entry, _: apply.Body | None) -> None:
        for key in [key for key in self.gaps.holes if key[0] == what.destination]:
            del self.gaps.holes[key]
        if what.destination in self.state.by_number:
            apply.apply(self.state, entry, None)

    def _published(self, what: store.Published, entry: store.Entry, body: apply.Body | None) -> None:
        assert body is not None
        partition = self.gaps.partition(what.destination, what.partition)
        if what.base_offset < partition.log.next_offset:
            return  # a remain of a torn turn: its offsets were given to other rows
        self.gaps.grow(what.destination, what.partition, what.base_offset)
        self.gaps.sure.add((what.destination, what.partition))
        apply.apply(self.state, entry, body)
        if (body.place.segment, body.place.position) in self.damaged:
            # A retry of these rows must not count as a duplicate, since the rows are lost.
            skipped = Range(what.first_sequence, what.records.rows, 0, SKIPPED, entry.time_us)
            mark = partition.audit.mark(what.producer_id)
            assert mark is not None, "it was just stored"
            mark.amend(skipped)

    def _skipped(self, what: store.Skipped, entry: store.Entry, _: apply.Body | None) -> None:
        self.gaps.partition(what.destination, what.partition)
        apply.apply(self.state, entry, None)

    def _staged(self, what: store.Staged, entry: store.Entry, body: apply.Body | None) -> None:
        self.gaps.partition(what.destination, what.partition)
        apply.apply(self.state, entry, body)

    def _committed(self, what: store.StagedCommitted, entry: store.Entry, _: apply.Body | None) -> None:
        if self._in_order(what):
            apply.apply(self.state, entry, None)
            self.gaps.sure.update((given.destination, given.partition) for given in what.ranges)
            return
        for at, token in enumerate(what.tokens):
            held = self.state.staged.pop(token)
            self.state.dirty.add(("staged", token))
            ranges = [given for given in what.ranges if given.set == at]
            if ranges or held is None:
                for given in ranges:
                    self._take_range(given, held, entry.time_us)
            else:
                for frame in held.frames:
                    log = self.gaps.partition(frame.entry.destination, frame.entry.partition).log
                    self._take(frame, log.next_offset, entry.time_us)
        if what.owner:
            marker = Marker(what.version, what.run_id, what.rows, what.query_id, entry.time_us)
            owners.set_marker(self.state, what.owner, what.target, marker)
            if query := owners.query_of(what.owner):
                owners.mark_committed(self.state, query, what.version)

    def _in_order(self, what: store.StagedCommitted) -> bool:
        """Whether all sets are complete, so that applying the commit gives the same offsets as the first
        time.
        """
        following: dict[Key, int] = {}
        for given in what.ranges:
            key = (given.destination, given.partition)
            if given.base != following.get(key, self.gaps.partition(*key).log.next_offset):
                return False
            following[key] = given.base + given.rows
        sets = [self.state.staged.get(token) for token in what.tokens]
        whole: dict[Key, int] = {}
        for held in sets:
            for frame in held.frames if held is not None else ():
                key = (frame.entry.destination, frame.entry.partition)
                whole[key] = whole.get(key, 0) + frame.entry.records.rows
        given_rows: dict[Key, int] = {}
        for given in what.ranges:
            key = (given.destination, given.partition)
            given_rows[key] = given_rows.get(key, 0) + given.rows
        return None not in sets and (not what.ranges or whole == given_rows)

    def _take_range(self, given: store.StagedRange, held: StagedSet | None, time_us: int) -> None:
        partition = self.gaps.partition(given.destination, given.partition)
        if given.base < partition.log.next_offset:
            return
        here = (given.destination, given.partition)
        self.gaps.sure.add(here)
        for frame in held.frames if held is not None else ():
            if (frame.entry.destination, frame.entry.partition) == here:
                base = given.base + frame.entry.first_sequence
                self.gaps.grow(*here, base)
                self._take(frame, base, time_us)
        self.gaps.grow(*here, given.base + given.rows)

    def _take(self, frame: StagedFrame, base: int, time_us: int) -> None:
        records = frame.entry.records
        destination = self.state.by_number[frame.entry.destination]
        partition = destination.partitions[frame.entry.partition]
        priority = frame.facets.frame_priority
        partition.log.append(records.rows, records.columns, frame.place, priority, "", 0, time_us)
        destination.queue.backlogs[frame.entry.partition].append(base, frame.facets, records.rows)

    def _discarded(self, what: store.StagedDiscarded, entry: store.Entry, _: apply.Body | None) -> None:
        _keep(what.tokens, [token for token in what.tokens if token in self.state.staged])
        apply.apply(self.state, entry, None)

    def _acknowledged(self, what: store.Acknowledged, entry: store.Entry, _: apply.Body | None) -> None:
        self._known_rows(what.destination, what.rows, entry)
        for rows in what.rows:
            self.gaps.holes[what.destination, rows.partition] -= BitMap64.deserialize(rows.offsets)

    def _returned(self, what: store.Returned, entry: store.Entry, _: apply.Body | None) -> None:
        self._known_rows(what.destination, [*what.rows, *what.failed], entry)

    def _quarantined(self, what: store.Quarantined, entry: store.Entry, _: apply.Body | None) -> None:
        self._known_rows(what.destination, what.rows, entry)

    def _counted(self, what: store.DuplicatesCounted, entry: store.Entry, _: apply.Body | None) -> None:
        self.gaps.partition(what.destination, what.partition)
        apply.apply(self.state, entry, None)

    def _known_rows(self, destination: int, named: Any, entry: store.Entry) -> None:
        for rows in named:
            self.gaps.grow(destination, rows.partition, BitMap64.deserialize(rows.offsets).max() + 1)
        apply.apply(self.state, entry, None)

    def _minted(self, what: store.ConsumerMinted, entry: store.Entry, _: apply.Body | None) -> None:
        destination = self.gaps.destination(what.destination)
        before = destination.queue.consumer_named(what.consumer)
        if before is not None:  # the entry that ended it is lost
            self._end(destination, before, what.incarnation)
        apply.apply(self.state, entry, None)

    def _end(self, destination: Destination, consumer: Consumer, successor: bytes) -> None:
        pending = [plan.number for plan in consumer.pending()]
        ended = {
            "destination": destination.number,
            "incarnation": consumer.incarnation,
            "successor": successor,
            "returned": pending,
        }
        apply.apply(self.state, store.Entry(consumer_ended=ended), None)

    def _planned(self, what: store.Planned, entry: store.Entry, _: apply.Body | None) -> None:
        consumer = self._consumer(what.destination, what.incarnation)
        if consumer is None:
            self.gaps.note(
                f"consumer {what.incarnation.hex()} is no longer known: "
                f"rows of its plan {what.plan} may be delivered again"
            )
            return
        if what.plan < consumer.next_plan:
            return
        if what.plan > consumer.next_plan:
            end = consumer.next | {given.partition: given.first for given in what.assignments}
            consumer.add(Plan(what.plan - 1, what.run, entry.time_us, {}, packed(end), returned=True))
        plan = plan_of(what, entry.time_us, consumer.next)
        self.state.plans_cut += 1
        plan.serial = self.state.plans_cut
        self.state.dirty.add(("broker",))
        destination = self.state.by_number[what.destination]
        for number, assigned in plan.assignments.items():
            selection = assigned[1]
            if not selection.rows:
                continue
            self.gaps.grow(what.destination, number, selection.span()[1])
            self._take_from_others(destination, number, selection.offsets())
            backlog = destination.queue.backlogs[number]
            backlog.plan(selection)
            backlog.restore_plan(plan, selection.offsets() - destination.partitions[number].quarantined)
        consumer.add(plan)
        consumer.run = max(consumer.run, what.run)

    def _take_from_others(self, destination: Destination, number: int, offsets: BitMap64) -> None:
        """Returns plans of other consumers that still hold these rows. The rows are planned again, so the
        entry that returned them is lost.
        """
        for consumer, plan in list(destination.queue.plans()):
            if (
                plan.pending
                and number in plan.assignments
                and plan.assignments[number][1].offsets().intersect(offsets)
            ):
                returned = {
                    "destination": destination.number,
                    "incarnation": consumer.incarnation,
                    "plans": [plan.number],
                }
                apply.apply(self.state, store.Entry(plans_returned=returned), None)

    def _plans_returned(self, what: store.PlansReturned, entry: store.Entry, _: apply.Body | None) -> None:
        consumer = self._consumer(what.destination, what.incarnation)
        if consumer is not None:
            _keep(what.plans, [n for n in what.plans if n in consumer.plans and consumer.plans[n].pending])
            apply.apply(self.state, entry, None)

    def _plans_acknowledged(
        self, what: store.PlansAcknowledged, entry: store.Entry, _: apply.Body | None
    ) -> None:
        if self._consumer(what.destination, what.incarnation) is not None:
            apply.apply(self.state, entry, None)

    def _plans_forgotten(self, what: store.PlansForgotten, entry: store.Entry, _: apply.Body | None) -> None:
        consumer = self._consumer(what.destination, what.incarnation)
        if consumer is None:
            return
        if consumer.acknowledged_plan < what.through:  # the entry that acknowledged them is lost
            done = {"destination": what.destination, "incarnation": what.incarnation, "through": what.through}
            apply.apply(self.state, store.Entry(plans_acknowledged=done), None)
        apply.apply(self.state, entry, None)

    def _range(
        self, what: store.RangeOpened | store.RangeRead, entry: store.Entry, _: apply.Body | None
    ) -> None:
        consumer = self._consumer(what.destination, what.incarnation)
        if consumer is not None:
            _keep(what.plans, [n for n in what.plans if n in consumer.plans])
            if isinstance(what, store.RangeOpened):
                _keep(what.failed, [n for n in what.failed if n in consumer.plans])
            apply.apply(self.state, entry, None)
        elif isinstance(what, store.RangeRead):
            _keep(what.plans, [])  # that the batch was read is still recorded
            apply.apply(self.state, entry, None)

    def _ended(self, what: store.ConsumerEnded, entry: store.Entry, _: apply.Body | None) -> None:
        consumer = self._consumer(what.destination, what.incarnation)
        if consumer is None:
            destination = self.gaps.destination(what.destination)
            if what.incarnation not in destination.queue.ended:
                destination.queue.note_ended(
                    what.incarnation, Ended(what.successor, "", what.shared), self.state.settings.kept_ended
                )
            return
        known = [plan.number for plan in consumer.pending()]
        _keep(what.acknowledged, [n for n in what.acknowledged if n in known])
        _keep(what.returned, [n for n in known if n not in what.acknowledged])
        apply.apply(self.state, entry, None)

    def _moved(self, what: store.Moved, entry: store.Entry, body: apply.Body | None) -> None:
        assert body is not None
        if (body.place.segment, body.place.position) in self.damaged:
            return  # the rows may still be where they were moved from
        left = BitMap64.deserialize(what.offsets)
        partition = self.gaps.partition(what.destination, what.partition)
        index = partition.log.index()
        first, last = index.between(left.min(), left.min() + 1)
        covered = first < last and int(index.bases[first]) + int(index.frames["span"][first]) > left.max()
        if covered:
            apply.apply(self.state, entry, body)
        elif (
            left.min() >= partition.log.next_offset
            or left & self.gaps.holes[what.destination, what.partition]
        ):
            self._insert(what, body, left)

    def _insert(self, what: store.Moved, body: apply.Body, left: BitMap64) -> None:
        """Adds rows from the copy that the cleaner made; the entry that stored them first is lost."""
        partition = self.gaps.partition(what.destination, what.partition)
        backlog = self.state.by_number[what.destination].queue.backlogs[what.partition]
        self.gaps.grow(what.destination, what.partition, left.max() + 1)
        holes = self.gaps.holes[what.destination, what.partition]
        back = left & holes
        holes -= back
        span = left.max() - left.min() + 1
        priority = body.facets.frame_priority
        number = partition.log.number_of(what.producer_id)
        place = (body.place.segment, body.place.position, body.place.size, body.place.crc)
        frame = (
            left.min(),
            span,
            what.records.columns,
            *place,
            number,
            priority,
            what.sequence_shift,
            what.append_time_us,
            len(left),
        )
        partition.log.insert(frame, left)
        backlog.restore((p, lane & back) for p, lane in body.facets.lanes(offsets_array(left)))


def _keep(repeated: Any, left: list[Any]) -> None:
    del repeated[:]
    repeated.extend(left)


_HANDLERS: Final[dict[str, Any]] = {
    "destination_created": Replay._created,
    "destination_deleted": Replay._deleted,
    "published": Replay._published,
    "skipped": Replay._skipped,
    "staged": Replay._staged,
    "staged_committed": Replay._committed,
    "staged_discarded": Replay._discarded,
    "acknowledged": Replay._acknowledged,
    "returned": Replay._returned,
    "quarantined": Replay._quarantined,
    "duplicates_counted": Replay._counted,
    "consumer_minted": Replay._minted,
    "planned": Replay._planned,
    "plans_returned": Replay._plans_returned,
    "plans_acknowledged": Replay._plans_acknowledged,
    "plans_forgotten": Replay._plans_forgotten,
    "range_opened": Replay._range,
    "range_read": Replay._range,
    "consumer_ended": Replay._ended,
    "moved": Replay._moved,
}
