"""The places of connected consumers that share streams. A consumer with a stream of its own is counted as a
stream.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Final

from mq_wire.errors import Busy

#: The last fifth of all places is for streams with fewer consumers than this. (The last tenth is for hosts
#: that do not have all the others.)
_SMALL_STREAM: Final = 16


class Places:
    """Bounds the consumers: of all clients, of one host, and of one stream.

    Args:
        limit: most consumers in all.
        per_stream: most consumers of one stream.
    """

    def __init__(self, limit: int, per_stream: int) -> None:
        self._limit, self._per_stream = limit, per_stream
        self._taken = 0
        self._of_host: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def taken(self) -> int:
        """Number of consumers."""
        return self._taken

    def enter(self, host: str, mine: int) -> None:
        """Takes a place for one more consumer of a stream that has `mine` consumers.

        Raises:
            Busy: there is none.
        """
        with self._lock:
            self._check(self._of_host[host], mine)
            self._taken += 1
            self._of_host[host] += 1

    def leave(self, host: str) -> None:
        """Gives a place back."""
        with self._lock:
            self._taken -= 1
            self._of_host[host] -= 1
            if not self._of_host[host]:
                del self._of_host[host]

    def _check(self, theirs: int, mine: int) -> None:
        limit = self._limit
        allowed = f"the limit (sessions_max) is {limit}"
        if mine >= self._per_stream:
            raise Busy(
                f"{mine} consumers share this stream, the limit (sessions_per_stream_max) is "
                f"{self._per_stream}: close some, use another connection, or raise it"
            )
        if self._taken >= limit:
            raise Busy(f"{self._taken} consumers are connected, {allowed}: close some, or raise it")
        if mine >= _SMALL_STREAM and self._taken >= limit - limit // 5:
            raise Busy(
                f"{self._taken} consumers are connected, {mine} of them on this stream; {allowed}, and the "
                f"last {limit // 5} are kept for streams with fewer than {_SMALL_STREAM}: close some, or "
                "raise it"
            )
        if theirs >= limit - limit // 10:
            raise Busy(
                f"{theirs} consumers of this host are connected; {allowed}, and the last {limit // 10} are "
                "kept for other hosts: close some, or raise it"
            )
