"""Writes the output of commands to stdout. A failed write is an error: the output was not delivered."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import Final

_STANDARD: Final = (0, 1, 2)


class OutputFailed(Exception):
    """Stdout is closed, or a write to it failed."""


def keep_standard_files() -> None:
    """Opens /dev/null for each standard file that is closed. Otherwise the next file that is opened would get
    its number, and everything that is written to the standard file.

    If stdout is closed, `sys.stdout` stays None, and `put` raises an error.
    """
    for descriptor in _STANDARD:
        try:
            os.fstat(descriptor)
        except OSError as error:
            if error.errno == errno.EBADF:
                os.open(os.devnull, os.O_RDWR)  # it gets the lowest free number
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        if isinstance(
            sys.stdout.buffer, io.RawIOBase
        ):  # PYTHONUNBUFFERED: without a buffer, the rest of a short write would be lost silently
            sys.stdout = io.TextIOWrapper(io.BufferedWriter(sys.stdout.buffer), encoding=sys.stdout.encoding)
        # a character that the terminal cannot show is written as its number
        sys.stdout.reconfigure(errors="backslashreplace")


def check_stdout() -> None:
    """Checks that stdout is open, before a command does anything whose result it would print.

    Raises:
        OutputFailed: stdout is closed.
    """
    if sys.stdout is None:
        raise OutputFailed("stdout is closed: leave it open, or send it to /dev/null; nothing was done")


def put(text: str, *, flush: bool = False) -> None:
    """Writes one line to stdout; with `flush` the operating system has it afterwards.

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
    """Writes everything that is still in the buffers of stdout.

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
    return OutputFailed(
        f"stdout cannot be written ({reason}): the output is not complete; check where it goes, and repeat"
    )


def give_up_stdout() -> None:
    """Sends the rest of the buffers to /dev/null. Otherwise the interpreter would try to write it when it
    ends, and print another error.
    """
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
