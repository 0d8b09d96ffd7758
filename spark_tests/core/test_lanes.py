"""Choosing by priority, slicing and counting: the kernels against per-row Python."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from mq_broker.core.model.lanes import Lanes, choose, equal_shares
from mq_broker.core.model.selection import Selection, offsets_array, ranges_bitmap
from mq_wire.limits import PRIORITIES

#: Priority by offset.
rows = st.dictionaries(st.integers(0, 60), st.integers(0, PRIORITIES - 1), max_size=25)
offset_sets = st.frozensets(st.integers(0, 40))


def lanes_of(priorities: dict[int, int]) -> Lanes:
    lanes = Lanes()
    lanes.add((p, BitMap64([o for o, q in priorities.items() if q == p])) for p in range(PRIORITIES))
    return lanes


def plain(lanes: Lanes) -> dict[int, int]:
    assert lanes.counts == [len(offsets) for offsets in lanes.offsets]
    return {offset: priority for priority, offsets in enumerate(lanes.offsets) for offset in offsets}


@given(st.lists(st.integers(0, 9), max_size=6), st.integers(0, 40))
def test_shares_are_those_of_handing_out_one_by_one(available: list[int], total: int) -> None:
    left, given_out = list(available), [0] * len(available)
    for _ in range(total):
        open_ = [i for i, n in enumerate(left) if n]
        if not open_:
            break
        poorest = min(open_, key=lambda i: (given_out[i], i))
        left[poorest] -= 1
        given_out[poorest] += 1
    assert equal_shares(available, total) == given_out


@given(st.lists(rows, min_size=1, max_size=4), st.integers(0, 50), st.data())
def test_the_highest_priorities_are_chosen_across_all_partitions(
    partitions: list[dict[int, int]], count: int, data: st.DataObject
) -> None:
    below = data.draw(
        st.one_of(st.none(), st.lists(st.integers(0, 60), min_size=len(partitions), max_size=len(partitions)))
    )
    available = [
        (-priority, number, offset)
        for number, priorities in enumerate(partitions)
        for offset, priority in priorities.items()
        if below is None or offset < below[number]
    ]
    chosen = choose([lanes_of(priorities) for priorities in partitions], count, below)
    taken = [
        (-priority, number, offset)
        for number, s in enumerate(chosen)
        for priority, offsets in s.lanes
        for offset in offsets
    ]
    assert len(taken) == len(set(taken)) == min(count, len(available))
    left = set(available) - set(taken)
    assert all(row in available for row in taken)
    if taken and left:
        assert max(taken)[0] <= min(left)[0], "a lower priority was chosen before a higher one"
    for number, priority in {(row[1], row[0]) for row in taken}:
        offsets = [row[2] for row in taken if row[:2] == (priority, number)]
        assert (
            offsets == sorted(row[2] for row in available if row[:2] == (priority, number))[: len(offsets)]
        ), "not first in, first out"


@given(rows, rows)
def test_lanes_count_what_they_hold(before: dict[int, int], more: dict[int, int]) -> None:
    lanes = lanes_of(before)
    fresh = {offset: priority for offset, priority in more.items() if offset not in before}
    lanes.add(lanes_of(fresh).selection().lanes)
    assert plain(lanes) == before | fresh
    assert lanes.rows == len(before | fresh)
    assert lanes.lowest() == min(before | fresh, default=None)
    lanes.discard(BitMap64(more))
    assert plain(lanes) == {offset: priority for offset, priority in before.items() if offset not in more}
    lanes.remove(lanes.selection().lanes)
    assert plain(lanes) == {}


@given(st.lists(st.integers(0, PRIORITIES - 1), min_size=1, max_size=30), st.integers(0, 1 << 40))
def test_rows_go_to_the_lane_of_their_priority(priorities: list[int], base: int) -> None:
    lanes = Lanes()
    lanes.add_rows(base, np.array(priorities, np.int8), len(priorities))
    assert plain(lanes) == {base + at: priority for at, priority in enumerate(priorities)}
    uniform = Lanes()
    uniform.add_rows(base, 7, len(priorities))
    assert plain(uniform) == {base + at: 7 for at in range(len(priorities))}


@given(rows, st.integers(0, 9), st.integers(0, 30), st.one_of(st.none(), st.integers(0, 61)))
def test_the_head_of_a_lane_stays_where_it_is(
    priorities: dict[int, int], priority: int, count: int, below: int | None
) -> None:
    lanes = lanes_of(priorities)
    lane = sorted(o for o, p in priorities.items() if p == priority and (below is None or o < below))
    head = lanes.head(priority, count, below)
    assert [*head] == lane[:count]
    assert lanes.count_below(priority, below) == len(lane)
    head.clear()
    assert plain(lanes) == priorities


@given(rows, st.integers(-2, 30), st.integers(-2, 30))
def test_a_slice_of_a_selection_is_a_slice_of_its_rows(
    priorities: dict[int, int], start: int, stop: int
) -> None:
    selection = lanes_of(priorities).selection()
    in_order = sorted(priorities, key=lambda offset: (-priorities[offset], offset))
    part = selection.slice(start, stop)
    expected = in_order[max(start, 0) : max(stop, 0)]
    assert [offset for _, offsets in part.lanes for offset in offsets] == expected
    assert all(priorities[offset] == priority for priority, offsets in part.lanes for offset in offsets)
    assert part.rows == len(expected)
    assert sorted(part.offsets()) == sorted(expected)
    if expected:
        assert part.span() == (min(expected), max(expected) + 1)


@given(st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(1, 5)), max_size=9))
def test_ranges_become_their_offsets(ranges: list[tuple[int, int]]) -> None:
    starts = np.array([start for start, _ in ranges], np.int64)
    stops = np.array([start + count for start, count in ranges], np.int64)
    expected = sorted({start + i for start, count in ranges for i in range(count)})
    bitmap = ranges_bitmap(starts, stops)
    assert [*bitmap] == expected
    assert offsets_array(bitmap).tolist() == expected


def test_an_empty_selection_has_no_rows() -> None:
    assert Selection.of([(4, BitMap64())]).lanes == ()
    assert [*Selection.of([]).offsets()] == []
