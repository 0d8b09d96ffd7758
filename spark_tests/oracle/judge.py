"""The one judge of all runs: what was tried, what was promised, what came out, and whether these fit
together.

`check` compares a `History` as a whole after everything has healed and been drained.

The counts are those of Jepsen's total-queue checker with the analyses of its Kafka workload: attempted,
acknowledged, ok, recovered (unknown, but it arrived), lost (before, between or behind what arrived of the
same producer), duplicated, unexpected, and so on.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from spark_tests.oracle.history import OFFSET_BITS, UNCOUNTED, UNORDERED, History, Longs
from spark_tests.oracle.marked import Ids, name_of, producers_of

_EXAMPLES: Final = 5
_COUNTS: Final = ("attempted", "acknowledged", "ok", "recovered", "unknown", "reads", "kept")
_NEVER: Final = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Report:
    """Counts of messages, and what is wrong with them. `wrong` is empty where everything is right.

    Attributes:
        attempted: different messages that somebody tried to send.
        acknowledged: those with a promise.
        ok: promised, and read or kept.
        recovered: read without a promise.
        unknown: neither promised nor refused, and not read either.
        kept: found waiting where they came from, at the end: neither lost nor through.
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
    kept: int = 0

    @property
    def duplicated(self) -> int:
        """Messages that are there twice, or came again after their acknowledgement was confirmed."""
        again = "came again after its acknowledgement was confirmed"
        return self._sum(
            "duplicated: stored at two places",
            again,
            "in two ranges",
            "read, and still waiting where it came from",
        )

    @property
    def unexpected(self) -> int:
        """Messages that were read and never sent, or are certain not to be stored."""
        return self._sum("unexpected", "read although refused or discarded", "read before its commit")

    @property
    def out_of_order(self) -> int:
        """Messages out of order in the log, when read, by priority or in time."""
        late = "stored before what was promised before it was sent"
        return self._sum("out of order in the log", "out of order when read", "urgent ones read late", late)

    def _sum(self, *kinds: str) -> int:
        return sum(self.wrong.get(kind, 0) for kind in kinds)

    @classmethod
    def total(cls, reports: Iterable[Report]) -> Report:
        """Returns many runs' counts as one."""
        every = list(reports)
        wrong: Counter[str] = Counter()
        examples: dict[str, list[str]] = {}
        for report in every:
            wrong.update(report.wrong)
            for kind, cases in report.examples.items():
                examples[kind] = (examples.get(kind, []) + cases)[:_EXAMPLES]
        counts = {name: sum(getattr(report, name) for report in every) for name in _COUNTS}
        prefix, middle, postfix = (sum(report.lost[third] for report in every) for third in range(3))
        return cls(**counts, lost=(prefix, middle, postfix), wrong=dict(wrong), examples=examples)

    def __str__(self) -> str:
        counts = (
            f"attempted {self.attempted}  acknowledged {self.acknowledged}  ok {self.ok}  recovered "
            f"{self.recovered}"
        )
        counts += f"  kept {self.kept}" if self.kept else ""
        lost = "/".join(map(str, self.lost))
        lines = [
            (
                f"{counts}  unknown {self.unknown}  lost {sum(self.lost)} (prefix/middle/postfix {lost})  "
                f"reads {self.reads}"
            )
        ]
        for kind, count in self.wrong.items():
            lines.append(f"  {kind}: {count}, such as {'; '.join(self.examples.get(kind, []))}")
        return "\n".join(lines)


def check(history: History) -> Report:
    """Judges a whole history. What is promised must have been drained by now: what was not read counts as
    lost.
    """
    return _Judge(history).report()


