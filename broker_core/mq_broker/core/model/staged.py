"""Staged sets: rows that are durable, invisible and without offsets until a commit names their token
(docs/rules.md, "Staged sets").
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import ItemsView, Iterator, ValuesView
from dataclasses import dataclass, field

from mq_broker.core.model.batches import Batches
from mq_broker.core.model.facets import Facets
from mq_broker.core.model.log import Place
from mq_broker.core.model.timers import Timers
from mq_wire.store.v1.store_pb2 import Staged


@dataclass(slots=True)
class StagedSet:
    """What one write() call has sent under its random token. The duplicate audit has the token's scope."""

    token: bytes
    epoch: int
    query_id: str
    batch_id: int
    run_id: str
    #: What its commit will name; None where the client does not say: it may be any.
    target: str | None = None
    last_time_us: int = 0
    rows: int = 0
    size_bytes: int = 0
    #: Destination number -> rows.
    rows_of: dict[int, int] = field(default_factory=dict)
    frames: Batches = field(default_factory=Batches)

    def add(self, entry: Staged, place: Place, facets: Facets, time_us: int) -> None:
        number, rows = entry.destination, entry.records.rows
        self.frames.add(entry, place, facets)
        self.rows += rows
        self.rows_of[number] = self.rows_of.get(number, 0) + rows
        self.size_bytes += place.size
        self.last_time_us = time_us

    def move(self, entry: Staged, place: Place) -> None:
        """Points a batch of the set to a copy of it."""
        self.frames.move(entry, place)

    def writes_to(self, target: str | None) -> bool:
        """Whether it belongs to what is done to `target`; None is every target, for the set as for the
        caller.
        """
        return target is None or self.target is None or self.target == target


@dataclass(slots=True)
class QueryStaged:
    """The open sets of one query; of all batch writes under the query id ""."""

    tokens: dict[bytes, None] = field(default_factory=dict)
    rows: int = 0
    size_bytes: int = 0


@dataclass(slots=True)
class StagedSets:
    """All open sets by token. How many rows and bytes they hold is counted as they come and go, never summed
    up.
    """

    rows: int = 0
    size_bytes: int = 0
    #: Batches of all sets.
    batches: int = 0
    #: Destination number -> rows staged for it.
    rows_of: Counter[int] = field(default_factory=Counter)
    queries: dict[str, QueryStaged] = field(default_factory=dict)
    _sets: dict[bytes, StagedSet] = field(default_factory=dict)
    #: The last sign of life of each set by the clock of this process. Not known of those that a start found.
    _seen: Timers[bytes] = field(default_factory=Timers)
    _unseen: dict[bytes, None] = field(default_factory=dict)
    #: All tokens in order, once somebody has asked for them.
    _tokens: list[bytes] | None = None

    def __len__(self) -> int:
        return len(self._sets)

    def __contains__(self, token: bytes) -> bool:
        return token in self._sets

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._sets)

    def __getitem__(self, token: bytes) -> StagedSet:
        return self._sets[token]

    def get(self, token: bytes) -> StagedSet | None:
        """Returns the set, None where it is not open (any more)."""
        return self._sets.get(token)

    def values(self) -> ValuesView[StagedSet]:
        """Returns the sets."""
        return self._sets.values()

    def see(self, token: bytes, now_us: int) -> None:
        """Takes down a sign of life of a set."""
        self._seen.set(token, now_us)
        self._unseen.pop(token, None)

    def unseen(self) -> list[StagedSet]:
        """Returns the sets of which no sign of life is known."""
        return [self._sets[token] for token in self._unseen]

    def silent(self, since_us: int, count: int) -> list[bytes]:
        """Returns the tokens of sets without a sign of life since then, of `count` at most."""
        return self._seen.due(since_us - 1, count)

    def items(self) -> ItemsView[bytes, StagedSet]:
        """Returns (token, set)."""
        return self._sets.items()

    def behind(self, after: bytes, count: int) -> list[bytes]:
        """Returns the next `count` tokens behind `after`, in order."""
        if self._tokens is None:
            self._tokens = sorted(self._sets)
        at = bisect.bisect_right(self._tokens, after)
        return self._tokens[at : at + count]

    def of_query(self, query_id: str, target: str | None = None) -> list[StagedSet]:
        """Returns the sets of a query that belong to `target` (None = any)."""
        known = self.queries.get(query_id)
        return (
            [held for token in known.tokens if (held := self._sets[token]).writes_to(target)]
            if known is not None
            else []
        )

    def add(self, held: StagedSet, entry: Staged, place: Place, facets: Facets, time_us: int) -> None:
        """Adds a batch to a set, which is open from now on."""
        held.add(entry, place, facets, time_us)
        if held.token not in self._sets:
            self._unseen[held.token] = None
            if self._tokens is not None:
                bisect.insort(self._tokens, held.token)
        self._sets[held.token] = held
        self.queries.setdefault(held.query_id, QueryStaged()).tokens[held.token] = None
        self._count(held, 1, {entry.destination: entry.records.rows}, place.size)

    def pop(self, token: bytes) -> StagedSet | None:
        """Ends a set; returns it, None where it was not open."""
        held = self._sets.pop(token, None)
        if held is not None:
            self._seen.drop(token)
            self._unseen.pop(token, None)
            if self._tokens is not None:
                del self._tokens[bisect.bisect_left(self._tokens, token)]
            gone = {number: -rows for number, rows in held.rows_of.items()}
            self._count(held, -len(held.frames), gone, -held.size_bytes)
            known = self.queries[held.query_id]
            del known.tokens[token]
            if not known.tokens:
                del self.queries[held.query_id]
        return held

    def _count(self, held: StagedSet, batches: int, rows_of: dict[int, int], size: int) -> None:
        rows, known = sum(rows_of.values()), self.queries[held.query_id]
        self.batches += batches
        known.rows, known.size_bytes = known.rows + rows, known.size_bytes + size
        self.rows, self.size_bytes = self.rows + rows, self.size_bytes + size
        for number, more in rows_of.items():
            self.rows_of[number] += more
            if not self.rows_of[number]:
                del self.rows_of[number]
