"""What commands write to stdout. That it fails is an error like others: what nobody could read has not been
said.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import Final

_STANDARD: Final = (0, 1, 2)


class OutputFailed(Exception):
    """Stdout is closed, or took no more."""


def keep_standard_files() -> None:
    """Gives /dev/null to a standard file that is closed: else the next file that is opened gets its number,
    and all that is written there.

    `sys.stdout` stays None where stdout is closed: that is told by `put`.
    """
    for descriptor in _STANDARD:
        try:
            os.fstat(descriptor)
        except OSError as error:
            if error.errno == errno.EBADF:
                os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        if isinstance(
            sys.stdout.buffer, io.RawIOBase
        ):  # PYTHONUNBUFFERED: what a short write leaves is lost in silence
            sys.stdout = io.TextIOWrapper(io.BufferedWriter(sys.stdout.buffer), encoding=sys.stdout.encoding)
        # a terminal that cannot show a character shows its number
        sys.stdout.reconfigure(errors="backslashreplace")


def check_stdout() -> None:
    """Looks whether there is a stdout, before anything is done whose result would be said there.

    Raises:
        OutputFailed: it is closed.
    """
    if sys.stdout is None:
        raise OutputFailed("stdout is closed: leave it open, or send it to /dev/null; nothing was done")


def put(text: str, *, flush: bool = False) -> None:
    """Writes one line to stdout; with `flush` it is out of our hands afterwards.

    Raises:
        OutputFailed: it could not be written.
    """
    check_stdout()
    try:
        sys.stdout.write(f"{text}\n")
        if flush:
            sys.stdout.flush()
    except (OSError, ValueError) as error:
        raise _failed(error) from None


def finish() -> None:
    """Writes what was put and is still in our buffers.

    Raises:
        OutputFailed: it could not be written.
    """
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError) as error:
        raise _failed(error) from None


def _failed(error: Exception) -> OutputFailed:
    give_up_stdout()
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return OutputFailed(f"stdout takes no more ({reason}): what was to be written there is not complete")


def give_up_stdout() -> None:
    """What is still in our buffers goes nowhere: else the end of the interpreter would try again, and
    say so.
    """
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
