"""How long to wait between attempts at something that failed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that double, in seconds, from the first to the last, which is repeated for ever."""

    first_s: float
    last_s: float

    def waits(self) -> Iterator[float]:
        """Yields the waits of one row of failures."""
        wait = self.first_s
        while True:
            yield wait
            wait = min(2 * wait, self.last_s)


#: A restarted broker is to be found at once, and one that stays away not to be asked all the time.
BACKOFF: Final = Backoff(first_s=0.01, last_s=1.0)
