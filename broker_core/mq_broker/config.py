"""The settings of a broker: defaults, TOML file and flags. `conf/broker.toml` lists all of them."""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mq_wire.errors import InvalidOption
from mq_wire.limits import DEFAULT_PORT, PARTITIONS_MAX, RECORDS_BYTES_MAX, RPC_BYTES_MAX


def _setting(
    default: object,
    summary: str,
    low: int | None = None,
    high: int | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    return dataclasses.field(
        default=default, metadata={"summary": summary, "low": low, "high": high, "choices": choices}
    )


_GIB: Final = 1 << 30
#: gRPC takes no larger numbers.
_INT_MAX: Final = (1 << 31) - 1
#: Types of settings, in the words of errors.
_KINDS: Final[dict[type, str]] = {bool: "true or false", int: "a whole number", str: "a text"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Every setting of a broker, with its default. Names end with the unit.

    Raises:
        InvalidOption: a value of a wrong type or outside its bounds; the error names value and bounds.
    """

    host: str = _setting("127.0.0.1", "interface to listen on; 0.0.0.0 or [::] for all")
    port: int = _setting(
        DEFAULT_PORT, "TCP port; 0 picks a free one, which the readiness line names", 0, 65535
    )
    data_dir: str = _setting("mq-data", "data directory; only one broker process at a time may use it")

    log_format: str = _setting("text", "format of the log on stderr: text or json", choices=("text", "json"))
    log_level: str = _setting(
        "info",
        "lowest level that is logged: debug, info, warning or error",
        choices=("debug", "info", "warning", "error"),
    )

    auto_create_destinations: bool = _setting(True, "create a destination when it is first used")
    default_partitions: int = _setting(
        4, "partitions of a destination that is created without a number of partitions", 1, PARTITIONS_MAX
    )
    destinations_max: int = _setting(100_000, "most destinations of this broker", 1)
    partitions_total_max: int = _setting(
        400_000, "most partitions of all destinations together; each takes about 5 KB of memory", 1
    )
    named_producers_max: int = _setting(100_000, "most names of producers; each is remembered for ever", 1)
    producer_marks_max: int = _setting(
        400_000, "most partitions that named producers have sent to, counted for each of them", 1
    )
    anonymous_producers_max: int = _setting(
        1000, "most producers without a name that the duplicate audit of a partition remembers", 1
    )
    anonymous_producers_total_max: int = _setting(
        200_000, "most producers without a name that all audits remember together", 1
    )

    staged_sets_max: int = _setting(
        100_000, "most open staged sets; each task of a write has one until its batch is committed", 1
    )
    staged_batches_max: int = _setting(
        1_000_000, "most batches in all staged sets together; each takes about 200 bytes of memory", 1
    )
    commit_sets_max: int = _setting(
        20_000, "most staged sets of one commit; each takes 25 us, while all other calls wait", 1
    )
    markers_max: int = _setting(
        200_000,
        "most owners whose last commit is remembered for ever, and as many batch writes, remembered for a "
        "day; each takes about 600 bytes",
        1,
    )

    staged_ttl_s: int = _setting(
        86_400, "a staged set is discarded so many seconds after the last write to it", 1
    )
    browses_max: int = _setting(1000, "most browse views at the same time", 1)
    browse_bytes_max: int = _setting(
        128 << 20,
        "memory of all browse views together, without what they share; a single view may be larger",
        1,
    )
    browse_ttl_s: int = _setting(300, "a browse view is dropped so many seconds after its last use", 1)
    run_grace_s: int = _setting(
        120, "a query whose host went silent keeps the rows that it planned for so many seconds", 1
    )

    kept_range_ttl_s: int = _setting(
        86_400, "acknowledged rows are kept for the checkpoint of an ended query for so many seconds", 1
    )
    consumers_max: int = _setting(
        100_000, "most durable consumers, such as Spark queries, of all destinations together", 1
    )
    queries_max: int = _setting(
        100_000, "most streaming queries that are remembered; idle ones are forgotten first", 1
    )
    query_ends_max: int = _setting(
        400_000, "most queues that these queries read and targets that they write, all together", 1
    )

    segment_bytes: int = _setting(128 << 20, "largest size of a journal file", 8 * RECORDS_BYTES_MAX, _GIB)
    pool_segments: int = _setting(2, "empty journal files kept ready", 2, 1024)

    snapshot_bytes: int = _setting(
        256 << 20,
        "a snapshot is taken after so many bytes of journal; recovery replays about as much",
        1 << 20,
    )
    snapshot_interval_s: int = _setting(
        300, "a snapshot is taken at the latest so many seconds after the first change since the last one", 1
    )

    connections_max: int = _setting(
        4096,
        "most connections; at most the number of files that the process may open, less 256",
        1,
        1_000_000,
    )
    streams_max: int = _setting(2000, "most open streams of all clients", 1, 100_000)
    streams_per_connection_max: int = _setting(1000, "most open streams of one connection", 1, 100_000)
    sessions_max: int = _setting(
        20_000,
        "most connected consumers that share streams, of all clients; each takes about 10 KB",
        1,
        1_000_000,
    )
    sessions_per_stream_max: int = _setting(4000, "most connected consumers of one stream", 1, 1_000_000)
    waits_max: int = _setting(
        256, "most queries that wait for rows; further ones are answered at once", 1, 100_000
    )
    unary_threads: int = _setting(
        64, "most calls that are answered at the same time, beside streams and waits", 4, 10_000
    )
    publish_requests_max: int = _setting(
        1024, "most unanswered batches of one publish stream; beyond that it is not read", 1
    )
    publish_bytes_max: int = _setting(
        32 << 20, "most unanswered bytes of one publish stream; beyond that it is not read", 1
    )
    publish_bytes_total_max: int = _setting(
        128 << 20, "most unanswered bytes of all publish streams together", RECORDS_BYTES_MAX
    )
    receive_bytes_max: int = _setting(
        128 << 20, "most bytes of large unary requests that are being received; others wait", RPC_BYTES_MAX
    )
    receive_bytes_total_max: int = _setting(
        96 << 20,
        "most bytes of incomplete requests; beyond that, calls of the largest senders end",
        RPC_BYTES_MAX,
    )
    acknowledge_bytes_max: int = _setting(
        32 << 20, "most memory of unanswered acknowledgements of one stream; beyond that it is not read", 1
    )
    acknowledge_bytes_total_max: int = _setting(
        64 << 20, "most memory of unanswered acknowledgements of all streams together", 1
    )
    delivery_bytes_total_max: int = _setting(
        128 << 20,
        "most bytes of rows that were read for clients and not received yet; others wait, and slow ones end",
        1,
    )
    keepalive_ms: int = _setting(
        20_000, "a ping is sent when a connection was silent for so many milliseconds", 1000, _INT_MAX
    )
    keepalive_timeout_ms: int = _setting(
        10_000, "a connection is closed if a ping has no answer within so many milliseconds", 100, _INT_MAX
    )

    def __post_init__(self) -> None:
        for setting in dataclasses.fields(self):
            _check(setting, getattr(self, setting.name))
        if self.host.startswith("[") and self.host.endswith("]"):  # as in the address of a broker
            object.__setattr__(self, "host", self.host[1:-1])
        if self.publish_bytes_total_max < self.publish_bytes_max:
            raise InvalidOption(
                f"publish_bytes_total_max = {self.publish_bytes_total_max} is less than "
                f"publish_bytes_max = {self.publish_bytes_max}: raise the one or lower the other"
            )

    @classmethod
    def from_toml(cls, path: str | Path, **overrides: object) -> BrokerConfig:
        """Returns the settings of a file. `overrides` replace them; settings that are missing have their
        defaults.

        Raises:
            InvalidOption: the file cannot be read or is not TOML, or it has an unknown setting (the error
                suggests another name) or a wrong value.
        """
        try:
            # utf-8-sig: editors of Windows may begin the file with a byte order mark
            settings = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
        except OSError as error:
            raise InvalidOption(f"config file {str(path)!r} cannot be read: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InvalidOption(f"config file {str(path)!r} is not TOML: {error}") from None
        try:
            return cls.of({**settings, **overrides})
        except InvalidOption as error:
            raise InvalidOption(f"config file {str(path)!r}: {error}") from None

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> BrokerConfig:
        """Returns the defaults, with some replaced by `settings`.

        Raises:
            InvalidOption: an unknown setting or a wrong value.
        """
        known = [setting.name for setting in dataclasses.fields(cls)]
        for name in settings:
            if name not in known:
                close = difflib.get_close_matches(name, known, 1, 0.6)
                hint = f"did you mean {close[0]!r}?" if close else f"the settings are {', '.join(known)}"
                raise InvalidOption(f"unknown broker setting {name!r}: {hint}")
        return cls(**settings)


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _check(setting: dataclasses.Field[Any], value: object) -> None:
    wanted = type(setting.default)
    if type(value) is not wanted:
        raise InvalidOption(
            f"{setting.name} = {_toml(value)} is not {_KINDS[wanted]}: give one, such as "
            f"{_toml(setting.default)}"
        )
    low, high = setting.metadata["low"], setting.metadata["high"]
    if isinstance(value, int) and low is not None and not low <= value <= (value if high is None else high):
        bounds = f"{low} or more" if high is None else f"{low} to {high}"
        raise InvalidOption(
            f"{setting.name} = {value} is out of bounds: give {bounds} (default {setting.default})"
        )
    choices = setting.metadata["choices"]
    if choices and value not in choices:
        raise InvalidOption(
            f"{setting.name} = {value!r} is not allowed: give one of {', '.join(choices)} "
            f"(default {setting.default})"
        )
    if value == "":
        raise InvalidOption(f"{setting.name} is empty: give a value, such as {setting.default!r}")
