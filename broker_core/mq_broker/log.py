"""What a broker says of itself: one line an event on stderr, as text or JSON, through the standard `logging` under the name `mq_broker`.

Lines are written by a thread of their own: a terminal or pipe that nobody reads must not hold up the one writer of the journal. What does
not fit into the queue of that thread is counted, and the count is said.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import queue
import sys
import traceback
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, Self, TextIO

LOGGER: Final = logging.getLogger("mq_broker")
FORMATS: Final = ("text", "json")
LEVELS: Final = ("debug", "info", "warning", "error")
#: Lines that wait to be written.
_QUEUED_MAX: Final = 10_000
#: Of one value: names come from clients.
_VALUE_CHARS_MAX: Final = 500


def say(level: int, event: str, message: str, *, error: BaseException | None = None, **fields: Any) -> None:
    """Logs one event.

    Args:
        level: as in `logging`.
        event: stable name for programs, such as "destination_created".
        message: for people.
        error: whose traceback belongs to it.
        fields: what else programs want; values from outside may be anything, they are quoted.
    """
    LOGGER.log(level, "%s", message, exc_info=error, extra={"event": event, "fields": fields})


def _shown(value: object) -> str:
    """One value on a line of text: quoted where it could be taken for something else."""
    text = value.hex() if isinstance(value, bytes) else str(value)[:_VALUE_CHARS_MAX]
    return text if text and text.isascii() and text.isprintable() and not set(text) & set(' "=') else json.dumps(text)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class TextFormatter(logging.Formatter):
    """`2026-11-22T02:03:04.123Z INFO queue orders was created partitions=4`."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line."""
        fields = "".join(f" {name}={_shown(value)}" for name, value in getattr(record, "fields", {}).items())
        message = "".join(character if character.isprintable() else " " for character in record.getMessage())
        trace = f"\n{record.exc_text}" if record.exc_text else ""
        return f"{_time(record)} {record.levelname} {message}{fields}{trace}"


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, event, message, and the event's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line."""
        fields = {
            name: value if isinstance(value, int | float) else (value.hex() if isinstance(value, bytes) else str(value)[:_VALUE_CHARS_MAX])
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
    """Hands records to the thread that writes; never waits for it."""

    def __init__(self, waiting: queue.Queue[Any]) -> None:
        super().__init__(waiting)
        self.dropped = 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Makes the traceback a text here, where its objects are."""
        if record.exc_info and record.exc_info[1] is not None:
            record.exc_text = "".join(traceback.format_exception(record.exc_info[1])).rstrip()
            record.exc_info = None
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        """Counts what does not fit."""
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            self.dropped += 1


class _Writing(logging.StreamHandler[TextIO]):
    """Writes lines, and how many are missing before them."""

    def __init__(self, stream: TextIO, handing: _Handing) -> None:
        super().__init__(stream)
        self._handing = handing

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one line."""
        dropped, self._handing.dropped = self._handing.dropped, 0
        if dropped:
            missing = logging.makeLogRecord({"name": record.name, "levelno": logging.WARNING, "levelname": "WARNING"})
            missing.msg, missing.event = f"{dropped} lines are missing here: stderr took them too slowly", "lines_dropped"
            super().emit(missing)
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """A stderr that is closed or full ends nothing."""


class LogOutput:
    """Sends what `say` says to a stream, from `with` to its end.

    Args:
        style: one of FORMATS.
        level: one of LEVELS; what is less important is not said.
        stream: default stderr.
    """

    def __init__(self, style: str = "text", level: str = "info", stream: TextIO | None = None) -> None:
        self._waiting: queue.Queue[Any] = queue.Queue(_QUEUED_MAX)
        self._handing = _Handing(self._waiting)
        self._writing = _Writing(stream or sys.stderr, self._handing)
        self._writing.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
        self._listener = logging.handlers.QueueListener(self._waiting, self._writing)
        self._level = level

    def __enter__(self) -> Self:
        LOGGER.addHandler(self._handing)
        LOGGER.setLevel(self._level.upper())
        LOGGER.propagate = False
        self._listener.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        LOGGER.removeHandler(self._handing)
        LOGGER.propagate = True
        self._listener.stop()

    def say_last(self, level: int, event: str, message: str) -> None:
        """Says something on the caller's thread, for a process that ends at once."""
        record = logging.makeLogRecord({"name": LOGGER.name, "levelno": level, "levelname": logging.getLevelName(level), "msg": message})
        record.event = event
        self._writing.handle(record)
        self._writing.flush()
