"""Counts of failed attempts against a plain dictionary."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from mq_broker.core.model.counts import COUNT_MAX, RowCounts, counts_of

offset_sets = st.frozensets(st.integers(0, 40), max_size=12)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), offset_sets, st.integers(0, 300)),
        st.tuples(st.just("add"), offset_sets, st.integers(0, 3)),
        st.tuples(st.just("forget"), offset_sets, st.just(0)),
    )
)


@given(steps)
def test_each_row_has_its_own_count(steps: list[tuple[str, frozenset[int], int]]) -> None:
    counts, expected = RowCounts(), [0] * 41
    for step, offsets, times in steps:
        if step == "add":
            counts.add(BitMap64(offsets), times)
        else:
            counts.forget(BitMap64(offsets))
        for offset in offsets:
            expected[offset] = min(expected[offset] + times, COUNT_MAX) if step == "add" else 0
    assert counts_of(counts.bits, np.arange(41)).tolist() == expected
    again = RowCounts()
    for bit, known in enumerate(counts.bits):
        again.restore(bit, known)
    assert again.bits == counts.bits


def test_counting_leaves_what_readers_hold_alone() -> None:
    counts = RowCounts()
    counts.add(BitMap64([1, 2]))
    held = counts.bits
    counts.add(BitMap64([2, 3]))
    counts.forget(BitMap64([1]))
    assert counts_of(held, np.arange(4)).tolist() == [0, 1, 1, 0]


def test_rows_that_are_done_leave_nothing_behind() -> None:
    counts = RowCounts()
    counts.add(BitMap64([7]), 200)
    counts.forget(BitMap64([7]))
    assert counts.bits == ()
