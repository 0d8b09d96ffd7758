"""The rules of the core once more, row by row, with lists and dicts and no cleverness: what the real core is
compared with.

A `Model` takes the same commands as `mq_broker.core.broker.Broker`, in plain values, and raises the same
classes of errors. Time is an argument; identities come from a counter (`identity`), so both sides give the
same ones. What survives a crash is `Model.after_crash`.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from mq_wire.errors import (
    NotAssigned,
    OutOfOrder,
    OutOfWindow,
    ProducerFenced,
    SequenceReused,
    SessionClosed,
    UnknownDestination,
    UnknownProducer,
)
from mq_wire.limits import AUDIT_RANGES
from spark_tests.model.state import (
    DONE,
    READY,
    Batch,
    Destination,
    Mark,
    Partition,
    Query,
    Row,
    Session,
    StagedSet,
    identity,
)


@dataclass(slots=True)
class Model:
    """See the module."""

    partitions: int = 4
    anonymous_max: int = 1000
    anonymous_total_max: int = 200_000
    uses: int = 0
    staged_ttl_us: int = 24 * 3600 * 1_000_000
    run_grace_us: int = 120 * 1_000_000
    kept_range_ttl_us: int = 24 * 3600 * 1_000_000
    kept_boundaries: int = 100
    kept_batches: int = 100
    kept_returned: int = 100
    kept_ended: int = 1000
    identities: int = 0
    created: int = 0
    epoch: int = 0
    destinations: dict[str, Destination] = field(default_factory=dict)
    producers: dict[str, int] = field(default_factory=dict)
    staged: dict[bytes, StagedSet] = field(default_factory=dict)
    #: (owner, target) -> (version, rows, query id, time)
    markers: dict[tuple[str, str], tuple[int, int, str, int]] = field(default_factory=dict)
    #: query id -> target (None = all) -> the lowest epoch that may write
    query_epochs: dict[str, dict[str | None, int]] = field(default_factory=dict)
    fenced: dict[str, int] = field(default_factory=dict)
    queries: dict[str, Query] = field(default_factory=dict)
    plans_cut: int = 0
    # Lost in a crash:
    sessions: dict[int, Session] = field(default_factory=dict)
    opened_sessions: int = 0
    runs: set[int] = field(default_factory=set)
    silent: dict[int, int] = field(default_factory=dict)
    duplicates: Counter[tuple[int, int]] = field(default_factory=Counter)
    alone: dict[bytes, int] = field(default_factory=dict)

    def new_identity(self) -> bytes:
        self.identities += 1
        return identity(self.identities)

    def after_crash(self) -> Model:
        """Returns what a broker knows that comes up again: what connected consumers held is ready, and was
        not their failure.
        """
        # Ten times as fast as deepcopy, which took most of the time of random commands on a disk.
        left: Model = pickle.loads(pickle.dumps(self, pickle.HIGHEST_PROTOCOL))
        for session in left.sessions.values():
            for row in session.delivered:
                if row.holder == ("session", session.number):
                    row.holder = READY
        left.sessions, left.opened_sessions, left.runs, left.silent, left.alone = {}, 0, set(), {}, {}
        left.duplicates.clear()
        for held in left.staged.values():
            held.seen_us = None
        return left

    # ---- destinations and producers

    def destination(self, name: str, create: bool = True) -> Destination:
        if name not in self.destinations:
            if not create:
                raise UnknownDestination(name)
            self.created += 1
            partitions = [Partition() for _ in range(self.partitions)]
            self.destinations[name] = Destination(self.created, name, self.new_identity(), partitions)
        return self.destinations[name]

    def delete(self, name: str) -> None:
        if name not in self.destinations:
            raise UnknownDestination(name)
        del self.destinations[name]
        for token, held in list(self.staged.items()):
            if any(batch.destination == name for batch in held.batches):
                del self.staged[token]
        for number, session in list(self.sessions.items()):
            if session.destination == name:
                del self.sessions[number]

    def open_producer(self, name: str) -> tuple[str, int]:
        producer = f"name/{name}"
        self.producers[producer] = self.producers.get(producer, 0) + 1
        return producer, self.producers[producer]

    # ---- publishing

    def publish(
        self,
        name: str,
        partition: int,
        who: tuple[str, int],
        first: int,
        rows: Sequence[tuple[bytes, int]],
        crc: int,
        now_us: int,
    ) -> tuple[int, int]:
        """Returns (base offset, duplicates)."""
        there = self._partition(name, partition, who, first)
        known = self._audit(there, who, first, len(rows), crc)
        if known is not None:
            self.duplicates[self.destinations[name].number, partition] += len(rows)
            return known.base or 0, len(rows)
        base = len(there.rows)
        for at, (value, priority) in enumerate(rows):
            there.rows.append(Row(partition, base + at, value, priority, who[0], first + at, now_us))
        self._remember(there, who, Batch(first, len(rows), crc, base, now_us))
        self.count_duplicates()
        return base, 0

    def count_duplicates(self) -> None:
        for (number, partition), rows in self.duplicates.items():
            for destination in self.destinations.values():
                if destination.number == number:
                    destination.partitions[partition].duplicates += rows
        self.duplicates.clear()

    def skip(
        self, name: str, partition: int, who: tuple[str, int], first: int, count: int, now_us: int
    ) -> None:
        there = self._partition(name, partition, who, first)
        if self._audit(there, who, first, count, 0) is None:
            self._remember(there, who, Batch(first, count, 0, None, now_us))

    def _partition(self, name: str, partition: int, who: tuple[str, int], first: int) -> Partition:
        producer, epoch = who
        if producer.startswith("name/"):
            current = self.producers.get(producer, 0)
            if epoch > current or current == 0:
                raise UnknownProducer(producer)
            if epoch < current:
                raise ProducerFenced(producer)
        if first and name not in self.destinations:
            raise UnknownProducer(producer)
        return self.destination(name).partitions[partition]

    def _audit(
        self, there: Partition, who: tuple[str, int], first: int, count: int, crc: int
    ) -> Batch | None:
        producer, epoch = who
        mark = there.mark(producer)
        if mark is None and first:
            raise UnknownProducer(producer)
        expected = mark.next if mark is not None and mark.epoch == epoch else 0
        if first == expected:
            return None
        if first > expected:
            raise OutOfOrder(str(expected))
        assert mark is not None
        remembered = mark.batches[-AUDIT_RANGES:]
        for batch in remembered:
            if batch.first == first and batch.rows:
                if (batch.rows, batch.crc) == (count, crc):
                    return batch
                raise SequenceReused(str(first))
        if first > remembered[0].first:
            raise SequenceReused(str(first))
        raise OutOfWindow(str(first))

    def _remember(self, there: Partition, who: tuple[str, int], batch: Batch) -> None:
        producer, epoch = who
        mark = there.mark(producer) or Mark(epoch)
        there.marks = [(name, other) for name, other in there.marks if name != producer]
        there.marks.append((producer, mark))
        self.uses += 1
        mark.used = self.uses
        unnamed = sorted(
            (other.used, name, where)
            for destination in self.destinations.values()
            for where in destination.partitions
            for name, other in where.marks
            if not name.startswith("name/")
        )
        here = [name for _, name, where in unnamed if where is there]
        if len(unnamed) > self.anonymous_total_max:
            _, name, where = unnamed[0]
            where.marks = [(known, other) for known, other in where.marks if known != name]
            here = [known for known in here if where is not there or known != name]
        if len(here) > self.anonymous_max:
            there.marks = [(name, other) for name, other in there.marks if name != here[0]]
        if mark.epoch != epoch:
            mark.epoch, mark.batches = epoch, []
        mark.next = batch.first + batch.rows
        mark.batches.append(batch)
        if batch.base is not None:
            mark.rows += batch.rows
            mark.last_offset = batch.base + batch.rows - 1

    # ---- connected consumers

    def open_session(self, name: str, credit: int) -> int:
        self.destination(name)
        self.opened_sessions += 1
        self.sessions[self.opened_sessions] = Session(self.opened_sessions, name, credit)
        return self.opened_sessions

    def _session(self, number: int) -> Session:
        if number not in self.sessions:
            raise SessionClosed(str(number))
        return self.sessions[number]

    def add_credit(self, number: int, rows: int) -> None:
        session = self._session(number)
        session.credit += rows
        session.seen += rows

    def deliver(self, number: int, partition: int, offset: int) -> Row:
        """Notes that the core gave a row to a session; it must have been next in line."""
        session = self.sessions[number]
        destination = self.destinations[session.destination]
        row = destination.partitions[partition].rows[offset]
        ready = [other for other in destination.rows() if other.holder == READY]
        assert row in ready, f"{row} was not ready"
        assert row.priority == max(other.priority for other in ready), f"{row} left a higher priority behind"
        assert offset == min(
            r.offset for r in ready if (r.partition, r.priority) == (partition, row.priority)
        ), f"{row} is out of order"
        assert session.credit > 0, f"session {number} had no credit left for {row}"
        session.credit -= 1
        row.holder = ("session", number)
        session.delivered.append(row)
        return row

    def check_dispatched(self, waiting: bool = True) -> None:
        """Nobody with credit waits while rows are ready."""
        for session in self.sessions.values():
            ready = any(row.holder == READY for row in self.destinations[session.destination].rows())
            assert not (waiting and session.credit > 0 and ready), (
                f"session {session.number} was left waiting"
            )

    def hand_over(self, number: int, rows: Sequence[tuple[int, int]]) -> None:
        session = self._session(number)
        if session.handed is None:
            session.handed = session.shown
        session.handed += [row for row in session.held if (row.partition, row.offset) in rows]

    def drain(self, number: int) -> None:
        self._session(number).credit = 0

    def acknowledge(self, number: int, rows: Sequence[tuple[int, int]]) -> int:
        destination = self.destinations[self._session(number).destination]
        done = {(row.partition, row.offset) for row in destination.rows() if row.holder == DONE}
        left = [row for row in rows if row not in done]
        for row in self._named(number, left):
            row.holder = DONE
        return len(left)

    def release(self, number: int, rows: Sequence[tuple[int, int]], uncounted: bool) -> int:
        session = self._session(number)
        released = self._named(number, rows)
        if session.handed is None:
            session.handed = session.shown
        # Delivered again it is another delivery: the old one is over.
        session.delivered = [row for row in session.delivered if not any(row is other for other in released)]
        session.handed = [row for row in session.handed if not any(row is other for other in released)]
        for row in released:
            row.holder = READY
            row.failed += not uncounted
        return len(rows)

    def _named(self, number: int, rows: Sequence[tuple[int, int]]) -> list[Row]:
        held = {(row.partition, row.offset): row for row in self._session(number).held}
        if any(row not in held for row in rows):
            raise NotAssigned(str(rows))
        return [held[row] for row in rows]

    def close_session(self, number: int, end: str, unsent: Sequence[tuple[int, int]] = ()) -> None:
        """`end`: "goodbye", "lost" or "broker"."""
        session = self.sessions.pop(number, None)
        if session is None:
            return
        held, shown = session.held, session.shown
        returned = shown
        if end == "lost":
            returned = [row for row in held if (row.partition, row.offset) not in unsent]
        if end != "broker" and len(returned) == 1 and returned == shown:
            returned[0].failed += 1
        else:
            for row in returned:
                row.handed_out += 1
        for row in held:
            row.holder = READY
