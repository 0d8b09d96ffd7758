"""Silent calls: calls that have begun and sent no request yet."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import grpc

from mq_broker.rpc.threads import Workers
from mq_wire.errors import Busy

#: Most silent calls of one connection. Beyond that its oldest one is cancelled, but only after
#: _PER_CONNECTION_S: many streams that begin at the same time may need so long.
_PER_CONNECTION_MAX: Final = 256
_PER_CONNECTION_S: Final = 1.0


class _Call:
    """A call whose first request has not come."""

    __slots__ = ("began", "context", "peer")

    def __init__(self, context: grpc.ServicerContext) -> None:
        self.context, self.peer, self.began = context, context.peer(), time.monotonic()


class FirstRequests:
    """The silent calls. Each has a thread, so their number is bounded.

    Beyond the bound, the oldest one of the connection with most of them is cancelled. So a client with many
    silent calls does not keep others out.

    Args:
        limit: most calls.
        workers: where their threads are reserved; None if they have threads already.
        patience_s: a call is cancelled only after so much silence. Until then new calls wait, or are let in
            if `workers` is None.
    """

    def __init__(self, limit: int, workers: Workers | None = None, patience_s: float = 0.0) -> None:
        self._limit, self._workers, self._patience_s = limit, workers, patience_s
        self._silent = 0
        self._of_peer: dict[str, dict[_Call, None]] = {}
        self._lock = threading.Lock()
        self._fewer = threading.Condition(self._lock)

    @property
    def silent(self) -> int:
        """Number of silent calls."""
        return self._silent

    def of(
        self,
        requests: Iterator[Any],
        context: grpc.ServicerContext,
        before: Callable[[], object] = lambda: None,
    ) -> Any:
        """Returns the first request of a call, or None if its client ended it without one. The request is
        read after `before` has returned.

        Raises:
            grpc.RpcError: the client is gone, or the call was cancelled as the oldest silent one.
            Busy: the system gives no thread for the call.
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
        """Returns the oldest silent call of the connection with most of them; the new call counts too."""
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
