"""Types of arguments. A wrong one ends the command with the usage, one line and exit code 2."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable
from typing import Final

from mq_wire.errors import MqError
from mq_wire.limits import PRIORITIES

#: Partitions are 32-bit numbers on the wire; a broker allows fewer.
PARTITIONS_MAX: Final = (1 << 32) - 1
#: Sessions are 64-bit numbers on the wire.
SESSIONS_MAX: Final = (1 << 64) - 1
_NUMBER_DIGITS_MAX: Final = 20


def text(argument: str) -> str:
    """Returns a text. In locales without UTF-8, Python does not decode arguments; their bytes are UTF-8 all
    the same.
    """
    try:
        return os.fsencode(argument).decode()
    except UnicodeError:
        raise argparse.ArgumentTypeError(f"{_shown(argument)} is not UTF-8: give it in UTF-8") from None


def value(argument: str) -> str:
    """Returns the value of a message."""
    try:
        return text(argument)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"{_shown(argument)} is not UTF-8: send bytes as lines of stdin, or of --file"
        ) from None


def header(argument: str) -> tuple[str, str]:
    """Returns name and value of NAME=VALUE."""
    name, equals, content = text(argument).partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{argument!r} is not NAME=VALUE: give a name, '=' and a value")
    return name, content


def address(argument: str) -> str:
    """Returns the address of a broker."""
    from pyspark_mq.client.address import Address  # `mq broker` loads no client

    try:
        Address.parse(text(argument))
    except MqError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return argument


def number(low: int, high: int | None = None) -> Callable[[str], int]:
    """Returns the type of whole numbers from `low` to `high`."""

    def parse(argument: str) -> int:
        plain = argument.isascii() and argument.isdecimal() and len(argument) <= _NUMBER_DIGITS_MAX
        if not plain or int(argument) < low or (high is not None and int(argument) > high):
            bounds = f"{low} or more" if high is None else f"{low} to {high}"
            raise argparse.ArgumentTypeError(f"{argument!r} is not allowed: give {bounds}")
        return int(argument)

    return parse


def priority(argument: str) -> int:
    """Returns a priority."""
    return number(0, PRIORITIES - 1)(argument)


def seconds(argument: str) -> float:
    """Returns a time in seconds, 0 or more."""
    try:
        found = float(argument)
    except ValueError:
        found = math.nan
    if not found >= 0:
        raise argparse.ArgumentTypeError(f"{argument!r} is not allowed: give seconds, 0 or more")
    return found


def some_seconds(argument: str) -> float:
    """Returns a time in seconds, more than 0."""
    found = seconds(argument)
    if not found:
        raise argparse.ArgumentTypeError(f"{argument!r} is not allowed: give seconds, more than 0")
    return found


def truth(argument: str) -> bool:
    """Returns whether it is "true"."""
    if argument not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{argument!r} is neither true nor false: give one of them")
    return argument == "true"


def _shown(argument: str) -> str:
    # Python holds each byte that it could not decode as a surrogate.
    return ascii(argument).replace("\\udc", "\\x")
