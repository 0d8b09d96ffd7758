"""Which ready rows a plan takes: as many as rows, bytes and boundaries allow, strictly by priority."""

from __future__ import annotations

from typing import Final

from mq_broker.core.model.destination import Destination
from mq_broker.core.model.lanes import choose as pick
from mq_broker.core.model.selection import Selection
from mq_broker.core.model.state import State
from mq_wire.limits import PRIORITIES
from mq_wire.v1 import subscribe_pb2 as wire

PLAN_ROWS_MAX: Final = 8_000_000


#: Bytes of a plan's bitmaps at most: they must fit into one journal entry, also in a segment that is kept
#: back for state.
PLAN_BYTES_MAX: Final = 4 << 20


#: What a row takes in a bitmap at most, alone in its container; and what a container takes.
_ROW_BYTES: Final = 32


_CONTAINER_BYTES: Final = 8208


_CONTAINER_BITS: Final = 16


#: A plan that fills this share of its byte limit is not tried any larger.
_FULL_ENOUGH: Final = 0.9


def _below(destination: Destination, request: wire.PlanRequest) -> list[int | None]:
    return [
        request.available_below.next.get(n, 0) if request.bounded else None
        for n in range(len(destination.partitions))
    ]


def available(destination: Destination, request: wire.PlanRequest) -> int:
    """Returns how many rows there are to choose from: the minimum is asked of these, not of what the maximum
    leaves of them.
    """
    if not request.bounded:
        return destination.queue.ready_rows()
    below = request.available_below.next
    rows = 0
    for priority, numbers in enumerate(destination.queue.ready.partitions):
        for number in numbers:
            rows += destination.queue.backlogs[number].ready.count_below(priority, below.get(number, 0))
    return rows


def choose(destination: Destination, request: wire.PlanRequest) -> list[Selection]:
    """Returns the next rows within the limits of rows and bytes, one row at least: fewer rows are chosen
    anew, so that priority rules.
    """
    lanes, below = [backlog.ready for backlog in destination.queue.backlogs], _below(destination, request)
    rows = min(request.max_rows or PLAN_ROWS_MAX, PLAN_ROWS_MAX)
    chosen = pick(lanes, rows, below)
    while _entry_bytes(chosen) > PLAN_BYTES_MAX:
        chosen = pick(lanes, sum(selection.rows for selection in chosen) // 2, below)
    size = _bytes(destination, chosen)
    if not request.max_bytes or size <= request.max_bytes:
        return chosen
    # More rows never have fewer bytes, so halving finds the number; the first guess, by the mean size, is
    # mostly good enough.
    best, few, many = pick(lanes, 1, below), 1, sum(selection.rows for selection in chosen)
    guess = max(many * request.max_bytes // size, few + 1)
    while few < guess < many:
        chosen = pick(lanes, guess, below)
        size = _bytes(destination, chosen)
        if size > request.max_bytes:
            many = guess
        else:
            best, few = chosen, guess
            if size >= request.max_bytes * _FULL_ENOUGH:
                break
        guess = (few + many) // 2
    return best


def _entry_bytes(chosen: list[Selection]) -> int:
    if sum(selection.rows for selection in chosen) * _ROW_BYTES <= PLAN_BYTES_MAX:
        return 0  # whatever the pattern
    return sum(len(offsets.serialize()) for selection in chosen for _, offsets in selection.lanes)


def plan_bytes(state: State, request: wire.PlanRequest) -> int:
    """Returns what a plan may take in the journal at most: by its rows, and by how far the rows that are
    there lie apart.
    """
    destination = state.by_name.get(request.who.destination)
    if destination is None:
        return 0
    containers = sum(
        ((partition.log.next_offset - destination.floor(number)) >> _CONTAINER_BITS) + 2
        for number, partition in enumerate(destination.partitions)
    )
    by_rows = min(request.max_rows or PLAN_ROWS_MAX, destination.enqueued) * _ROW_BYTES
    return min(by_rows, containers * PRIORITIES * _CONTAINER_BYTES, PLAN_BYTES_MAX)


def _bytes(destination: Destination, chosen: list[Selection]) -> int:
    return sum(
        destination.partitions[n].log.index().bytes_of(selection) for n, selection in enumerate(chosen)
    )
