"""The one judge of all crash runs: what was tried, what was promised, what came out, and whether these fit together.

Clients write down what they do in a `History` while they do it; `check` compares it as a whole after everything has healed and been
drained. What a client never learned (time-outs, broken connections) is *unknown*: it may have happened or not, and either is right.

The counts are those of Jepsen's total-queue checker with the analyses of its Kafka workload: attempted, acknowledged, ok, recovered
(unknown, but it arrived), lost (before, between or behind what arrived of the same producer), duplicated, unexpected, and so on.
"""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from spark_tests.crash.marked import Ids, Rows, name_of, producers_of

Longs = NDArray[np.int64]

_OFFSET_BITS: Final = 40
_PARTITION_BITS: Final = 12
_EXAMPLES: Final = 5
#: Stream of reads that are in no particular order.
UNORDERED: Final = -1


class History:
    """What clients did and saw. Thread-safe; rows come and stay as arrays."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stamps = itertools.count(1)
        self._queues: dict[str, int] = {}
        self._tables: dict[str, list[tuple[Any, ...]]] = {name: [] for name in _COLUMNS}
        self._groups = 0
        self._group_outcomes: dict[int, bool] = {}
        self._ranges: dict[tuple[object, ...], tuple[int, list[bytes]]] = {}
        self._replays_differ: list[str] = []
        self._notes: list[str] = []
        self.damaged = 0

    def stamp(self) -> int:
        """A moment: larger than all before."""
        return next(self._stamps)

    # -- sending ---------------------------------------------------------------------------------------------------------

    def group(self) -> int:
        """Begins a set of messages that must arrive all or none."""
        with self._lock:
            self._groups += 1
            return self._groups

    def attempted(self, ids: Ids, group: int = 0) -> None:
        """These are about to be sent; until more is known their outcome is unknown. Again is allowed: a program that starts anew."""
        self._add("attempted", ids, group)

    def acknowledged(self, ids: Ids, queue: str = "", partitions: Any = -1, offsets: Any = -1) -> None:
        """These are promised, with their places where the promise names them."""
        with self._lock:
            places = self._place(queue, partitions, offsets) if queue else -1
        self._add("acknowledged", ids, places)

    def refused(self, ids: Ids) -> None:
        """These are certain not to be stored: refused, never sent, or discarded."""
        self._add("refused", ids)

    def group_ended(self, group: int, *, committed: bool) -> None:
        """A set is certain to be visible as a whole, or never."""
        with self._lock:
            self._group_outcomes[group] = committed

    # -- reading ---------------------------------------------------------------------------------------------------------

    def read(self, queue: str, rows: Rows, began: int, stream: int = UNORDERED, *, falling: bool = False) -> None:
        """These were handed over.

        Args:
            queue: where from.
            rows: in the order in which they came.
            began: a stamp from before the broker was asked.
            stream: number of a reading in which, per partition and priority, offsets only grow; from `new_stream`.
            falling: the queue is quiet, so in this stream the priority never rises either.
        """
        with self._lock:
            self.damaged += rows.damaged
            places = self._place(queue, rows.partitions, rows.offsets)
        self._add("read", rows.ids, places, rows.priorities, began, stream, falling)

    def new_stream(self) -> int:
        return self.stamp()

    def confirmed(self, queue: str, rows: Rows) -> None:
        """The broker has confirmed that these are done: they must never come again. Only what is certain."""
        with self._lock:
            places = self._place(queue, rows.partitions, rows.offsets)
        self._add("confirmed", places, self.stamp())

    def read_range(self, key: tuple[object, ...], rows: Rows) -> None:
        """A range that can be replayed was read to its end. The same key must bring the same rows, and no other key any of them."""
        content = [array.tobytes() for array in (rows.ids, rows.partitions, rows.offsets, rows.priorities)]
        with self._lock:
            number, before = self._ranges.setdefault(key, (len(self._ranges), content))
            if before != content:
                self._replays_differ.append(f"{key}: {len(before[0]) // 8} rows first, then {len(rows)}")
        self._add("range_read", rows.ids, number)

    def note(self, what: str) -> None:
        """Something that must not be, found on the way."""
        with self._lock:
            self._notes.append(what)

    # -- for `check` -----------------------------------------------------------------------------------------------------

    def table(self, name: str) -> dict[str, Longs]:
        """One kind of event as columns, in the order in which it was written down."""
        with self._lock:
            chunks = list(self._tables[name])
        columns = zip(*chunks, strict=True) if chunks else ([np.empty(0, np.int64)] for _ in _COLUMNS[name])
        return {column: np.concatenate(parts) for column, parts in zip(_COLUMNS[name], columns, strict=True)}

    def outcomes(self) -> dict[int, bool]:
        with self._lock:
            return dict(self._group_outcomes)

    def findings(self) -> tuple[list[str], list[str]]:
        """Ranges whose replays differ, and notes."""
        with self._lock:
            return list(self._replays_differ), list(self._notes)

    def place_name(self, place: int) -> str:
        """`orders/2@1042`."""
        queue = next(name for name, number in self._queues.items() if number == place >> (_OFFSET_BITS + _PARTITION_BITS))
        return f"{queue}/{(place >> _OFFSET_BITS) & ((1 << _PARTITION_BITS) - 1)}@{place & ((1 << _OFFSET_BITS) - 1)}"

    def _add(self, name: str, *columns: Any) -> None:
        if len(columns[0]):
            chunk = tuple(np.array(np.broadcast_to(column, len(columns[0])), np.int64) for column in columns)
            with self._lock:
                self._tables[name].append(chunk)

    def _place(self, queue: str, partitions: Any, offsets: Any) -> Any:
        number = self._queues.setdefault(queue, len(self._queues))
        log = (number << _PARTITION_BITS) | np.asarray(partitions, np.int64)
        return (log << _OFFSET_BITS) | np.asarray(offsets, np.int64)


_COLUMNS: Final = {
    "attempted": ("id", "group"),
    "acknowledged": ("id", "place"),
    "refused": ("id",),
    "read": ("id", "place", "priority", "began", "stream", "falling"),
    "confirmed": ("place", "stamp"),
    "range_read": ("id", "range"),
}


@dataclass(frozen=True, slots=True)
class Report:
    """Counts of messages, and what is wrong with them. `wrong` is empty where everything is right.

    Attributes:
        attempted: different messages that somebody tried to send.
        acknowledged: those with a promise.
        ok: promised and read.
        recovered: read without a promise.
        unknown: neither promised nor refused, and not read either.
        lost: promised and never read: first, in the middle and last of what their producers sent.
        wrong: kind of fault -> how often.
        examples: kind of fault -> a few cases.
    """

    attempted: int
    acknowledged: int
    ok: int
    recovered: int
    unknown: int
    lost: tuple[int, int, int]
    reads: int
    wrong: dict[str, int]
    examples: dict[str, list[str]] = field(default_factory=dict)

    def __str__(self) -> str:
        counts = f"attempted {self.attempted}  acknowledged {self.acknowledged}  ok {self.ok}  recovered {self.recovered}"
        lost = "/".join(map(str, self.lost))
        lines = [f"{counts}  unknown {self.unknown}  lost {sum(self.lost)} (prefix/middle/postfix {lost})  reads {self.reads}"]
        for kind, count in self.wrong.items():
            lines.append(f"  {kind}: {count}, such as {'; '.join(self.examples.get(kind, []))}")
        return "\n".join(lines)


def check(history: History) -> Report:
    """Judges a whole history. What is promised must have been drained by now: what was not read counts as lost."""
    return _Judge(history).report()


class _Judge:
    def __init__(self, history: History) -> None:
        self._history = history
        self._attempts, self._receipts = history.table("attempted"), history.table("acknowledged")
        self._reads, self._confirms = history.table("read"), history.table("confirmed")
        self._outcomes = history.outcomes()
        committed = [group for group, is_committed in self._outcomes.items() if is_committed]
        dropped = [group for group, is_committed in self._outcomes.items() if not is_committed]
        ids, groups = self._attempts["id"], self._attempts["group"]
        self._attempted = np.unique(ids)
        self._acknowledged = np.union1d(self._receipts["id"], ids[np.isin(groups, committed)])
        self._refused = np.setdiff1d(np.union1d(history.table("refused")["id"], ids[np.isin(groups, dropped)]), self._acknowledged)
        self._read = np.unique(self._reads["id"])
        self._wrong: dict[str, int] = {}
        self._examples: dict[str, list[str]] = {}

    def report(self) -> Report:
        lost = np.setdiff1d(self._acknowledged, self._read)
        unknown = np.setdiff1d(self._attempted, np.union1d(self._acknowledged, self._refused))
        self._blame("lost", lost)
        self._blame("unexpected", np.setdiff1d(self._read, self._attempted))
        self._blame("read although refused or discarded", np.intersect1d(self._read, self._refused))
        self._judge_places()
        self._judge_order_in_the_log()
        self._judge_order_of_streams()
        self._judge_ends()
        self._judge_groups()
        self._judge_ranges()
        if self._history.damaged:
            self._wrong["damaged content"] = self._history.damaged
        return Report(
            attempted=len(self._attempted),
            acknowledged=len(self._acknowledged),
            ok=len(self._acknowledged) - len(lost),
            recovered=len(np.intersect1d(unknown, self._read)),
            unknown=len(np.setdiff1d(unknown, self._read)),
            lost=self._thirds(lost),
            reads=len(self._reads["id"]),
            wrong=self._wrong,
            examples=self._examples,
        )

    def _judge_places(self) -> None:
        """One message has one place, one place one message, and promises name the place where it is read."""
        id_, place = _distinct(self._reads["id"], self._reads["place"])
        self._blame("duplicated: stored at two places", _repeated(id_))
        placed = self._receipts["place"] >= 0
        promised_id, promised_place = self._receipts["id"][placed], self._receipts["place"][placed]
        both_id, both_place = _distinct(np.concatenate([id_, promised_id]), np.concatenate([place, promised_place]))
        self._blame("misplaced: read elsewhere than promised", np.setdiff1d(_repeated(both_id), _repeated(id_)))
        self._blame_places("two messages at one place", _repeated(np.sort(both_place)))

    def _judge_order_in_the_log(self) -> None:
        """What one producer sent has offsets in the order in which it was sent, within each partition."""
        placed = self._receipts["place"] >= 0
        ids = np.concatenate([self._reads["id"], self._receipts["id"][placed]])
        places = np.concatenate([self._reads["place"], self._receipts["place"][placed]])
        ids, places = _distinct(ids, places)
        single = ~np.isin(ids, _repeated(ids))  # the others are blamed already
        ids, places = ids[single], places[single]
        log, producer = places >> _OFFSET_BITS, producers_of(ids)
        order = np.lexsort((places, ids, producer, log))
        ids, places, log, producer = (column[order] for column in (ids, places, log, producer))
        same = (log[1:] == log[:-1]) & (producer[1:] == producer[:-1]) & (ids[1:] > ids[:-1])
        self._blame("out of order in the log", ids[1:][same & (places[1:] < places[:-1])])

    def _judge_order_of_streams(self) -> None:
        """Within a stream, offsets grow per partition and priority; where the queue was quiet, priorities never rise."""
        chosen = self._reads["stream"] != UNORDERED
        reads = {name: column[chosen] for name, column in self._reads.items()}
        log = reads["place"] >> _OFFSET_BITS
        order = np.lexsort((np.arange(len(log)), reads["priority"], log, reads["stream"]))
        keys = [column[order] for column in (reads["stream"], log, reads["priority"])]
        same = np.logical_and.reduce([key[1:] == key[:-1] for key in keys])
        places = reads["place"][order]
        self._blame("out of order when read", reads["id"][order][1:][same & (places[1:] <= places[:-1])])
        falls = reads["falling"] != 0
        stream, priority = reads["stream"][falls], reads["priority"][falls]
        order = np.argsort(stream, kind="stable")
        rises = (stream[order][1:] == stream[order][:-1]) & (priority[order][1:] > priority[order][:-1])
        self._blame("urgent ones read late", reads["id"][falls][order][1:][rises])

    def _judge_ends(self) -> None:
        """What was confirmed as done never comes again, and is not confirmed a second time."""
        order = np.lexsort((self._confirms["stamp"], self._confirms["place"]))
        places, stamps = self._confirms["place"][order], self._confirms["stamp"][order]
        self._blame_places("confirmed twice", np.unique(places[1:][places[1:] == places[:-1]]))
        first, at = np.unique(places, return_index=True)
        found = np.searchsorted(first, self._reads["place"])
        found[found == len(first)] = 0
        if len(first):
            again = (first[found] == self._reads["place"]) & (self._reads["began"] > stamps[at][found])
            self._blame("came again after its acknowledgement was confirmed", np.unique(self._reads["id"][again]))

    def _judge_groups(self) -> None:
        """Of a set, all is there or nothing."""
        ids, groups = _distinct(self._attempts["id"], self._attempts["group"])
        ids, groups = ids[groups > 0], groups[groups > 0]
        numbers, sizes = np.unique(groups, return_counts=True)
        there, counts = np.unique(groups[np.isin(ids, self._read)], return_counts=True)
        torn = [(int(n), int(c), int(sizes[numbers == n][0])) for n, c in zip(there, counts, strict=True)]
        torn = [each for each in torn if each[1] != each[2]]
        self._blame_all("torn sets", [f"set {number}: {count} of {size} messages" for number, count, size in torn])

    def _judge_ranges(self) -> None:
        """A range brings the same rows each time, and no row is in two ranges."""
        ids, ranges = self._history.table("range_read").values()
        ids, _ = _distinct(ids, ranges)
        self._blame("in two ranges", _repeated(ids))
        differ, notes = self._history.findings()
        self._blame_all("replays that differ", differ)
        self._blame_all("noted on the way", notes)

    def _thirds(self, lost: Ids) -> tuple[int, int, int]:
        """Splits what was lost by what arrived of the same producer: before the first, in between, behind the last."""
        at = np.searchsorted(self._read, lost)
        # Ids sort by producer first, so the neighbours tell.
        arrived = np.concatenate([[-1], producers_of(self._read), [-1]])
        producers = producers_of(lost)
        is_behind_one, is_before_one = arrived[at] == producers, arrived[at + 1] == producers
        prefix, middle = int((is_before_one & ~is_behind_one).sum()), int((is_before_one & is_behind_one).sum())
        return prefix, middle, len(lost) - prefix - middle

    # -- findings --------------------------------------------------------------------------------------------------------

    def _blame(self, kind: str, ids: Ids) -> None:
        self._blame_all(kind, ids, name_of)

    def _blame_places(self, kind: str, places: Longs) -> None:
        self._blame_all(kind, places, self._history.place_name)

    def _blame_all(self, kind: str, cases: Any, name: Any = str) -> None:
        if len(cases):
            self._wrong[kind] = len(cases)
            self._examples[kind] = [name(case if isinstance(case, str) else int(case)) for case in cases[:_EXAMPLES]]


def _distinct(first: Longs, second: Longs) -> tuple[Longs, Longs]:
    """Returns the different pairs, sorted."""
    order = np.lexsort((second, first))
    first, second = first[order], second[order]
    new = np.ones(len(first), bool)
    new[1:] = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
    return first[new], second[new]


def _repeated(values: Longs) -> Longs:
    """Returns the values that are in a sorted array more than once."""
    return np.unique(values[1:][values[1:] == values[:-1]])
