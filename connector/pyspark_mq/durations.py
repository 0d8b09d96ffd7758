"""Seconds as a caller gives them, checked, and cut to what the system can wait for."""

from __future__ import annotations

import math
import threading
from typing import Any, Final, overload

from mq_wire.errors import InvalidOption

#: Longer waits are as good as endless, and more than locks and gRPC can be told: ten years, or what this system's locks take.
LONGEST_S: Final = min(10 * 365 * 86_400.0, threading.TIMEOUT_MAX / 2)


@overload
def seconds(option: str, value: float, low: float = 0.0) -> float: ...
@overload
def seconds(option: str, value: Any, low: float = 0.0) -> float | None: ...
def seconds(option: str, value: Any, low: float = 0.0) -> float | None:
    """Returns a time in seconds, at most LONGEST_S; None stays None.

    Raises:
        InvalidOption: no number, not a number (nan), or below `low`.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise InvalidOption(f"{option}={value!r} is not a number of seconds: give one, such as {option}=10.0")
    if value < low:
        raise InvalidOption(f"{option}={value!r} is below {low:g}: give a number of seconds from {low:g} on")
    return min(float(value), LONGEST_S)
