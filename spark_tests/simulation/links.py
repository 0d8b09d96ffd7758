"""Streams and calls between clients and the broker's process, with both their ends.

A `Link` is one stream or one call. What a client sends waits in `up` until the schedule lets the broker have
it; what the broker sends waits in `down` until the client looks. Within a link the order stays; links
overtake one another. A link that breaks may have been noticed by one side only: what is still in `up` then
reaches the broker late, beside the client's next connection.

The broker's ends do what mq_broker.rpc does with the same commands, without its threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from mq_broker.core.commands import (
    Acknowledge,
    AddCredit,
    Ask,
    CloseRun,
    CloseSession,
    HoldRun,
    OpenSession,
    Publish,
    ReleaseView,
    ResolveFetch,
    RowsView,
)
from mq_broker.engine.engine import Engine
from mq_wire.errors import MqError
from mq_wire.v1.consume_pb2 import Asked, OpenConsumer
from mq_wire.v1.subscribe_pb2 import OpenFetch
from spark_tests.oracle.marked import Rows
from spark_tests.simulation.messages import counts_of, rows_of
from spark_tests.simulation.network import Link, Network

#: Rows of one batch at most, chosen anew each time; 0 = as many as there are. Small ones are slow.
_BATCH_ROWS: Final = (*[0] * 17, 7, 7, 1)


def ignore(reply: Any) -> None:
    """For commands whose reply says nothing."""


class PublishLink(Link):
    """Batches up as (request id, command), answers down in their order as (request id, reply)."""

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self._slots: deque[list[Any]] = deque()

    def take(self, engine: Engine, message: tuple[int, Publish | MqError, Callable[[Any], None]]) -> None:
        request_id, command, promised = message
        slot: list[Any] = [request_id, None]
        self._slots.append(slot)

        def done(reply: Any) -> None:
            self.network.count_reply(command, reply)
            promised(reply)
            slot[1] = reply
            while self._slots and self._slots[0][1] is not None:
                answer = self._slots.popleft()
                if not self.is_broken:
                    self.down.append(tuple(answer))

        if isinstance(command, MqError):
            done(command)
        else:
            engine.submit(command, done)


class _RowsLink(Link):
    """Whose broker's end sends rows."""

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self.outbox: deque[tuple[Any, int]] = deque()

    @property
    def has_rows(self) -> bool:
        return bool(self.outbox)

    def put(self, view: RowsView) -> None:
        """Called by the engine: rows for this link, from this moment on."""
        self.outbox.append((view, self.network.history.stamp()))
        self.network.busy[self] = None

    def send_rows(self, engine: Engine) -> None:
        view, stamp = self.outbox.popleft()
        if not isinstance(view, RowsView):
            self.hear(view)
            return
        if not self.is_broken:
            batches = [*engine.read(view, 0, self.network.rng.choice(_BATCH_ROWS))]
            rows = rows_of(batches)
            assert len(rows) == view.selection.rows, f"{len(rows)} rows read of {view.selection.rows}"
            self.network.counts["rows sent"] += len(rows)
            self.down.append((view.first_delivery, rows, stamp, counts_of(batches)))
        engine.submit(ReleaseView(view), ignore)

    def hear(self, what: Any) -> None:
        """Something else than rows, in its place among them."""
        raise NotImplementedError

    def leave(self, engine: Engine) -> None:
        while self.outbox:
            view, _ = self.outbox.popleft()
            if isinstance(view, RowsView):
                engine.submit(ReleaseView(view), ignore)


