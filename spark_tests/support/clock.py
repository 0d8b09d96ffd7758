"""A clock for tests: it stands still until it is told to move."""

from __future__ import annotations


class FakeClock:
    """Wall and monotonic time far apart, so that code which mixes them fails its test.

    Args:
        wall_us: microseconds since the epoch at the start.
        monotonic_ns: nanoseconds since no particular moment at the start.
    """

    def __init__(self, wall_us: int = 1_700_000_000_000_000, monotonic_ns: int = 42_000_000_000) -> None:
        self._wall_us = wall_us
        self._monotonic_ns = monotonic_ns

    def wall_us(self) -> int:
        """Microseconds since the epoch: for people and for messages. May jump."""
        return self._wall_us

    def monotonic_ns(self) -> int:
        """Nanoseconds that only grow: for durations."""
        return self._monotonic_ns

    def monotonic_s(self) -> float:
        """Seconds that only grow."""
        return self._monotonic_ns / 1e9

    def advance(self, seconds: float) -> None:
        """Lets time pass, on both clocks."""
        assert seconds >= 0, f"time does not pass backwards: {seconds} s; use jump_wall"
        self._wall_us += round(seconds * 1_000_000)
        self._monotonic_ns += round(seconds * 1_000_000_000)

    def jump_wall(self, seconds: float) -> None:
        """Sets the wall clock forward or back, as an operator or NTP does. The monotonic clock does not
        notice.
        """
        self._wall_us += round(seconds * 1_000_000)
