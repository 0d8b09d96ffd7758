"""Ranges and cumulative acknowledgement against the obvious sets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_mq.client import outstanding
from pyspark_mq.client.outstanding import Outstanding, Ranges


def members(ranges: Ranges) -> list[int]:
    return [
        offset
        for first, last in zip(ranges.first.tolist(), ranges.last.tolist(), strict=True)
        for offset in range(first, last)
    ]


def array(offsets: list[int]) -> np.ndarray:
    return np.array(offsets, np.int64)


@given(st.lists(st.integers(0, 60), min_size=1))
def test_ranges_hold_each_offset_once_in_order_and_do_not_touch(offsets: list[int]) -> None:
    ranges = Ranges.of(array(offsets))
    assert members(ranges) == sorted(set(offsets))
    assert ranges.rows == len(set(offsets))
    assert (ranges.first[1:] > ranges.last[:-1]).all()
    assert ranges.holds(np.arange(70)).tolist() == [offset in offsets for offset in range(70)]


@given(st.lists(st.lists(st.integers(0, 60), min_size=1), min_size=1))
def test_union(parts: list[list[int]]) -> None:
    assert members(Ranges.union([Ranges.of(array(part)) for part in parts])) == sorted(
        {offset for part in parts for offset in part}
    )


def test_wire_form_is_pairs_of_little_endian_int64() -> None:
    assert np.frombuffer(Ranges.of(array([1, 2, 3, 9])).to_bytes(), "<i8").tolist() == [1, 4, 9, 10]


@settings(deadline=None)
@given(st.data())
def test_up_to_takes_what_was_handed_over_before_and_nothing_acknowledged(data: st.DataObject) -> None:
    """Offsets in delivery order are not ascending: priorities overtake."""
    order = data.draw(st.permutations(range(30)))
    cuts = sorted(data.draw(st.sets(st.integers(1, 29), max_size=6)))
    deliveries = [order[first:last] for first, last in zip([0, *cuts], [*cuts, 30], strict=True)]
    tracked, left = Outstanding(), {}
    for serial, offsets in enumerate(deliveries):
        tracked.hand_over(serial, 0, array(offsets))
        left.update({offset: (serial, row) for row, offset in enumerate(offsets)})
        for _ in range(data.draw(st.integers(0, 3))):
            if data.draw(st.booleans()):
                exact = data.draw(
                    st.sets(st.sampled_from(order[: sum(map(len, deliveries[: serial + 1]))]), min_size=1)
                )
                tracked.acknowledged(0, Ranges.of(array(sorted(exact))))
                left = {offset: place for offset, place in left.items() if offset not in exact}
            else:
                point = data.draw(st.integers(0, serial))
                row = data.draw(st.integers(0, len(deliveries[point]) - 1))
                got = tracked.up_to(0, point, row)
                expected = sorted(offset for offset, place in left.items() if place <= (point, row))
                assert (members(got) if got is not None else []) == expected
                left = {offset: place for offset, place in left.items() if place > (point, row)}


def test_partitions_do_not_mix() -> None:
    tracked = Outstanding()
    tracked.hand_over(1, 0, array([0, 1]))
    tracked.hand_over(2, 1, array([0, 1]))
    ranges = tracked.up_to(1, 2, 1)
    assert ranges is not None
    assert members(ranges) == [0, 1]
    assert tracked.up_to(1, 2, 1) is None
    assert tracked.up_to(0, 1, 0) is not None


def test_notes_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outstanding, "_NOTED_MAX", 10)
    tracked = Outstanding()
    for i in range(100):
        offsets = np.arange(5 * i, 5 * i + 5)
        tracked.hand_over(i, 0, offsets)
        tracked.acknowledged(0, Ranges.of(offsets))
    assert len(tracked._noted.get(0, [])) <= 2
    assert len(tracked._entries[0]) <= 2
