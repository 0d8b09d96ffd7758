"""What applications give as arguments, checked before anything happens."""

from __future__ import annotations

import math
from typing import Any

from mq_wire.errors import InvalidOption
from pyspark_mq.durations import seconds


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
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or (most is not None and value > most):
        raise InvalidOption(f"{name}={value!r} is no number of messages: give an integer from 1{f' to {most}' if most else ''}")
    return value
