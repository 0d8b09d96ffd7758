"""What applications give as arguments, checked before anything happens."""

from __future__ import annotations

import math
from typing import Any

from mq_wire.errors import InvalidOption


def check_timeout(timeout: Any, name: str = "timeout") -> float:
    """Returns the seconds, infinite for None.

    Raises:
        InvalidOption: it is neither None nor a number of seconds.
    """
    if timeout is None:
        return math.inf
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or math.isnan(timeout) or timeout < 0:
        raise InvalidOption(f"{name}={timeout!r} is no time: give seconds, 0 or more, or None to wait for ever")
    return float(timeout)


def check_count(value: Any, name: str, most: int | None = None) -> int:
    """Returns a number of messages.

    Raises:
        InvalidOption: it is no integer from 1 to `most`.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or (most is not None and value > most):
        raise InvalidOption(f"{name}={value!r} is no number of messages: give an integer from 1{f' to {most}' if most else ''}")
    return value