class _Judge:
    def __init__(self, history: History) -> None:
        self._history = history
        self._attempts, self._receipts = history.table("attempted"), history.table("acknowledged")
        self._reads, self._confirms = history.table("read"), history.table("confirmed")
        outcomes = history.outcomes()
        committed = [group for group, (is_committed, _) in outcomes.items() if is_committed]
        dropped = [group for group, (is_committed, _) in outcomes.items() if not is_committed]
        ids, groups = self._attempts["id"], self._attempts["group"]
        self._attempted = _sorted_set(ids)
        self._acknowledged = _sorted_set(self._receipts["id"], ids[np.isin(groups, committed)])
        self._refused = _without(
            _sorted_set(history.table("refused")["id"], ids[np.isin(groups, dropped)]), self._acknowledged
        )
        self._read = _sorted_set(self._reads["id"])
        self._placed = self._single_places()
        promised = np.isin(groups, committed)
        learnt = np.array([outcomes[group][1] for group in groups[promised].tolist()], np.int64)
        self._promised_ids = np.concatenate([self._receipts["id"], ids[promised]])
        self._promised_stamps = np.concatenate([self._receipts["stamp"], learnt])
        self._wrong: dict[str, int] = {}
        self._examples: dict[str, list[str]] = {}

    def report(self) -> Report:
        kept = _sorted_set(self._history.table("kept")["id"])
        lost = _without(self._acknowledged, _sorted_set(self._read, kept))
        unknown = _without(self._attempted, _sorted_set(self._acknowledged, self._refused))
        self._blame("lost", lost)
        self._blame("unexpected", _without(_sorted_set(self._read, kept), self._attempted))
        self._blame("read, and still waiting where it came from", kept[_among(kept, self._read)])
        self._blame("read although refused or discarded", self._read[_among(self._read, self._refused)])
        self._judge_places()
        self._judge_order_in_the_log()
        self._judge_real_time()
        self._judge_order_of_streams()
        self._judge_counts()
        self._judge_ends()
        self._judge_groups()
        self._judge_commits()
        self._judge_ranges()
        if self._history.damaged:
            self._wrong["damaged content"] = self._history.damaged
        return Report(
            attempted=len(self._attempted),
            acknowledged=len(self._acknowledged),
            ok=len(self._acknowledged) - len(lost),
            kept=len(kept),
            recovered=int(_among(unknown, self._read).sum()),
            unknown=len(_without(unknown, self._read)),
            lost=self._thirds(lost),
            reads=len(self._reads["id"]),
            wrong=self._wrong,
            examples=self._examples,
        )

    def _single_places(self) -> tuple[Ids, Longs]:
        """Returns the messages whose place is known, and the place. Those with two and those that share one
        are blamed elsewhere.
        """
        placed = self._receipts["place"] >= 0
        ids = np.concatenate([self._reads["id"], self._receipts["id"][placed]])
        places = np.concatenate([self._reads["place"], self._receipts["place"][placed]])
        ids, places = _distinct(ids, places)
        single = ~(np.isin(ids, _repeated(ids)) | np.isin(places, _repeated(np.sort(places))))
        return ids[single], places[single]

    def _judge_places(self) -> None:
        """One message has one place, one place one message, and promises name the place where it is read."""
        id_, place = _distinct(self._reads["id"], self._reads["place"])
        self._blame("duplicated: stored at two places", _repeated(id_))
        placed = self._receipts["place"] >= 0
        promised_id, promised_place = self._receipts["id"][placed], self._receipts["place"][placed]
        both_id, both_place = _distinct(
            np.concatenate([id_, promised_id]), np.concatenate([place, promised_place])
        )
        self._blame("misplaced: read elsewhere than promised", _without(_repeated(both_id), _repeated(id_)))
        self._blame_places("two messages at one place", _repeated(np.sort(both_place)))

    def _judge_order_in_the_log(self) -> None:
        """What one producer sent has offsets in the order in which it was sent, within each partition."""
        ids, places = self._placed
        log, producer = places >> OFFSET_BITS, producers_of(ids)
        order = np.lexsort((places, ids, producer, log))
        ids, places, log, producer = (column[order] for column in (ids, places, log, producer))
        same = (log[1:] == log[:-1]) & (producer[1:] == producer[:-1]) & (ids[1:] > ids[:-1])
        self._blame("out of order in the log", ids[1:][same & (places[1:] < places[:-1])])

    def _judge_real_time(self) -> None:
        """What was promised before another was first attempted stands before it in their log, whoever sent
        them.
        """
        ids, places = self._placed
        order = np.argsort(places)
        ids, places = ids[order], places[order]
        attempted = _first_stamps(self._attempts["id"], self._attempts["stamp"], ids, missing=0)
        promised = _first_stamps(self._promised_ids, self._promised_stamps, ids, missing=_NEVER)
        # The earliest promise behind each place, within its log.
        log = places >> OFFSET_BITS
        overtook = [np.empty(0, np.int64)]
        for start, stop in _runs(log):
            earliest = np.minimum.accumulate(promised[start:stop][::-1])[::-1]
            overtook.append(ids[start : stop - 1][earliest[1:] < attempted[start : stop - 1]])
        self._blame("stored before what was promised before it was sent", np.concatenate(overtook))

    def _judge_counts(self) -> None:
        """What was delivered before is never new again. Runs that failed are counted with their range: when
        it is released, its rows lose them and count as handed out once.
        """
        counted = self._reads["count"] != UNCOUNTED
        reads = {name: column[counted] for name, column in self._reads.items()}
        order = np.lexsort((reads["began"], reads["place"]))
        ids, places, began, stamps, counts = (
            reads[name][order] for name in ("id", "place", "began", "stamp", "count")
        )
        # Only where one read had ended before the next one began is it known which came first.
        lower = counts[1:] < np.minimum(counts[:-1], 2)
        falls = (places[1:] == places[:-1]) & lower & (stamps[:-1] < began[1:])
        self._blame("delivery counts that fell", _sorted_set(ids[1:][falls]))

    def _judge_order_of_streams(self) -> None:
        """Within a stream, offsets grow per partition and priority; where the queue was quiet, priorities
        never rise.
        """
        chosen = self._reads["stream"] != UNORDERED
        reads = {name: column[chosen] for name, column in self._reads.items()}
        log = reads["place"] >> OFFSET_BITS
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
        self._blame_places("confirmed twice", _repeated(places))
        first, at = np.unique(places, return_index=True)
        found = np.searchsorted(first, self._reads["place"])
        found[found == len(first)] = 0
        if len(first):
            again = (first[found] == self._reads["place"]) & (self._reads["began"] > stamps[at][found])
            self._blame(
                "came again after its acknowledgement was confirmed", _sorted_set(self._reads["id"][again])
            )

    def _judge_groups(self) -> None:
        """Of a set, all is there or nothing."""
        ids, groups = _distinct(self._attempts["id"], self._attempts["group"])
        ids, groups = ids[groups > 0], groups[groups > 0]
        numbers, sizes = np.unique(groups, return_counts=True)
        there, counts = np.unique(groups[_among(ids, self._read)], return_counts=True)
        torn = [(int(n), int(c), int(sizes[numbers == n][0])) for n, c in zip(there, counts, strict=True)]
        torn = [each for each in torn if each[1] != each[2]]
        self._blame_all(
            "torn sets", [f"set {number}: {count} of {size} messages" for number, count, size in torn]
        )

    def _judge_commits(self) -> None:
        """Nothing of a set is read before its commit is asked for; sets lie in all logs as wholes and in one
        order.
        """
        asked = self._history.commits_asked()
        members = self._attempts["group"] > 0
        ids, groups = _distinct(self._attempts["id"][members], self._attempts["group"][members])
        if asked:
            stamps = np.array([asked.get(group, _NEVER) for group in groups.tolist()], np.int64)
            found = self._read[_among(self._read, _sorted_set(ids))]
            first = _first_stamps(self._reads["id"], self._reads["stamp"], found, missing=_NEVER)
            self._blame(
                "read before its commit", found[first < _first_stamps(ids, stamps, found, missing=_NEVER)]
            )
        placed, places = self._placed
        # Which of several attempts it was that a message came from nobody knows.
        chosen = _among(placed, _without(_sorted_set(ids), _repeated(ids)))
        placed, places = placed[chosen], places[chosen]
        groups = groups[np.searchsorted(ids, placed)]
        self._blame_all("commits that are not one after the other", _tangled(groups, places))

    def _judge_ranges(self) -> None:
        """A range brings the same rows each time, and no row is in two ranges."""
        ids, ranges = self._history.table("range_read").values()
        ids, _ = _distinct(ids, ranges)
        self._blame("in two ranges", _repeated(ids))
        differ, notes = self._history.findings()
        self._blame_all("replays that differ", differ)
        self._blame_all("noted on the way", notes)

    def _thirds(self, lost: Ids) -> tuple[int, int, int]:
        """Splits what was lost by what arrived of the same producer: before the first, in between, behind the
        last.
        """
        at = np.searchsorted(self._read, lost)
        # Ids sort by producer first, so the neighbours tell.
        arrived = np.concatenate([[-1], producers_of(self._read), [-1]])
        producers = producers_of(lost)
        is_behind_one, is_before_one = arrived[at] == producers, arrived[at + 1] == producers
        prefix, middle = (
            int((is_before_one & ~is_behind_one).sum()),
            int((is_before_one & is_behind_one).sum()),
        )
        return prefix, middle, len(lost) - prefix - middle

    # -- findings ------------------------------------------------------------------------------------------

    def _blame(self, kind: str, ids: Ids) -> None:
        self._blame_all(kind, ids, name_of)

    def _blame_places(self, kind: str, places: Longs) -> None:
        self._blame_all(kind, places, self._history.place_name)

    def _blame_all(self, kind: str, cases: Any, name: Any = str) -> None:
        if len(cases):
            self._wrong[kind] = len(cases)
            self._examples[kind] = [
                name(case if isinstance(case, str) else int(case)) for case in cases[:_EXAMPLES]
            ]


