"""Requests that are long lists, or ask for them: one is handled at a time, and the connections that send them
take turns.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from mq_broker.rpc.threads import Waits
from mq_wire.errors import Busy

#: Seconds between two checks whether the client of a waiting call is gone.
_LOOK_S: Final = 0.5
#: Most requests of one connection that wait for their turn.
_LINE_MAX: Final = 16


class LongRequests:
    """The turns of long requests.

    Each may take a third of a second of Python. If many ran at the same time, other threads would get the
    interpreter rarely: a thread waits 5 ms for each one that runs.

    Args:
        waits: has the threads on which calls wait for their turn, so that short calls keep their own.
    """

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._taken = False
        self._lines: dict[str, deque[threading.Event]] = {}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def turn(self, peer: str, gone: Callable[[], bool]) -> Iterator[None]:
        """Context of the turn of one request of the connection from `peer`.

        Raises:
            Busy: too many calls wait, of all or of this connection, or `gone` returned True while the call
                waited.
        """
        with self._lock:
            must_wait, self._taken = self._taken, True
            if must_wait:
                if len(self._lines.get(peer, ())) >= _LINE_MAX:
                    raise Busy(
                        f"{_LINE_MAX} calls of this connection wait, each with a long list: make fewer at "
                        "the same time"
                    )
                if not self._waits.enter():
                    raise Busy(
                        "too many calls are waiting (waits_max), and this one is a long list: "
                        "try again, or send less at a time"
                    )
                mine = threading.Event()
                self._lines.setdefault(peer, deque()).append(mine)
        try:
            if must_wait:
                self._wait(peer, mine, gone)
            yield
        finally:
            if not must_wait or mine.is_set():
                self._pass_on()

    def _wait(self, peer: str, mine: threading.Event, gone: Callable[[], bool]) -> None:
        try:
            while not mine.wait(_LOOK_S) and not gone():
                pass
            with self._lock:
                if not mine.is_set():
                    line = self._lines[peer]
                    line.remove(mine)
                    if not line:
                        del self._lines[peer]
        finally:
            self._waits.leave()
        if gone():
            raise Busy("the call ended before its turn came: make it again")

    def _pass_on(self) -> None:
        with self._lock:
            peer = next(iter(self._lines), None)
            if peer is None:
                self._taken = False
                return
            line = self._lines.pop(peer)
            line.popleft().set()
            if line:
                self._lines[peer] = line  # this connection is now the last one
