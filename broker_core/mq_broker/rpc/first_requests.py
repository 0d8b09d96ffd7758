"""First requests: who has begun a call and said nothing yet."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import grpc

from mq_broker.rpc.threads import Workers
from mq_wire.errors import Busy

#: Silent calls of one connection. Its oldest goes, once it has been silent for so long: many streams that
#: begin at once may take that.
_PER_CONNECTION_MAX: Final = 256
_PER_CONNECTION_S: Final = 1.0


class _Call:
    """A call whose first request has not come."""

    __slots__ = ("began", "context", "peer")

    def __init__(self, context: grpc.ServicerContext) -> None:
        self.context, self.peer, self.began = context, context.peer(), time.monotonic()


class FirstRequests:
    """Calls that have begun and sent no request yet. Each holds a thread, so there are so many and no more.

    Beyond that the oldest of the connection that has most of them must go: who keeps many open keeps nobody
        else out.

    Args:
        limit: calls.
        workers: where their threads are reserved; None where they have some already.
        patience_s: nobody goes who has been silent for less; newcomers wait, or with `workers` None are let
            in.
    """

    def __init__(self, limit: int, workers: Workers | None = None, patience_s: float = 0.0) -> None:
        self._limit, self._workers, self._patience_s = limit, workers, patience_s
        self._silent = 0
        self._of_peer: dict[str, dict[_Call, None]] = {}
        self._lock = threading.Lock()
        self._fewer = threading.Condition(self._lock)

    @property
    def silent(self) -> int:
        """How many there are."""
        return self._silent

    def of(
        self,
        requests: Iterator[Any],
        context: grpc.ServicerContext,
        before: Callable[[], object] = lambda: None,
    ) -> Any:
        """Returns the first request of a call; None where its client ended it without. It is read when
        `before` has returned.

        Raises:
            grpc.RpcError: the client is gone, or was silent for longer than all the others.
            Busy: the system gives no thread for it.
        """
        call = _Call(context)
        with self._lock:
            self._enter(call)
        try:
            before()
            return next(requests, None)
        finally:
            with self._lock:
                self._drop(call)

    def _enter(self, call: _Call) -> None:
        refusal: Busy | None = None
        while True:
            if self._silent < self._limit:
                try:
                    self._reserve()
                    break
                except Busy as error:
                    refusal = error
            oldest = self._oldest_of_loudest(call.peer)
            if oldest is None:
                raise refusal or Busy("this broker takes no calls")
            age = time.monotonic() - oldest.began
            if age >= self._patience_s:
                self._send_away(oldest)
            elif self._workers is None:
                break
            else:
                self._fewer.wait(self._patience_s - age)
        mine = self._of_peer.setdefault(call.peer, {})
        if len(mine) >= _PER_CONNECTION_MAX and time.monotonic() - next(iter(mine)).began > _PER_CONNECTION_S:
            self._send_away(next(iter(mine)))
            mine = self._of_peer.setdefault(call.peer, {})
        call.began = time.monotonic()
        mine[call] = None
        self._silent += 1

    def _reserve(self) -> None:
        if self._workers is not None:
            self._workers.reserve()

    def _oldest_of_loudest(self, newcomer: str) -> _Call | None:
        """Rare, and among few: each connection can have its share, the limit is for all of them together."""
        loudest = max(
            self._of_peer, key=lambda peer: len(self._of_peer[peer]) + (peer == newcomer), default=None
        )
        return None if loudest is None else next(iter(self._of_peer[loudest]))

    def _send_away(self, call: _Call) -> None:
        self._drop(call)
        call.context.cancel()

    def _drop(self, call: _Call) -> None:
        calls = self._of_peer.get(call.peer, {})
        if call in calls:
            del calls[call]
            self._silent -= 1
            if self._workers is not None:
                self._workers.release()
            if not calls:
                del self._of_peer[call.peer]
            self._fewer.notify()
