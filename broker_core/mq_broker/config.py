"""Settings of a broker: from a TOML file, from flags, or the defaults. `conf/broker.toml` explains each of
them.
"""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Every setting of a broker, with its default. Units stand last in the names.

    Raises:
        InvalidOption: a value of another type or outside of its bounds, with both.
    """

    host: str = _setting("127.0.0.1", "interface to listen on; 0.0.0.0 or [::] for all")
    port: int = _setting(
        DEFAULT_PORT, "TCP port; 0 picks a free one, the readiness line says which", 0, 65535
    )
    data_dir: str = _setting("mq-data", "directory of the journal; one broker process at a time")

    log_format: str = _setting("text", "lines of the log on stderr: text or json", choices=("text", "json"))
    log_level: str = _setting(
        "info",
        "what the log says: debug, info, warning or error",
        choices=("debug", "info", "warning", "error"),
    )

    auto_create_destinations: bool = _setting(True, "create a destination when it is first used")
    default_partitions: int = _setting(
        4, "partitions of a destination that does not say how many", 1, PARTITIONS_MAX
    )
    destinations_max: int = _setting(100_000, "destinations of this broker", 1)
    partitions_total_max: int = _setting(
        400_000, "partitions of all destinations together; each takes about 5 KB of memory", 1
    )
    named_producers_max: int = _setting(100_000, "names of producers; each is remembered for ever", 1)
    anonymous_producers_max: int = _setting(
        1000, "producers without a name that the duplicate audit remembers, per partition", 1
    )

    staged_sets_max: int = _setting(
        100_000, "staged sets that are open; each task of a write has one until its batch is committed", 1
    )
    staged_batches_max: int = _setting(
        1_000_000, "batches in all staged sets together; each takes about a kilobyte of memory", 1
    )
    commit_sets_max: int = _setting(
        20_000, "staged sets of one commit, which everybody waits for: 25 us each", 1
    )
    markers_max: int = _setting(
        200_000,
        "owners whose last commit is remembered, for ever; and as many batch writes, each for a day; each "
        "takes about 600 bytes",
        1,
    )

    staged_ttl_s: int = _setting(
        86_400, "staged rows without any sign of their batch are discarded after this", 1
    )
    browses_max: int = _setting(1000, "browse views at the same time", 1)
    browse_bytes_max: int = _setting(
        128 << 20, "memory of all browse views together, beside what they share; one may be larger", 1
    )
    browse_ttl_s: int = _setting(300, "a browse view that nobody reads is dropped after this", 1)
    run_grace_s: int = _setting(120, "a query whose host went silent keeps what it planned so long", 1)

    kept_range_ttl_s: int = _setting(
        86_400, "acknowledged rows are kept so long for a checkpoint whose query is gone", 1
    )
    consumers_max: int = _setting(
        100_000, "durable consumers of all destinations together, such as Spark queries", 1
    )
    queries_max: int = _setting(
        100_000, "streaming queries that are known; those that neither hold nor commit anything go first", 1
    )
    query_ends_max: int = _setting(
        400_000, "queues that these queries read and targets that they write, all together", 1
    )

    segment_bytes: int = _setting(128 << 20, "size of one journal file", 8 * RECORDS_BYTES_MAX, _GIB)
    pool_segments: int = _setting(2, "empty journal files kept ready", 2, 1024)

    snapshot_bytes: int = _setting(
        256 << 20, "a snapshot is taken after so much journal; recovery replays at most about this", 1 << 20
    )
    snapshot_interval_s: int = _setting(
        300, "and at the latest so long after the first change since the last one", 1
    )

    connections_max: int = _setting(
        4096,
        "connections at the same time; never more than the process may have open files, less 256",
        1,
        1_000_000,
    )
    streams_max: int = _setting(2000, "streams open at the same time, over all clients", 1, 100_000)
    streams_per_connection_max: int = _setting(
        1000, "and from one connection, so that no client takes them all", 1, 100_000
    )
    waits_max: int = _setting(
        256, "queries waiting for rows at the same time; others get their answer at once", 1, 100_000
    )
    unary_threads: int = _setting(64, "calls answered at the same time, beside streams and waits", 4, 10_000)
    publish_requests_max: int = _setting(
        1024, "unanswered batches of one publish stream; then it is not read any further", 1
    )
    publish_bytes_max: int = _setting(
        32 << 20, "unanswered bytes of one publish stream; then it is not read any further", 1
    )
    publish_bytes_total_max: int = _setting(
        128 << 20, "unanswered bytes of all publish streams together", RECORDS_BYTES_MAX
    )
    receive_bytes_max: int = _setting(
        128 << 20, "large requests of unary calls that are on their way; others wait", RPC_BYTES_MAX
    )
    receive_bytes_total_max: int = _setting(
        96 << 20, "what came of all requests that are not whole; then some end", RPC_BYTES_MAX
    )
    acknowledge_bytes_max: int = _setting(
        32 << 20, "unanswered acknowledgements of one stream, in bytes of memory; then it waits", 1
    )
    acknowledge_bytes_total_max: int = _setting(
        64 << 20, "unanswered acknowledgements of all streams together", 1
    )
    delivery_bytes_total_max: int = _setting(
        128 << 20, "rows read for all streams and not taken yet; others wait, then those end", 1
    )
    keepalive_ms: int = _setting(
        20_000, "a silent connection is asked whether it lives after this", 1000, _INT_MAX
    )
    keepalive_timeout_ms: int = _setting(
        10_000, "and closed when it has not answered for this long", 100, _INT_MAX
    )

    def __post_init__(self) -> None:
        for setting in dataclasses.fields(self):
            _check(setting, getattr(self, setting.name))
        if self.host.startswith("[") and self.host.endswith("]"):  # as it stands in addresses
            object.__setattr__(self, "host", self.host[1:-1])
        if self.publish_bytes_total_max < self.publish_bytes_max:
            raise InvalidOption(
                f"publish_bytes_total_max = {self.publish_bytes_total_max} is less than publish_bytes_max "
                f"= {self.publish_bytes_max}: "
                "raise the one or lower the other"
            )

    @classmethod
    def from_toml(cls, path: str | Path, **overrides: object) -> BrokerConfig:
        """Returns the settings of a file; `overrides` beat it, defaults fill it up.

        Raises:
            InvalidOption: no such file, no TOML, an unknown setting (with what was probably meant) or a wrong
                value.
        """
        try:
            # editors of Windows put a mark before the first line
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
        """Returns the defaults with `settings` in place of some of them.

        Raises:
            InvalidOption: an unknown setting or a wrong value.
        """
        known = [setting.name for setting in dataclasses.fields(cls)]
        for name in settings:
            if name not in known:
                close = difflib.get_close_matches(name, known, 1, 0.6)
                hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
                raise InvalidOption(f"unknown broker setting {name!r}: {hint}")
        return cls(**settings)


def _check(setting: dataclasses.Field[Any], value: object) -> None:
    wanted = type(setting.default)
    if type(value) is not wanted:
        found, hint = type(value).__name__, f"{wanted.__name__}, such as {setting.default!r}"
        raise InvalidOption(f"{setting.name} = {value!r} is of type {found}: give {hint}")
    low, high = setting.metadata["low"], setting.metadata["high"]
    if isinstance(value, int) and low is not None and not low <= value <= (value if high is None else high):
        raise InvalidOption(
            f"{setting.name} = {value} is outside {low} to {'any' if high is None else high} (default "
            f"{setting.default})"
        )
    choices = setting.metadata["choices"]
    if choices and value not in choices:
        raise InvalidOption(
            f"{setting.name} = {value!r} is none of {', '.join(choices)} (default {setting.default})"
        )
    if value == "":
        raise InvalidOption(f"{setting.name} is empty: give a value, such as {setting.default!r}")