class ConsumeLink(_RowsLink):
    """A session. Up: the opening, ("credit", rows), ("acknowledge", id, partitions, rows), ("ask", id). Down:
    rows, ("acknowledged", id, reply), ("asked", id). `error`: why the broker ended it.
    """

    def __init__(self, network: Network, queue: str, opening: OpenConsumer) -> None:
        super().__init__(network)
        self.queue = queue
        self._session = 0
        self._opening = False
        self.error: MqError | None = None
        self.send(opening)

    @property
    def is_ready(self) -> bool:
        return not self._opening

    def take(self, engine: Engine, message: Any) -> None:
        if isinstance(message, OpenConsumer):
            self._opening = True
            engine.submit(OpenSession(message, self.put, lambda what: self._told(engine, what)), self._opened)
        elif message[0] == "ask":
            engine.submit(Ask(self._session, message[1]), ignore)
        elif message[0] == "credit":
            engine.submit(AddCredit(self._session, message[1], 1 << 40), ignore)
        else:
            _, request_id, partitions, rows = message
            engine.submit(
                Acknowledge(self._session, partitions),
                lambda reply: self._acknowledged(request_id, rows, reply),
            )

    def _opened(self, reply: Any) -> None:
        self._opening = False
        self.network.count_reply("open session", reply)
        if isinstance(reply, MqError):
            self.error, self.is_broken, self.is_gone = reply, True, True
        else:
            self._session = reply.session

    def _told(self, engine: Engine, what: Any) -> None:
        if isinstance(what, Asked):
            self._judge_answer(engine)
        self.put(what)

    def _judge_answer(self, engine: Engine) -> None:
        state = engine._broker.state
        session = state.sessions[self._session]
        if session.wants_rows() and state.by_name[self.queue].queue.ready_rows():
            self.network.history.note(
                f"session {self._session} was told that there is nothing more, with credit and rows that "
                f"are ready"
            )

    def hear(self, what: Any) -> None:
        if isinstance(what, MqError):
            self.network.counts["sessions ended by the broker"] += 1
            if not self.is_broken:
                self.error, self.is_broken, self.is_gone = what, True, True
        elif not self.is_broken:
            self.down.append(("asked", what.request_id))

    def _acknowledged(self, request_id: int, rows: Rows, reply: Any) -> None:
        self.network.count_reply("acknowledge", reply)
        if not isinstance(reply, MqError):
            # Whether the answer arrives or not: from here on these rows must never come again.
            self.network.history.confirmed(self.queue, rows)
            if reply != len(rows):
                self.network.history.note(
                    f"{reply} rows acknowledged of {len(rows)} in session {self._session}"
                )
        if not self.is_broken:
            self.down.append(("acknowledged", request_id, reply))

    def leave(self, engine: Engine) -> None:
        super().leave(engine)
        if self._session:
            engine.submit(CloseSession(self._session), ignore)


class RunLink(Link):
    """The life of a run. `run` is its number once the broker has said it."""

    def __init__(self, network: Network, run: int = 0, cluster_id: bytes = b"") -> None:
        super().__init__(network)
        self.run = 0
        self._asked = False
        self._held = 0
        self.error: MqError | None = None
        self.send(HoldRun(run, cluster_id))

    @property
    def done(self) -> bool:
        """Whether the run is held, or never will be."""
        return self.run > 0 or self.is_broken

    @property
    def is_ready(self) -> bool:
        return not self._asked

    def take(self, engine: Engine, message: HoldRun) -> None:
        self._asked = True
        if message.run:
            self.network.holders[message.run] += 1
        engine.submit(message, lambda reply: self._holds(message.run, reply))

    def _holds(self, asked: int, reply: Any) -> None:
        self._asked = False
        self.network.count_reply("hold run", reply)
        if isinstance(reply, MqError):
            self.network.holders[asked] -= 1
            self.error, self.is_broken, self.is_gone = reply, True, True
            return
        self._held = reply
        if not asked:
            self.network.holders[reply] += 1
        if not self.is_broken:
            self.run = reply

    def leave(self, engine: Engine) -> None:
        if self._held:
            self.network.holders[self._held] -= 1
            if not self.network.holders[self._held]:
                del self.network.holders[self._held]
                engine.submit(CloseRun(self._held), ignore)


class FetchLink(_RowsLink):
    """Rows of a range or of a browse view. Down: rows, and ("end",) behind the last, or `error`."""

    def __init__(self, network: Network, opening: OpenFetch) -> None:
        super().__init__(network)
        self._asked = False
        self.error: MqError | None = None
        self.send(opening)

    @property
    def done(self) -> bool:
        """Whether the client has something to look at."""
        return bool(self.down) or self.is_broken

    @property
    def is_ready(self) -> bool:
        return not self._asked

    def take(self, engine: Engine, message: OpenFetch) -> None:
        self._asked = True
        engine.submit(ResolveFetch(message), self._resolved)

    def _resolved(self, reply: Any) -> None:
        self.network.count_reply("fetch", reply)
        self._asked = False
        if isinstance(reply, MqError):
            self.error, self.is_broken, self.is_gone = reply, True, True
            return
        for view in reply:
            self.put(view)
        if not self.outbox and not self.is_broken:
            self.down.append(("end",))

    def send_rows(self, engine: Engine) -> None:
        super().send_rows(engine)
        if not self.outbox and not self.is_broken:
            self.down.append(("end",))
