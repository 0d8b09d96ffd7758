"""The broker behind its network: the real handlers of every method, over the real engine and core, with a
list as the journal.

What is fed here is what a client's bytes go through in a broker process, from the first byte on. Only HTTP/2
and the disk are missing.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Generator
from typing import Any, Final, cast

import grpc
import pyarrow as pa

from mq_broker.config import BrokerConfig
from mq_broker.core.broker import Broker
from mq_broker.core.commands import Settings
from mq_broker.engine.engine import Engine
from mq_broker.engine.housekeeping import Housekeeping
from mq_broker.journal.frames import BodyPlace
from mq_broker.journal.journal import Journal
from mq_broker.journal.recovery import BEGINNING
from mq_broker.rpc.server import Server
from mq_wire import framing
from mq_wire.errors import CODE_METADATA_KEY
from mq_wire.service import METHODS
from mq_wire.v1.consume_pb2 import ConsumeHeader
from spark_tests.support.worlds.lists import CLUSTER, ListSink, counted_ids

START_US: Final = 1_700_000_000_000_000
#: What differs between two messages of one kind: numbers, names in quotes, hexadecimal.
_VARIABLE: Final = re.compile(r"'[^']*'|\"[^\"]*\"|0x[0-9a-f]+|[0-9a-f]{8,}|-?\d+|b'.*'")


class MemoryJournal(ListSink):
    """What the engine asks of a journal. It holds the engine to its word: no command may write more than it
    announced.
    """

    turn_bytes_max = state_bytes_max = 1 << 27
    is_short = lacks_reserve = False

    def __init__(self) -> None:
        super().__init__()
        self.space = self  # the figures of room, too
        self._announced = self._written = 0  # bytes, by the command in hand
        self.position = BEGINNING

    def add(self, header: bytes, body: pa.Buffer | None, body_crc: int | None) -> BodyPlace | None:
        self._written += len(header) + (body.size if body is not None else 0)
        assert self._written <= self._announced, (
            f"{self._written} bytes of entries, announced were {self._announced}"
        )
        return super().add(header, body, body_crc)

    def fits(self, size_bytes: int) -> bool:
        self._announced, self._written = size_bytes, 0
        return True

    def reserve(self, size_bytes: int, *, for_state: bool = False, left: int = 0) -> None:
        pass

    def commit(self) -> None:
        self._announced = 1 << 40  # dispatch and ticks announce nothing

    def used_bytes(self) -> int:
        return 0

    def free_bytes(self) -> int:
        return 1 << 40

    def segments(self) -> list[tuple[int, int, int]]:
        return []

    def close(self) -> None:
        pass


class NoHousekeeping:
    """Nothing is written, so there is nothing to keep."""

    is_cleaning = False

    def step(self, broker: Broker, now_us: int, monotonic_us: int) -> None:
        pass

    def keep_room(self, broker: Broker) -> None:
        pass

    def may_relieve(self, monotonic_us: int) -> bool:
        return False

    def relieve(self, broker: Broker, monotonic_us: int) -> None:
        pass

    def finish(self, broker: Broker) -> None:
        pass


class Refused(Exception):
    """A call ended with a status."""

    def __init__(self, code: str, status: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{code} {status}: {details}")
        self.code, self.details = code, details


class Context:
    """What a handler sees of its call."""

    def __init__(self) -> None:
        self._code = ""
        self._callbacks: list[Callable[[], None]] = []

    def add_callback(self, callback: Callable[[], None]) -> bool:
        self._callbacks.append(callback)
        return True

    def is_active(self) -> bool:
        return True

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("mq-client-id", "a stranger"),)

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def cancel(self) -> None:
        self.leave()

    def set_trailing_metadata(self, metadata: tuple[tuple[str, str], ...]) -> None:
        self._code = dict(metadata)[CODE_METADATA_KEY]

    def abort(self, status: grpc.StatusCode, details: str) -> None:
        # As much as a peer accepts: percent-encoded, every byte that is not printable ASCII takes three.
        encoded = sum(1 if 0x20 <= byte <= 0x7E else 3 for byte in details.encode())
        assert encoded <= 8000, f"{encoded} bytes of status message"
        raise Refused(self._code, status, details)

    def leave(self) -> None:
        """The client goes."""
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


class Boundary:
    """One broker. `feed` answers as the wire would; `failed` tells of what must never happen."""

    def __init__(self, on_failure: Callable[[BaseException], None], settings: Settings | None = None) -> None:
        settings = settings or Settings(default_partitions=2, anonymous_producers_max=100)
        self.journal = MemoryJournal()
        self.broker = Broker(CLUSTER, settings, self.journal, counted_ids())
        clock = itertools.count(START_US)
        self.engine = Engine(
            self.broker,
            cast("Journal", self.journal),
            cast("Housekeeping", NoHousekeeping()),
            lambda: next(clock),
            on_failure,
        )
        self.engine.start()
        self._server = Server(self.engine, BrokerConfig(), CLUSTER, "0")
        self._handlers = {name: self._server.handler(method) for name, method in METHODS.items()}

    def close(self) -> None:
        self._server.stop()
        self.engine.stop()

    def feed(self, method: str, *messages: bytes) -> Generator[tuple[str, str, Any], None, None]:
        """Calls a method with serialised requests; yields (code, message, answer) of each answer. Code is ""
        where it is none of error.
        """
        handler: Any = self._handlers[method]
        context = Context()
        try:
            if handler.stream_unary is not None:
                parse = METHODS[method].parse_response
                assert parse is not None
                yield _in_band(method, parse(handler.stream_unary(iter(messages), context)))
                return
            for answer in handler.stream_stream(iter(messages), context):
                yield _in_band(method, answer)
                if method == "HoldRun":
                    context.leave()
        except Refused as refused:
            yield refused.code, refused.details, None
        finally:
            context.leave()


def _in_band(method: str, answer: Any) -> tuple[str, str, Any]:
    if method == "Consume":
        header = ConsumeHeader.FromString(bytes(framing.split(answer)[0]))
        return header.error.code, header.error.message, answer
    if method in ("Publish", "Send"):
        return answer.error.code, answer.error.message, answer
    return "", "", answer


def template(code: str, message: str) -> str:
    """What stays of an error when its numbers and names are left out: a new one means new ground."""
    return f"{code} {_VARIABLE.sub('#', message)[:160]}"
