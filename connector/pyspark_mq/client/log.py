"""Where the client writes what happens to it: the logger `pyspark_mq`, without a handler of its own."""

from __future__ import annotations

import logging
import threading
from typing import Final

#: INFO for connections made and regained, WARNING for a broker that is away.
LOG: Final = logging.getLogger("pyspark_mq")

#: Seconds after which an outage is told again, doubling from the first to the second. The first leaves two
#: seconds for an attempt to end.
_TOLD_AFTER_FIRST_S: Final = 3.0
_TOLD_AFTER_LAST_S: Final = 64.0


class Outage:
    """When a broker went away, and when that was told last. Thread-safe; time is an argument."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._reached = False
        self._since: float | None = None
        self._told_after = _TOLD_AFTER_FIRST_S

    def failed(self, endpoint: str, reason: str, now: float) -> None:
        """An attempt found nobody at `endpoint`. Warns when a broker that was there is gone, and again with
        growing pauses.
        """
        with self._lock:
            is_first = self._since is None
            if self._since is None:
                self._since, self._told_after = now, _TOLD_AFTER_FIRST_S
            away = now - self._since
            is_due = away >= self._told_after
            while self._told_after <= away:
                self._told_after += min(self._told_after, _TOLD_AFTER_LAST_S)
            was_reached = self._reached
        if is_first and was_reached:
            LOG.warning("lost the broker at mq://%s, trying again: %s", endpoint, reason)
        elif is_due:
            LOG.warning(
                "the broker at %s is away since %.0f s, trying again: mq://%s: %s",
                self._address,
                away,
                endpoint,
                reason,
            )

    def answered(self, endpoint: str, now: float) -> None:
        """A broker answered at `endpoint`."""
        if self._reached and self._since is None:
            return
        with self._lock:
            since, self._since = self._since, None
            was_reached, self._reached = self._reached, True
        if not was_reached:
            LOG.info("connected to the broker at mq://%s", endpoint)
        elif since is not None:
            LOG.info("the broker is back at mq://%s after %.1f s", endpoint, now - since)
