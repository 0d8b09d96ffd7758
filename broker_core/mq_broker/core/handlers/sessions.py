"""Connected consumers: credit, dispatch, exact acknowledgement, and what comes back when a stream ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mq_broker.core.commands import (
    AddCredit,
    Ask,
    Drain,
    OpenSession,
)
from mq_broker.core.handlers.admin import find_or_create
from mq_broker.core.handlers.views import make_view
from mq_broker.core.ledger import Ledger
from mq_broker.core.model.destination import Destination
from mq_broker.core.model.selection import Selection
from mq_broker.core.model.session import Outbox, Session
from mq_broker.core.model.state import State
from mq_wire.errors import SessionClosed
from mq_wire.limits import PRIORITIES, RECORDS_ROWS_MAX
from mq_wire.v1.consume_pb2 import Asked, ConsumerOpened, Drained

#: Rows that one session gets before the next one has its turn.
TURN_ROWS = 65_536
#: Who wants small batches is given more at a time where very many rows are ready: the part of what is its
#: share that it gets at once.
_SHARES: Final = 64
#: What is kept of a client's word about itself.
CLIENT_CHARACTERS = 200


def open_session(ledger: Ledger, command: OpenSession) -> ConsumerOpened:
    opened = command.open
    destination = find_or_create(ledger, opened.destination, opened.create)
    state = ledger.state
    session = Session(
        state.next_session,
        destination.name,
        min(opened.batch_rows_max or TURN_ROWS, RECORDS_ROWS_MAX),
        opened.credit.rows,
        opened.credit.bytes,
        command.deliver,
        command.tell,
        Outbox(state.settings.outbox_batches, state.settings.outbox_bytes),
        opened.client[:CLIENT_CHARACTERS],
        command.peer,
    )
    state.next_session += 1
    state.sessions[session.number] = destination.queue.sessions[session.number] = session
    state.stir(destination.name, news=False)
    return ConsumerOpened(session=session.number, destination_id=destination.destination_id)


def session_of(state: State, number: int) -> Session:
    session = state.sessions.get(number)
    if session is None:
        raise SessionClosed(
            f"consumer session {number} is closed: its deliveries may have gone to somebody else; receive "
            f"them again"
        )
    return session


def add_credit(ledger: Ledger, command: AddCredit) -> None:
    session = session_of(ledger.state, command.session)
    session.credit_rows += command.rows
    session.credit_bytes += command.bytes
    session.seen_rows += command.rows
    ledger.state.stir(session.destination, news=False)


def ask(ledger: Ledger, command: Ask) -> None:
    """Lets the session know when it has everything that is ready for it now. Bounded by who submits it."""
    state = ledger.state
    session = session_of(state, command.session)
    session.questions.append(command.request_id)
    state.asked[session.number] = session
    state.stir(session.destination, news=False)


def drain(ledger: Ledger, command: Drain) -> None:
    """Takes all credit back, and says when: nothing is delivered behind the answer until new credit comes."""
    session = session_of(ledger.state, command.session)
    session.credit_rows = session.credit_bytes = 0
    session.tell(Drained(request_id=command.request_id))


def dispatch(ledger: Ledger) -> bool:
    """Hands ready rows to sessions with credit, in turns, and answers who asked. Called after the sync, so
    that nothing leaves that is not on disk.

    So many deliveries are made (`deliveries_of_a_turn`) and no more: returns whether others are left for the
    next call.
    """
    state = ledger.state
    farewells, state.farewells = state.farewells, []
    for session, why in farewells:
        session.tell(why)
    left = state.settings.deliveries_of_a_turn
    for name in list(state.stirred):
        if left <= 0:
            break
        del state.stirred[name]
        destination = state.by_name.get(name)
        if destination is not None and destination.queue.sessions:
            left = _dispatch(ledger, destination, left)
    for session in list(state.asked.values()):
        _answer(state, session)
    return bool(state.stirred)


def _answer(state: State, session: Session) -> None:
    """Answers who asked and has everything, which it may not have yet where its outbox is full, or others
    come first.
    """
    if session.number not in state.sessions:
        del state.asked[session.number]
    elif not (session.wants_rows() and state.by_name[session.destination].queue.ready_rows()):
        del state.asked[session.number]
        while session.questions:
            session.tell(Asked(request_id=session.questions.popleft()))


def _dispatch(ledger: Ledger, destination: Destination, left: int) -> int:
    """Makes up to `left` deliveries of a destination; returns how many are left. Where it made as many it
    comes last the next time.
    """
    ready = destination.queue.ready_rows()
    if not ready:
        return left
    sessions = destination.queue.sessions
    waiting = [
        session for session in sessions.values() if session.wants_rows() and not session.outbox.is_full
    ]
    while waiting and ready and left > 0:
        share = ready // (len(waiting) * _SHARES)
        served = []
        for session in waiting:
            served.append(session)
            given, left = _deliver(
                ledger,
                destination,
                session,
                min(session.credit_rows, max(session.batch_rows_max, share), ready),
                left,
            )
            ready -= given
            if ready <= 0 or left <= 0:
                break
        if left <= 0:
            # Who was served is last next time, when the others have had their turn.
            for session in served:
                sessions[session.number] = sessions.pop(session.number)
            ledger.state.stir(destination.name, news=False)
            return left
        waiting = [session for session in waiting if session.wants_rows() and not session.outbox.is_full]
    # The first in line is last next time.
    if len(sessions) > 1:
        first = next(iter(sessions))
        sessions[first] = sessions.pop(first)
    return left


def _next_lanes(destination: Destination, session: Session, rows: int) -> Iterator[tuple[int, Selection]]:
    """Yields (partition, rows of one lane), `rows` in all: strictly by priority across partitions, so that no
    partition's lower ones leave before another's higher ones. Among partitions in turn, not in shares: every
    delivery has a price, whatever its size.
    """
    partitions = destination.queue.backlogs
    session.turn = (session.turn + 1) % len(partitions)
    for priority in reversed(range(PRIORITIES)):
        for number in destination.queue.ready.in_turn(priority, session.turn):
            if rows <= 0:
                return
            ready = partitions[number].ready
            share = min(rows, ready.counts[priority])
            if share:
                rows -= share
                yield number, Selection.of([(priority, ready.head(priority, share, None))])


def _deliver(
    ledger: Ledger, destination: Destination, session: Session, rows: int, left: int
) -> tuple[int, int]:
    """Gives a session up to `rows` rows in up to `left` deliveries, what its outbox takes. Returns the rows,
    and the deliveries left.
    """
    given = 0
    outbox = session.outbox
    for number, selection in _next_lanes(destination, session, rows):
        if left <= 0 or outbox.is_full or not session.wants_rows():
            break
        backlog = destination.queue.backlogs[number]
        index = destination.partitions[number].log.index()
        room = min(
            index.rows_within(selection, outbox.delivery_bytes_max, whole_frames=True),
            outbox.batches_left * session.batch_rows_max,
        )
        fitting = min(index.rows_within(selection, session.credit_bytes), room)
        taken: Selection = selection.slice(0, max(fitting, 1))
        size_bytes = index.bytes_of(taken)
        backlog.ready.remove(taken.lanes)
        session.take(number, taken, size_bytes)
        given += taken.rows
        left -= 1
        ledger.state.totals.delivered += taken.rows
        view = make_view(
            ledger.state,
            destination,
            number,
            taken,
            counts=backlog.counts,
            session=session.number,
            size_bytes=size_bytes,
        )
        session.deliver(view)
        if taken.rows < selection.rows:
            # A few bytes may be left. They go to the next row of this lane, not to a lower one.
            break
    return given, left
