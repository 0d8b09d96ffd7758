"""Options of the Spark source and sink: one frozen object a direction, every mistake found at `load()`, where
Spark asks for the schema there, or when the query starts.

Names and meaning follow Spark's Kafka connector where it has the option. Spark hands them over in lower case;
messages show them as the documentation writes them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Self, TypeAlias

from mq_wire.errors import InvalidOption, Unsupported
from mq_wire.limits import DEFAULT_ADDRESS
from mq_wire.names import check_client_name, check_destination
from pyspark_mq.client.address import Address

#: Options of later versions: refused rather than ignored.
_NOT_YET: Final[dict[str, str]] = {
    "token": "authentication",
    "tokenfile": "authentication",
    "password": "authentication",
    "poison": "poison handling",
    "selector": "selectors",
    "topic": "topics",
    "subscription": "topic subscriptions",
}
#: What Spark itself adds to the options of a sink.
_ADDED_BY_SPARK: Final = frozenset({"checkpointlocation", "queryname"})

#: Spark hands over each option of a table a second time with this prefix, but only when the table is made:
#: readers and writers of a Python source get none of them.
_OF_TABLES: Final = "option."
_NO_TABLES: Final = (
    "Spark gives the options of a table to no Python source: "
    "use CREATE TEMPORARY VIEW ... USING mq OPTIONS (...)"
)

_DURATION_MS: Final[dict[str, float]] = {
    "": 1,
    "us": 1e-3,
    "ms": 1,
    "s": 1e3,
    "sec": 1e3,
    "second": 1e3,
    "seconds": 1e3,
    "m": 6e4,
    "min": 6e4,
    "minute": 6e4,
    "minutes": 6e4,
    "h": 3.6e6,
    "hour": 3.6e6,
    "hours": 3.6e6,
    "d": 8.64e7,
    "day": 8.64e7,
    "days": 8.64e7,
}
_SIZE_BYTES: Final[dict[str, int]] = {
    "": 1,
    "b": 1,
    "k": 1 << 10,
    "kb": 1 << 10,
    "m": 1 << 20,
    "mb": 1 << 20,
    "g": 1 << 30,
    "gb": 1 << 30,
}
# What an option's annotation says about its text: `_PARSERS` has a reader for each.
ByteCount: TypeAlias = int
Milliseconds: TypeAlias = int

_QUANTITY: Final = re.compile(r"(\d+)\s*([a-z]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """What every direction has. Field names are the options in snake case; `_SPELLING` has those that
    differ.
    """

    broker: str = DEFAULT_ADDRESS
    queue: str = ""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Returns the options in `given`, names in any case.

        Raises:
            InvalidOption: unknown name (with a suggestion) or a value that is not allowed.
            Unsupported: an option of a later version.
        """
        known = {_spelled(field.name).lower(): field for field in fields(cls)}
        values: dict[str, Any] = {}
        if any(name.lower().startswith(_OF_TABLES) for name in given):
            raise Unsupported(f"a table cannot be a queue: {_NO_TABLES}")
        if not given:
            raise InvalidOption(
                "option queue is missing: name the queue, such as .option('queue', 'orders'). "
                f"If this is a table: {_NO_TABLES}"
            )
        for name, text in given.items():
            lower = name.lower()
            if lower in known:
                field = known[lower]
                values[field.name] = _PARSERS[str(field.type)](_spelled(field.name), text)
            elif lower not in _ADDED_BY_SPARK:
                _refuse_unknown(name, cls._direction(), [_spelled(field.name) for field in fields(cls)])
        options = cls(**values)
        options._check()
        return options

    @classmethod
    def _direction(cls) -> str:
        raise NotImplementedError

    def _check(self) -> None:
        Address.parse(self.broker)
        if not self.queue:
            raise InvalidOption("option queue is missing: name the queue, such as .option('queue', 'orders')")
        check_destination(self.queue)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowseOptions(_Options):
    """Batch read: browses without consuming.

    Attributes:
        include_headers: adds the column headers.
        min_partitions: at least so many tasks where the rows allow it.
        max_records_per_partition: at most so many rows a task; 0 = no limit.
        fail_on_data_loss: whether rows that are no longer kept fail the query instead of reading as nothing,
            with a warning.
        prefetch_rows: rows that one task has under way at most.
        prefetch_bytes: bytes that one task has under way at most, give or take a batch.
    """

    include_headers: bool = False
    min_partitions: int = 0
    max_records_per_partition: int = 0
    fail_on_data_loss: bool = True
    prefetch_rows: int = 262_144
    prefetch_bytes: ByteCount = 16 << 20

    @classmethod
    def _direction(cls) -> str:
        return "batch read"

    def _check(self) -> None:
        _Options._check(self)
        for name in ("prefetch_rows", "prefetch_bytes"):
            if getattr(self, name) < 1:
                raise InvalidOption(
                    f"option {_spelled(name)} is {getattr(self, name)}: at least 1 is needed for anything "
                    f"to flow"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(BrowseOptions):
    """Streaming read.

    Attributes:
        consumer: durable name; empty = the checkpoint alone says who reads.
        starting_offsets: `earliest` only: a queue starts at everything that is ready.
        max_offsets_per_trigger: rows of one micro-batch; 0 = no limit.
        max_bytes_per_trigger: bytes of one micro-batch, estimated, at least one row; 0 = no limit.
        min_offsets_per_trigger: with fewer rows ready no batch starts before `max_trigger_delay` has gone by.
        max_trigger_delay: milliseconds; suffixes as in "15m".
        idle_wait_ms: how long the broker may wait for something to become ready before it says that nothing
            is.
    """

    consumer: str = ""
    starting_offsets: str = "earliest"
    max_offsets_per_trigger: int = 1_000_000
    max_bytes_per_trigger: ByteCount = 256 << 20
    min_offsets_per_trigger: int = 0
    max_trigger_delay: Milliseconds = 15 * 60_000
    idle_wait_ms: int = 50

    @classmethod
    def _direction(cls) -> str:
        return "streaming read"

    def _check(self) -> None:
        BrowseOptions._check(self)
        if self.consumer:
            check_client_name(self.consumer, "consumer")
        if self.starting_offsets.lower() != "earliest":
            raise InvalidOption(
                f"option startingOffsets is {self.starting_offsets!r}: a queue gives each message to one "
                f"consumer, so a query starts at "
                "everything that is ready; 'earliest' is the only value (positions to start at exist for "
                "topic subscriptions)"
            )
        if 0 < self.max_offsets_per_trigger < self.min_offsets_per_trigger:
            raise InvalidOption(
                f"option minOffsetsPerTrigger is {self.min_offsets_per_trigger}, above "
                f"maxOffsetsPerTrigger = "
                f"{self.max_offsets_per_trigger}: lower the first or raise the second"
            )
        if self.idle_wait_ms > 10_000:
            raise InvalidOption(
                f"option idleWaitMs is {self.idle_wait_ms}: more than 10000 ms would hold up the other "
                f"sources of a query"
            )


class ReadOptions(SourceOptions):
    """What a stream or a batch takes: `load()` does not say yet which of the two it is for."""

    @classmethod
    def _direction(cls) -> str:
        return "read"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions(_Options):
    """Streaming and batch write.

    Attributes:
        window_bytes: sent and not yet receipted bytes of one task.
        linger_ms: how long small batches of one task are gathered into larger ones.
        send_timeout_ms: how long a batch may stay without a receipt before its task fails.
        route_by_columns: the columns queue and partition say where a row goes; option queue beats column
            queue.
        batch_mismatch: what happens when a committed batch comes again with another number of rows: fail, or
            keep what was committed.
        txn_app_id: batch write only: who writes (idempotent together with txn_version, as in Delta).
        txn_version: batch write only: a number that grows with each write of this application; -1 = none
            given.
    """

    window_bytes: ByteCount = 8 << 20
    linger_ms: int = 50
    send_timeout_ms: int = 60_000
    route_by_columns: bool = False
    batch_mismatch: str = "fail"
    txn_app_id: str = ""
    txn_version: int = -1

    @classmethod
    def _direction(cls) -> str:
        return "write"

    def _check(self) -> None:
        if self.queue or not self.route_by_columns:
            _Options._check(self)
        if self.batch_mismatch not in ("fail", "keep"):
            raise InvalidOption(f"option batchMismatch is {self.batch_mismatch!r}: use 'fail' or 'keep'")
        if bool(self.txn_app_id) != (self.txn_version >= 0):
            missing, there = ("txnVersion", "txnAppId") if self.txn_app_id else ("txnAppId", "txnVersion")
            raise InvalidOption(
                f"option {there} is given without {missing}: only both together make a write idempotent"
            )
        if self.txn_app_id:
            check_client_name(self.txn_app_id, "txnAppId")
        for name in ("window_bytes", "send_timeout_ms"):
            if getattr(self, name) < 1:
                raise InvalidOption(
                    f"option {_spelled(name)} is {getattr(self, name)}: at least 1 is needed for anything "
                    f"to flow"
                )


def parse_bool(name: str, text: str) -> bool:
    """Returns the truth value in `text`."""
    if text.strip().lower() in ("true", "false"):
        return text.strip().lower() == "true"
    raise InvalidOption(f"option {name} is {text!r}: use 'true' or 'false'")


def _parse_count(name: str, text: str) -> int:
    if re.fullmatch(r"\s*\d{1,18}\s*", text):
        return int(text)
    raise InvalidOption(f"option {name} is {text!r}: a whole number, 0 or more, is needed")


def _parse_size(name: str, text: str) -> int:
    match = _QUANTITY.fullmatch(text.strip().lower())
    if match and match[2] in _SIZE_BYTES and len(match[1]) <= 18:
        return int(match[1]) * _SIZE_BYTES[match[2]]
    raise InvalidOption(
        f"option {name} is {text!r}: a number of bytes is needed, such as '268435456' or '256m'"
    )


def _parse_duration(name: str, text: str) -> int:
    match = _QUANTITY.fullmatch(text.strip().lower())
    if match and match[2] in _DURATION_MS and len(match[1]) <= 15:
        return int(int(match[1]) * _DURATION_MS[match[2]])
    raise InvalidOption(f"option {name} is {text!r}: a time is needed, such as '15m', '30s' or '500ms'")


_PARSERS: Final[dict[str, Any]] = {
    "str": lambda _name, text: text.strip(),
    "bool": parse_bool,
    "int": _parse_count,
    "ByteCount": _parse_size,
    "Milliseconds": _parse_duration,
}


def _spelled(field_name: str) -> str:
    first, *rest = field_name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _refuse_unknown(name: str, direction: str, known: list[str]) -> None:
    lower = name.lower()
    if lower in _NOT_YET:
        raise Unsupported(
            f"option {name} of format mq: {_NOT_YET[lower]} is not in this version; leave the option out"
        )
    if lower == "path":
        raise InvalidOption(
            "format mq takes no path: call load(), save() or start() without one and name the queue with "
            "option queue"
        )
    if lower == "kafka.bootstrap.servers":
        raise InvalidOption(
            "option kafka.bootstrap.servers is for Kafka: format mq takes option broker, such as "
            "mq://127.0.0.1:7654"
        )
    if lower in ("subscribe", "subscribepattern", "assign"):
        raise InvalidOption(
            f"option {name} is for Kafka: format mq takes option queue, the name of one queue"
        )
    if lower.startswith("endingoffsets"):
        raise InvalidOption(
            f"option {name} is for Kafka: a batch read browses all that is there, and a stream goes on; "
            "leave the option out"
        )
    close = difflib.get_close_matches(lower, [option.lower() for option in known], n=1)
    suggestion = next(
        (f"did you mean {option}? " for option in known if close and option.lower() == close[0]), ""
    )
    raise InvalidOption(
        f"option {name} is unknown to a {direction} of format mq: {suggestion}It knows "
        f"{', '.join(sorted(known))}"
    )
