"""Lines of the log about clients that connected, at a bounded rate: nobody fills a disk with them."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from mq_broker.log import say
from mq_broker.rpc.bounds import host_of

#: Lines of one host at once, and a second later on.
_AT_ONCE: Final = 100
_PER_S: Final = 1.0
#: Hosts that are remembered; those that were silent longest are forgotten.
_HOSTS_MAX: Final = 1000


class _Host:
    __slots__ = ("left", "left_out", "since")

    def __init__(self, now: float) -> None:
        self.left, self.left_out, self.since = float(_AT_ONCE), 0, now


class Greetings:
    """Tells the log of clients that said Hello: 100 lines of one host at once, then one a second. The next
    line says how many were left out.

    Args:
        monotonic: seconds that only grow.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._hosts: OrderedDict[str, _Host] = OrderedDict()
        self._lock = threading.Lock()

    def tell(self, client: str, peer: str) -> None:
        """Logs one client, or counts it as left out."""
        with self._lock:
            left_out = self._left_out(host_of(peer))
        if left_out is None:
            return
        more: dict[str, Any] = {"left_out": left_out} if left_out else {}
        say(logging.INFO, "connected", "a client connected", client=client, peer=peer, **more)

    def _left_out(self, name: str) -> int | None:
        """Returns how many lines of a host were left out before the one that is due; None if none is due."""
        now = self._monotonic()
        host = self._hosts.setdefault(name, _Host(now))
        self._hosts.move_to_end(name)
        if len(self._hosts) > _HOSTS_MAX:
            self._hosts.popitem(last=False)
        host.left = min(host.left + (now - host.since) * _PER_S, _AT_ONCE)
        host.since = now
        if host.left < 1:
            host.left_out += 1
            return None
        host.left -= 1
        left_out, host.left_out = host.left_out, 0
        return left_out