def _distinct(first: Longs, second: Longs) -> tuple[Longs, Longs]:
    """Returns the different pairs, sorted."""
    order = np.lexsort((second, first))
    first, second = first[order], second[order]
    new = np.ones(len(first), bool)
    new[1:] = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
    return first[new], second[new]


def _sorted_set(*parts: Longs) -> Longs:
    """Returns the different values of all parts, sorted. By sorting: np.unique hashes, which takes ten times
    as long and more.
    """
    values = np.sort(np.concatenate(parts))
    new = np.ones(len(values), bool)
    new[1:] = values[1:] != values[:-1]
    return values[new]


def _among(values: Longs, known: Longs) -> NDArray[np.bool_]:
    """Says which values are in a sorted array."""
    if not len(known):
        return np.zeros(len(values), bool)
    return np.asarray(known[np.minimum(np.searchsorted(known, values), len(known) - 1)] == values)


def _without(values: Longs, known: Longs) -> Longs:
    """Returns the values that are not in a sorted array."""
    return values[~_among(values, known)]


def _repeated(values: Longs) -> Longs:
    """Returns the values that are in a sorted array more than once."""
    return _sorted_set(values[1:][values[1:] == values[:-1]])


def _first_stamps(ids: Ids, stamps: Longs, wanted: Ids, missing: int) -> Longs:
    """Returns the earliest stamp of each wanted id."""
    order = np.lexsort((stamps, ids))
    known, first = np.unique(ids[order], return_index=True)
    if not len(known):
        return np.full(len(wanted), missing, np.int64)
    at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return np.where(known[at] == wanted, stamps[order][first][at], missing)


def _runs(values: Longs) -> list[tuple[int, int]]:
    """Returns start and end of each run of equal values."""
    edges = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
    return [(start, stop) for start, stop in itertools.pairwise(edges) if start < stop]


def _tangled(groups: Longs, places: Longs) -> list[str]:
    """Says which sets do not lie as one piece in a log, or in another order in one log than in another."""
    order = np.argsort(places)
    groups, places = groups[order], places[order]
    torn: list[str] = []
    after: dict[int, set[int]] = {}
    for log_start, log_stop in _runs(places >> OFFSET_BITS):
        before, seen = 0, set()
        for start, stop in _runs(groups[log_start:log_stop]):
            group = int(groups[log_start + start])
            if (
                group in seen
                or int(places[log_start + stop - 1] - places[log_start + start]) + 1 != stop - start
            ):
                torn.append(f"set {group} has others between its messages")
            seen.add(group)
            if before:
                after.setdefault(group, set()).add(before)
            before = group
    if not torn:
        try:
            TopologicalSorter(after).prepare()
        except CycleError as error:
            torn.append(f"sets {error.args[1]} stand in different orders in different logs")
    return torn
