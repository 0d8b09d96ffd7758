"""The log of a broker: one line per event on stderr, as text or JSON. It uses the standard `logging` with the
logger `mq_broker`.

A thread of its own writes the lines, since a terminal or pipe that is not read must not block the writer of
the journal. Lines that do not fit into the thread's queue are dropped; a line in the log tells how many.
"""

from __future__ import annotations

import contextlib
import json
import logging
import logging.handlers
import queue
import sys
import threading
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, Self, TextIO

from mq_broker.outlet import within, write_while

LOGGER: Final = logging.getLogger("mq_broker")
FORMATS: Final = ("text", "json")
LEVELS: Final = ("debug", "info", "warning", "error")
#: Most lines that wait to be written.
_QUEUED_MAX: Final = 10_000
#: Seconds to write the waiting lines at the end.
LAST_LINES_S: Final = 1.0
#: Most characters of one value; values may come from clients.
_VALUE_CHARS_MAX: Final = 500


def say(level: int, event: str, message: str, *, error: BaseException | None = None, **fields: Any) -> None:
    """Logs one event.

    Args:
        level: as in `logging`.
        event: stable name for programs, such as "destination_created".
        message: text for people.
        error: error whose traceback is logged too.
        fields: further values for programs. They are quoted, since they may come from clients.
    """
    LOGGER.log(level, "%s", message, exc_info=error, extra={"event": event, "fields": fields})


def _shown(value: object) -> str:
    """Returns a value for a line of text, quoted if it is ambiguous without quotes."""
    text = value.hex() if isinstance(value, bytes) else str(value)[:_VALUE_CHARS_MAX]
    return (
        text
        if text and text.isascii() and text.isprintable() and not set(text) & set(' "=')
        else json.dumps(text)
    )


def _time(record: logging.LogRecord) -> str:
    return (
        datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )


class TextFormatter(logging.Formatter):
    """`2026-11-22T02:03:04.123Z INFO queue orders was created partitions=4`."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line."""
        fields = "".join(f" {name}={_shown(value)}" for name, value in getattr(record, "fields", {}).items())
        message = "".join(character if character.isprintable() else " " for character in record.getMessage())
        trace = f"\n{record.exc_text}" if record.exc_text else ""
        return f"{_time(record)} {record.levelname} {message}{fields}{trace}"


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, event, message, and the fields of the event."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line."""
        fields = {
            name: value
            if isinstance(value, int | float)
            else (value.hex() if isinstance(value, bytes) else str(value)[:_VALUE_CHARS_MAX])
            for name, value in getattr(record, "fields", {}).items()
        }
        line = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", record.name),
            "message": record.getMessage(),
            **fields,
        }
        if record.exc_text:
            line["traceback"] = record.exc_text
        return json.dumps(line)


class _Handing(logging.handlers.QueueHandler):
    """Queues records for the thread that writes. Never waits for it."""

    def __init__(self, waiting: queue.Queue[Any]) -> None:
        super().__init__(waiting)
        self.dropped = 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Turns the traceback into text on the thread that logs, so that its objects are not kept."""
        if record.exc_info and record.exc_info[1] is not None:
            record.exc_text = "".join(traceback.format_exception(record.exc_info[1])).rstrip()
            record.exc_info = None
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        """Queues a record, or counts it if the queue is full."""
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            self.dropped += 1


class _Writing:
    """Writes lines on a thread of its own, also the number of dropped lines.

    It is no `logging.Handler`: the interpreter takes the lock of every handler when it ends, and this thread
    may wait for ever for a reader.
    """

    def __init__(self, stream: TextIO, formatter: logging.Formatter, handing: _Handing) -> None:
        self._stream, self._formatter, self._handing = stream, formatter, handing
        self._waiting: queue.Queue[Any] = handing.queue  # type: ignore[assignment]
        #: Set when the thread is to end: tells whether it may still wait for the reader.
        self._may_wait: Callable[[], bool] | None = None
        self._thread = threading.Thread(target=self._run, name="mq-log", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Writes the waiting lines within a bounded time."""
        self._may_wait = within(LAST_LINES_S)
        with contextlib.suppress(queue.Full):  # then the thread does not wait for it
            self._waiting.put_nowait(None)
        self._thread.join(2 * LAST_LINES_S)

    def write_last(self, record: logging.LogRecord) -> None:
        """Writes one line on the caller's thread, within a bounded time."""
        with contextlib.suppress(OSError, ValueError):
            write_while(self._stream, self._formatter.format(record) + "\n", within(LAST_LINES_S))

    def _run(self) -> None:
        while (record := self._next()) is not None:
            dropped, self._handing.dropped = self._handing.dropped, 0
            if dropped:
                missing = logging.makeLogRecord(
                    {"name": record.name, "levelno": logging.WARNING, "levelname": "WARNING"}
                )
                missing.msg, missing.event = (
                    f"{dropped} lines were dropped here: stderr was read too slowly",
                    "lines_dropped",
                )
                self._write(missing)
            self._write(record)
            if self._may_wait is not None and not self._may_wait():
                return

    def _next(self) -> Any:
        """Returns the next record, None at the end."""
        if self._may_wait is None:
            return self._waiting.get()
        with contextlib.suppress(queue.Empty):
            return self._waiting.get_nowait()
        return None

    def _write(self, record: logging.LogRecord) -> None:
        # A stderr that is closed or full ends nothing.
        with contextlib.suppress(OSError, ValueError):
            write_while(
                self._stream,
                self._formatter.format(record) + "\n",
                lambda: self._may_wait is None or self._may_wait(),
            )


class LogOutput:
    """A context manager that writes the events of `say` to a stream. At the end it writes the waiting lines,
    for at most a second.

    Args:
        style: one of `FORMATS`.
        level: one of `LEVELS`.
        stream: default stderr.
    """

    def __init__(self, style: str = "text", level: str = "info", stream: TextIO | None = None) -> None:
        self._handing = _Handing(queue.Queue(_QUEUED_MAX))
        self._writing = _Writing(
            stream or sys.stderr, JsonFormatter() if style == "json" else TextFormatter(), self._handing
        )
        self._level = level

    def __enter__(self) -> Self:
        LOGGER.addHandler(self._handing)
        LOGGER.setLevel(self._level.upper())
        LOGGER.propagate = False
        self._writing.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        LOGGER.removeHandler(self._handing)
        LOGGER.propagate = True
        self._writing.stop()

    def say_last(self, level: int, event: str, message: str) -> None:
        """Writes a line on the caller's thread, for a process that ends at once. Gives up after a second."""
        record = logging.makeLogRecord(
            {"name": LOGGER.name, "levelno": level, "levelname": logging.getLevelName(level), "msg": message}
        )
        record.event = event
        self._writing.write_last(record)
