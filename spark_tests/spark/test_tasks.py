"""Tasks: every row is read by exactly one task, and there are as many tasks as pay."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyspark_mq.spark.tasks import TASK_ROWS_SMALL, Part, plan_tasks


def part(partition: int, first: int, last: int, row_bytes: int = 100) -> Part:
    return Part(partition, first, last, last - first, (last - first) * row_bytes)


@st.composite
def plans(draw: st.DrawFn) -> list[Part]:
    sizes = draw(st.lists(st.integers(0, 300_000), max_size=8))
    first = draw(st.integers(0, 2**40))
    return [part(partition, first, first + size) for partition, size in enumerate(sizes)]


def numbers(parts: list[Part]) -> dict[int, list[tuple[int, int]]]:
    """Merged ranges by partition; overlapping ones stay apart and so show up."""
    merged: dict[int, list[tuple[int, int]]] = {}
    for piece in sorted(parts, key=lambda p: (p.partition, p.first)):
        ranges = merged.setdefault(piece.partition, [])
        if ranges and ranges[-1][1] == piece.first:
            ranges[-1] = (ranges[-1][0], piece.last)
        else:
            ranges.append((piece.first, piece.last))
    return merged


@given(plans(), st.integers(0, 20), st.sampled_from([0, 1_000, 70_000]))
def test_every_number_is_read_once(parts: list[Part], min_partitions: int, max_records: int) -> None:
    tasks = plan_tasks(parts, min_partitions, max_records)
    assert numbers([piece for task in tasks for piece in task]) == numbers([p for p in parts if p.rows])


@given(plans(), st.integers(0, 20), st.sampled_from([1_000, 70_000]))
def test_wishes_are_kept(parts: list[Part], min_partitions: int, max_records: int) -> None:
    tasks = plan_tasks(parts, min_partitions, max_records)
    assert all(sum(piece.last - piece.first for piece in task) <= max_records for task in tasks)
    assert len(tasks) >= min(min_partitions, sum(p.rows for p in parts))


def test_a_small_plan_is_one_task() -> None:
    assert len(plan_tasks([part(p, 0, 25) for p in range(4)])) == 1


def test_a_large_plan_is_one_task_a_partition() -> None:
    assert [len(task) for task in plan_tasks([part(p, 0, TASK_ROWS_SMALL) for p in range(4)])] == [1, 1, 1, 1]


def test_few_large_rows_are_no_small_plan() -> None:
    assert len(plan_tasks([part(p, 0, 20, row_bytes=1 << 20) for p in range(4)])) == 4


def test_nothing_to_read_is_no_task() -> None:
    assert plan_tasks([part(0, 5, 5), Part(1, 0, 10, 0, 0)], min_partitions=4) == []


def test_the_largest_is_split_first() -> None:
    tasks = plan_tasks([part(0, 0, 300_000), part(1, 0, 100_000)], min_partitions=4)
    assert [(task[0].partition, task[0].first, task[0].last) for task in tasks] == [
        (0, 0, 100_000),
        (0, 100_000, 200_000),
        (0, 200_000, 300_000),
        (1, 0, 100_000),
    ]
