"""Waiting for a condition instead of sleeping for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

#: How long the condition is left alone between two looks, in seconds: short, then longer.
_PAUSES_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05)


def wait_until(predicate: Callable[[], Result], timeout: float = 10.0, message: str = "") -> Result:
    """Returns the first true value of `predicate`, asked again and again for `timeout` seconds.

    Raises:
        AssertionError: when it never was true; with `message` and the last value.
    """
    deadline = time.monotonic() + timeout
    attempt = 0
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout} s: {message or predicate} (last value: {value!r})")
        time.sleep(_PAUSES_S[min(attempt, len(_PAUSES_S) - 1)])
        attempt += 1
