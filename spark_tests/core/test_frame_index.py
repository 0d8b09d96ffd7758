"""The frame index of a partition against a list of frames."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from mq_broker.core.model.log import KeptPlace, PartitionLog
from mq_broker.core.model.selection import Selection

#: (rows, bytes) of each frame.
frame_lists = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 900)), min_size=1, max_size=40)


def log_of(frames: list[tuple[int, int]]) -> PartitionLog:
    log = PartitionLog()
    for number, (rows, size) in enumerate(frames):
        log.append(
            rows,
            2,
            KeptPlace(number // 3, number, size, 0),
            4,
            f"p{number % 4}" if number % 4 else "",
            0,
            number,
        )
    return log


def means(frames: list[tuple[int, int]]) -> list[Fraction]:
    """Estimated bytes of each offset, exactly: sums of floats may miss a whole number by a hair."""
    return [Fraction(size, rows) for rows, size in frames for _ in range(rows)]


def draw_selection(data: st.DataObject, total: int) -> Selection:
    high = data.draw(st.frozensets(st.integers(0, total - 1)))
    low = data.draw(st.frozensets(st.integers(0, total - 1))) - high
    if not high and not low:
        high = frozenset([0])
    return Selection.of([(9, BitMap64(high)), (4, BitMap64(low))])


@given(frame_lists, st.data())
def test_bytes_are_the_means_of_the_frames(frames: list[tuple[int, int]], data: st.DataObject) -> None:
    index = log_of(frames).index()
    selection = draw_selection(data, sum(rows for rows, _ in frames))
    expected = sum((means(frames)[offset] for offset in selection.offsets()), start=Fraction())
    assert abs(index.bytes_of(selection) - expected) <= 1


@given(frame_lists, st.data())
def test_rows_within_a_budget_are_those_that_fit_in_order(
    frames: list[tuple[int, int]], data: st.DataObject
) -> None:
    index = log_of(frames).index()
    selection = draw_selection(data, sum(rows for rows, _ in frames))
    budget = data.draw(st.integers(0, 4000))
    sizes = [means(frames)[offset] for _, offsets in selection.lanes for offset in offsets]
    fitting = index.rows_within(selection, budget)
    assert sum(sizes[:fitting]) <= budget + 0.01
    assert fitting == selection.rows or sum(sizes[: fitting + 1]) > budget - 0.01


@given(frame_lists, st.data())
def test_frames_are_found_by_their_offsets(frames: list[tuple[int, int]], data: st.DataObject) -> None:
    index = log_of(frames).index()
    total = sum(rows for rows, _ in frames)
    frame_of = [number for number, (rows, _) in enumerate(frames) for _ in range(rows)]
    start = data.draw(st.integers(0, total - 1))
    stop = data.draw(st.integers(start + 1, total))
    expected = frame_of[start:stop]
    assert index.between(start, stop) == (expected[0], expected[-1] + 1)
    assert index.segments(start, stop) == {number // 3 for number in expected}
    offsets = data.draw(st.frozensets(st.integers(0, total - 1), min_size=1))
    first, counts = index.rows_per_frame(BitMap64(offsets))
    found = {first + at: count for at, count in enumerate(counts.tolist()) if count}
    assert found == {
        number: sum(frame_of[o] == number for o in offsets) for number in {frame_of[o] for o in offsets}
    }


@given(frame_lists, st.lists(st.integers(0, 300), max_size=5))
def test_trimming_forgets_what_lies_wholly_below_and_appending_goes_on(
    frames: list[tuple[int, int]], floors: list[int]
) -> None:
    log = log_of(frames)
    expected = [(sum(rows for rows, _ in frames[:n]), rows, size) for n, (rows, size) in enumerate(frames)]
    for floor in floors:
        held = log.index()
        before = held.frames.copy()
        gone = [frame for frame in expected if frame[0] + frame[1] <= floor]
        expected = [frame for frame in expected if frame not in gone]
        assert log.trim(floor).tolist() == [base for base, _, _ in gone]
        expected.append((log.next_offset, 2, 7))
        log.append(2, 2, KeptPlace(9, 0, 7, 0), 4, "", 0, 0)
        frames_now = log.index().frames
        assert [
            *zip(*(frames_now[name].tolist() for name in ("base", "span", "size")), strict=True)
        ] == expected
        assert log.index().bases.tolist() == [base for base, _, _ in expected]
        assert (held.frames == before).all(), "what a reader holds stays as it is"


def test_survivors_of_a_moved_frame_are_found_in_their_new_place() -> None:
    log = log_of([(4, 10), (4, 10), (4, 10)])
    held = log.index()
    assert log.move(4, 2, KeptPlace(8, 77, 5, 1), BitMap64([5, 7])) == 0
    index = log.index()
    assert index.segments(5, 8) == {8}
    assert [*index.sparse[4]] == [5, 7]
    assert held.segments(5, 8) == {0}
    assert 4 not in held.sparse
    log.trim(8)
    assert not log.index().sparse


def test_a_buried_frame_leaves_its_neighbours() -> None:
    log = log_of([(4, 10), (4, 20), (4, 30)])
    held = log.index()
    log.bury(4)
    index = log.index()
    assert index.bases.tolist() == [0, 8]
    assert index.bytes_of(Selection.of([(4, BitMap64([0, 1, 8, 9]))])) == 20
    assert held.bases.tolist() == [0, 4, 8]
    assert log.append(1, 2, KeptPlace(0, 0, 1, 0), 4, "", 0, 0) == 12
    assert log.index().bases.tolist() == [0, 8, 12]


def test_producers_of_whom_nothing_is_left_are_forgotten_where_they_are_many() -> None:
    log = PartitionLog()
    for number in range(1100):
        log.append(1, 2, KeptPlace(0, 0, 1, 0), 4, f"p{number}", 0, 0)
    assert not log.compact_producers()
    log.trim(1098)
    held = log.index()
    assert log.compact_producers()
    for index in (log.index(), held):
        assert [index.producers[number] for number in index.frames["producer"].tolist()] == ["p1098", "p1099"]
    assert log.producers == ["", "p1098", "p1099"]
    assert log.number_of("p1099") == 2
    assert log.number_of("new") == 3
