"""What applications give as arguments, checked before anything happens. Times are cut to what the system can
wait for.
"""

from __future__ import annotations

import math
import threading
from typing import Any, Final, overload

from mq_wire.errors import InvalidOption

#: Longer waits are as good as endless, and more than locks and gRPC can be told: ten years, or what this
#: system's locks take.
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


def check_timeout(timeout: Any, name: str = "timeout") -> float:
    """Returns the seconds, infinite for None.

    Raises:
        InvalidOption: it is neither None nor a number of seconds.
    """
    checked = seconds(name, timeout)
    return math.inf if checked is None else checked


def check_count(value: Any, name: str, most: int | None = None) -> int:
    """Returns a number of messages.

    Raises:
        InvalidOption: it is no integer from 1 to `most`.
    """
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or value < 1
        or (most is not None and value > most)
    ):
        raise InvalidOption(
            f"{name}={value!r} is no number of messages: give an integer from "
            f"1{f' to {most}' if most else ''}"
        )
    return value


def not_copied(what: str) -> TypeError:
    """Returns the error for copying or pickling a producer or consumer."""
    return TypeError(
        f"a {what} cannot be copied or pickled: it belongs to the process that made it. Make one in each "
        "process, such as inside the function that Spark calls"
    )
