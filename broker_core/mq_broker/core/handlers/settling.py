"""What becomes of the rows that a session holds: handed over, acknowledged, released, or given back when it
ends.
"""

from __future__ import annotations

import contextlib

import numpy as np
from pyroaring import BitMap64

from mq_broker.core.commands import (
    Acknowledge,
    CloseSession,
    HandOver,
    Release,
    RowRanges,
    RowsView,
    SessionEnd,
)
from mq_broker.core.handlers.sessions import session_of
from mq_broker.core.ledger import Ledger
from mq_broker.core.model.destination import Destination
from mq_broker.core.model.selection import Selection, ranges_bitmap
from mq_broker.core.model.session import Session
from mq_broker.core.model.state import State
from mq_wire.errors import InvalidRequest, NotAssigned, SessionClosed, StoreFull, UnknownDestination


def hand_over(ledger: Ledger, command: HandOver) -> None:
    """Notes which rows the application of a session was handed. In memory: a restart ends all sessions."""
    session = session_of(ledger.state, command.session)
    rows = _named_rows(ledger.state, session, command.partitions)
    session.report()
    for partition, offsets in rows.items():
        session.hand_over(partition, offsets)


def acknowledge(ledger: Ledger, command: Acknowledge) -> int:
    """Takes exactly these rows off the queue. Those that are done already change nothing: an acknowledgement
    that was sent twice must not cost the others that came with it.

    Raises:
        NotAssigned: the session does not hold some of them; nothing is acknowledged.
    """
    state = ledger.state
    session = session_of(state, command.session)
    backlogs = state.destination(session.destination).queue.backlogs
    named = _named_rows(state, session, command.partitions).items()
    done = {number: left for number, rows in named if (left := rows & backlogs[number].unacknowledged)}
    _check_held(session, done)
    if not done:
        return 0
    ledger.record(
        acknowledged={
            "destination": state.destination(session.destination).number,
            "rows": [
                {"partition": partition, "offsets": offsets.serialize()}
                for partition, offsets in done.items()
            ],
        }
    )
    for partition, offsets in done.items():
        session.release(partition, offsets)
    rows = sum(len(offsets) for offsets in done.values())
    state.totals.acknowledged += rows
    return rows


def release(ledger: Ledger, command: Release) -> int:
    """Gives exactly these rows back to the queue.

    Raises:
        NotAssigned: the session does not hold some of them; nothing is given back.
    """
    state = ledger.state
    session = session_of(state, command.session)
    released = _named_rows(state, session, command.partitions)
    _check_held(session, released)
    if not command.uncounted:
        _count(ledger, session, failed=released, handed_out={})
    session.report()
    backlogs = state.destination(session.destination).queue.backlogs
    for partition, offsets in released.items():
        lanes = Selection.of((p, lane & offsets) for p, lane in session.held[partition].selection().lanes)
        session.release(partition, offsets)
        backlogs[partition].give_back(lanes)
    state.stir(session.destination)
    return sum(len(offsets) for offsets in released.values())


def _check_held(session: Session, rows: dict[int, BitMap64]) -> None:
    for partition, offsets in rows.items():
        missing = session.missing(partition, offsets)
        if missing:
            raise NotAssigned(
                f"consumer session {session.number} does not hold offset {missing.min()} of partition "
                f"{partition} of {session.destination!r} (and {len(missing) - 1} more): "
                "settle what was delivered to it"
            )


def _named_rows(state: State, session: Session, partitions: RowRanges) -> dict[int, BitMap64]:
    """Returns the rows that a command names, by partition, without empty ones.

    Raises:
        InvalidRequest: ranges that are none.
        NotAssigned: offsets that were never given.
    """
    destination = state.destination(session.destination)
    rows: dict[int, BitMap64] = {}
    for partition, starts, stops in partitions:
        if len(starts):
            _check_ranges(destination, partition, starts, stops)
            rows[partition] = rows.get(partition, BitMap64()) | ranges_bitmap(starts, stops)
    return rows


def _check_ranges(destination: Destination, partition: int, starts: np.ndarray, stops: np.ndarray) -> None:
    """Refuses ranges that are none, and those that would make a bitmap of offsets that were never given."""
    if (starts < 0).any() or (stops <= starts).any():
        raise InvalidRequest("an acknowledged range must begin at 0 or above and end behind its first offset")
    end = destination.partitions[partition].log.next_offset if partition < len(destination.partitions) else 0
    if int(stops.max()) > end:
        raise NotAssigned(
            f"offset {int(stops.max()) - 1} of partition {partition} of {destination.name!r} was never "
            f"given, the next one is {end}: "
            "acknowledge what was delivered"
        )


def close_session(ledger: Ledger, command: CloseSession) -> None:
    """Gives back what the session holds, and counts what its application may have had in its hands
    (docs/rules.md, "Two counts of a row").

    Where the disk is full rows go back uncounted: what nobody holds any more must not wait for room.
    """
    session = ledger.state.sessions.get(command.session)
    if session is not None:
        _give_back(ledger, session, command.end, command.unsent)


def end_session(ledger: Ledger, number: int) -> int:
    """Ends a session from this side, for an operator; returns how many rows went back.

    Raises:
        UnknownDestination: there is no such session.
    """
    session = ledger.state.sessions.get(number)
    if session is None:
        raise UnknownDestination(
            f"there is no consumer session {number}: `mq consumers list` shows who is connected"
        )
    rows = session.held_rows
    _give_back(ledger, session, SessionEnd.BROKER)
    why = SessionClosed(
        f"consumer session {number} of {session.destination!r} was ended by an operator: what it held goes "
        f"to others; "
        "make a new consumer to go on receiving"
    )
    ledger.state.farewells.append((session, why))
    return rows


def _give_back(ledger: Ledger, session: Session, end: SessionEnd, unsent: tuple[RowsView, ...] = ()) -> None:
    state = ledger.state
    queue = state.by_name[session.destination].queue
    handed = session.seen()
    returned = session.held_by_partition(unsent) if end is SessionEnd.LOST else handed
    # Blame needs a single row: one that was handed over, when no other can have been.
    alone = sum(len(offsets) for offsets in returned.values()) == 1 and handed == returned
    if alone and end is not SessionEnd.BROKER:
        _count(ledger, session, failed=returned, handed_out={})
    else:
        _count(ledger, session, failed={}, handed_out=returned)
    for partition, lanes in session.held.items():
        queue.backlogs[partition].give_back(lanes.selection())
    del state.sessions[session.number], queue.sessions[session.number]
    state.stir(session.destination)


def _count(
    ledger: Ledger, session: Session, failed: dict[int, BitMap64], handed_out: dict[int, BitMap64]
) -> None:
    """Counts rows that come back. On a full disk it is left out."""
    if not failed and not handed_out:
        return
    rows, blamed = (
        [{"partition": partition, "offsets": offsets.serialize()} for partition, offsets in named.items()]
        for named in (handed_out, failed)
    )
    destination = ledger.state.by_name[session.destination]
    with contextlib.suppress(StoreFull):
        ledger.record(returned={"destination": destination.number, "rows": rows, "failed": blamed})
