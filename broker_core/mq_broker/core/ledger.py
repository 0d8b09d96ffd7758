"""Where handlers write their decisions: each entry goes to the journal's turn in hand and into the state, in
one step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import pyarrow as pa

from mq_broker.core.apply import Body, apply
from mq_broker.core.model.facets import Facets
from mq_broker.core.model.log import Place
from mq_broker.core.model.state import State
from mq_wire.store.v1.store_pb2 import Entry


class Sink(Protocol):
    """The journal's turn in hand (mq_broker.journal.journal.Journal)."""

    def add(self, header: bytes, body: pa.Buffer | None, body_crc: int | None) -> Place | None:
        """Takes an entry and tells at once where its body will lie."""
        ...


#: Decisions that operators want to hear of.
_NOTABLE: Final = frozenset(
    {"destination_created", "destination_deleted", "consumer_minted", "consumer_ended", "marker_forgotten"}
)


@dataclass(frozen=True, slots=True)
class Notice:
    """A notable entry, with the names of what it is about as they were before it."""

    kind: str
    destination: str
    consumer: str
    entry: Entry


class Room(Protocol):
    """Asked before a command writes. Both raise StoreFull where there is no room; then nothing was
    recorded.
    """

    def for_state(self, header_bytes: int) -> None:
        """Before the first entry of a command: room for all that it may record without rows."""

    def for_rows(self, header_bytes: int, body_bytes: int) -> None:
        """Before each entry with rows."""


class _AllRoom:
    """Where nobody asks."""

    def for_state(self, header_bytes: int) -> None:
        pass

    def for_rows(self, header_bytes: int, body_bytes: int) -> None:
        pass


@dataclass(frozen=True, slots=True)
class JournalFigures:
    """What operators hear of the journal."""

    turns: int = 0
    size_bytes: int = 0
    segments: int = 0


@dataclass(slots=True)
class Ledger:
    """State, time and randomness of the turn in hand.

    Both clocks are set by the engine before each command: `now_us` is the wall clock, for facts about
    messages, and may jump; `monotonic_us` only grows, within this process, and is for everything that is
    measured.
    """

    state: State
    sink: Sink
    new_id: Callable[[], bytes]
    now_us: int = 0
    monotonic_us: int = 0
    room: Room = field(default_factory=_AllRoom)
    figures: Callable[[], JournalFigures] = JournalFigures
    entries: int = field(default=0)
    #: How many of them had rows.
    frames: int = field(default=0)
    #: How many entries there were when the command in hand began.
    began: int = field(default=0)
    #: Of the turn in hand, for the log.
    notices: list[Notice] = field(default_factory=list)

    def record(self, **what: Any) -> None:
        """Records the entry whose one field is given by name, and applies it."""
        entry = Entry(time_us=self.now_us, **what)
        header = entry.SerializeToString()
        if self.entries == self.began:
            self.room.for_state(len(header))
        self.sink.add(header, None, None)
        kind = next(iter(what))
        if kind in _NOTABLE:
            self.notices.append(self._notice(kind, entry))
        self.entries += 1
        apply(self.state, entry, None)
        self.state.presence.note(kind, getattr(entry, kind))

    def _notice(self, kind: str, entry: Entry) -> Notice:
        if kind == "marker_forgotten":
            return Notice(kind, "", "", entry)
        what = getattr(entry, kind)
        destination = self.state.by_number.get(what.destination)
        consumer = (
            destination.queue.consumers.get(what.incarnation)
            if kind == "consumer_ended" and destination is not None
            else None
        )
        name = (
            what.name
            if kind == "destination_created"
            else destination.name
            if destination is not None
            else ""
        )
        return Notice(kind, name, consumer.label if consumer is not None else "", entry)

    def record_rows(self, entry: Entry, records: pa.Buffer, crc: int, facets: Facets) -> None:
        """Records an entry with new rows, whose facets are known, and applies it."""
        self.room.for_rows(entry.ByteSize(), records.size)
        self.record_copy(entry, records, crc, facets)

    def record_copy(self, entry: Entry, records: pa.Buffer, crc: int, facets: Facets) -> None:
        """Records rows that were there before, in another place; the caller has made room."""
        place = self.sink.add(entry.SerializeToString(), records, crc)
        assert place is not None
        self.entries += 1
        self.frames += 1
        apply(self.state, entry, Body(place, facets))
