"""A real broker over real sockets, with a client that behaves beside those that do not: it is served all the
time, and quickly.

MQ_FUZZ_INPUTS says how many damaged calls of each method are made (12,000 gives the short run).
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import socket
from typing import Any, Final

import grpc
import pytest

from mq_broker import LocalBroker
from mq_wire.errors import TABLE
from mq_wire.limits import RPC_BYTES_MAX
from mq_wire.service import METHODS
from mq_wire.v1.admin_pb2 import StatsRequest
from mq_wire.v1.consume_pb2 import ConsumeRequest
from spark_tests.hostile import http2, mutation
from spark_tests.hostile.boundary import Boundary
from spark_tests.hostile.siege import Siege
from spark_tests.hostile.traffic import QUEUE, Corpus, Traffic, publish, rows
from spark_tests.support.waiting import wait_until
from spark_tests.support.wire import Wire, error_code

pytestmark = pytest.mark.slow

INPUTS: Final = int(os.environ.get("MQ_FUZZ_INPUTS", "12000"))


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    boundary = Boundary(lambda error: None)
    found = Traffic(boundary).corpus
    boundary.close()
    return found


def garbage(rng: random.Random) -> bytes:
    """What might come from a port scanner, a confused client or somebody who knows HTTP/2."""
    noise = rng.randbytes(rng.choice((1, 100, 4000)))
    headers = http2.call_headers("Stats", 1)
    return rng.choice(
        (
            noise,
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            http2.PREFACE[: rng.randrange(24)],
            http2.PREFACE + noise,
            http2.PREFACE + http2.settings() + noise,
            http2.PREFACE
            + http2.settings()
            + http2.frame(rng.randrange(256), rng.randrange(256), rng.getrandbits(31), noise),
            http2.PREFACE + http2.settings() + headers[:9] + noise[: len(headers) - 9],
            http2.PREFACE
            + http2.settings()
            + mutation.mutated(rng, headers + http2.call_data(b"", 1), noise),
            http2.PREFACE
            + http2.settings()
            + headers
            + http2.frame(http2.DATA, 0, 1, b"\x01" + b"\xff" * 4 + noise),
            http2.PREFACE
            + http2.settings()
            + headers
            + http2.frame(http2.DATA, 1, 1, b"\x00\x7f\xff\xff\xff"),
            http2.PREFACE + http2.settings() + http2.frame(http2.PING, 0, 0, bytes(8)) * 1000,
            http2.PREFACE + http2.settings() * 1000,
            http2.PREFACE
            + http2.settings()
            + http2.call_headers("Stats", 1, *[http2.field("x", "y" * 100)] * 5000),
            http2.PREFACE
            + http2.settings()
            + http2.frame(http2.HEADERS, 0, 1, noise)
            + http2.frame(http2.CONTINUATION, 0, 1, b"") * 5000,
            http2.PREFACE
            + http2.settings()
            + b"".join(
                http2.call_headers("Stats", stream) + http2.frame(http2.RST_STREAM, 0, stream, bytes(4))
                for stream in range(1, 2001, 2)
            ),
            http2.PREFACE + http2.frame(http2.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff") * 3,
        )
    )


@pytest.mark.timeout(60 + INPUTS / 100)
def test_bytes_that_are_no_grpc(siege: Siege, rng: random.Random) -> None:
    for _ in range(max(200, INPUTS // 100)):
        with http2.connected(siege.port) as link:
            http2.sent(link, garbage(rng))
    siege.check()


def raw_call(siege: Siege, name: str, messages: tuple[bytes, ...]) -> str:
    """Calls a method with bytes as they are; returns the code that it ended with. Streams are read up to a
    few answers.
    """
    method = METHODS[name]
    streams = method.client_streaming or method.server_streaming
    shape: Any = siege.wire.channel.stream_stream if streams else siege.wire.channel.stream_unary
    try:
        call = shape(method.path)(iter(messages), timeout=0.3 if streams else 20)
        if streams:
            for _ in zip(range(4), call, strict=False):
                pass
            call.cancel()
        return ""
    except grpc.RpcError as error:
        if error.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED) and streams:
            return ""
        return error_code(error) or str(error.code().name)


@pytest.mark.timeout(60 + INPUTS / 100)
def test_damaged_requests_of_every_method(siege: Siege, rng: random.Random, corpus: Corpus) -> None:
    known = {"", *(error.code for error in TABLE)} - {"INTERNAL", "JOURNAL_DAMAGED", "STORAGE_FAILED"}
    for _ in range(max(10, INPUTS // 2000)):
        for name in METHODS:
            call = list(rng.choice(corpus[name]))
            at = rng.randrange(len(call))
            other = rng.choice(corpus["Send"])[0]
            if name in ("Send", "Publish"):
                call[at] = mutation.damaged_publish(
                    rng, call[at], other, other, f"{rng.getrandbits(128):032x}"
                )
            else:
                call[at] = rng.choice((mutation.mutated, mutation.restructured))(rng, call[at], other)
            code = raw_call(siege, name, tuple(call))
            assert code in known, (name, code, call)
    siege.check()


@pytest.mark.parametrize("size", [RPC_BYTES_MAX + 1, 100 << 20])
def test_messages_beyond_all_limits(siege: Siege, size: int) -> None:
    message = bytes(size)
    for name in ("Send", "Publish", "Consume", "CommitStaged"):
        assert raw_call(siege, name, (message,)) in ("RESOURCE_EXHAUSTED", "CANCELLED", "UNKNOWN", "")
    with (
        contextlib.suppress(OSError),
        http2.connected(siege.port, http2.PREFACE + http2.settings() + http2.call_headers("Send", 1)) as link,
    ):
        link.sendall(http2.frame(http2.DATA, 0, 1, b"\x00" + size.to_bytes(4, "big")))
        for _ in range(64):
            link.sendall(http2.frame(http2.DATA, 0, 1, bytes(16_384)))
    siege.check()


def test_a_thousand_connections_that_say_nothing(siege: Siege, links: list[socket.socket]) -> None:
    half = http2.PREFACE + http2.settings()
    links += [http2.connected(siege.port, half if number % 2 else b"") for number in range(1000)]
    siege.check()


def test_calls_that_come_byte_by_byte(siege: Siege, links: list[socket.socket]) -> None:
    words = (
        http2.PREFACE
        + http2.settings()
        + http2.call_headers("Stats", 1)
        + http2.call_data(StatsRequest().SerializeToString(), 1)
    )
    links += [http2.connected(siege.port) for _ in range(200)]
    for at in range(len(words)):
        for link in links:
            http2.sent(link, words[at : at + 1])
    siege.check()


def test_thousands_of_calls_that_never_send_their_request(siege: Siege, links: list[socket.socket]) -> None:
    """Each would keep a thread for ever; more of them than there are threads."""
    for name in ("Stats", "Consume", "Fetch", "Send", "HoldRun"):
        links.append(http2.connected(siege.port, http2.PREFACE + http2.settings()))
        http2.sent(links[-1], b"".join(http2.call_headers(name, stream) for stream in range(1, 1601, 2)))
    siege.check()


def test_thousands_of_calls_whose_answers_nobody_reads(siege: Siege, links: list[socket.socket]) -> None:
    for number in range(20):
        links.append(http2.connected(siege.port, http2.PREFACE + http2.settings(window=0)))
        name = ("ListDestinations", "Stats")[number % 2]
        http2.sent(
            links[-1],
            b"".join(http2.call_headers(name, s) + http2.call_data(b"", s) for s in range(1, 401, 2)),
        )
    siege.check()


def test_publishers_that_never_read_their_receipts(siege: Siege, links: list[socket.socket]) -> None:
    small = rows(1).select(["value"])
    for number in range(8):
        links.append(
            http2.connected(
                siege.port, http2.PREFACE + http2.settings(window=0) + http2.call_headers("Publish", 1)
            )
        )
        requests = (
            http2.call_data(
                publish(small, destination="unread", producer_id=f"unread{number}", first_sequence=n),
                1,
                end=False,
            )
            for n in range(3000)
        )
        http2.sent(links[-1], b"".join(requests))
    siege.check()


def test_consumers_with_endless_credit_that_never_read(siege: Siege, links: list[socket.socket]) -> None:
    publisher = siege.wire.publisher("slow")
    full = rows(2000)
    for _ in range(50):
        assert publisher.send(full).receipt.rows == 2000
    credit = {"rows": 2**64 - 1, "bytes": 2**64 - 1}
    opened = ConsumeRequest(
        open={"destination": "slow", "credit": credit, "batch_rows_max": 2**32 - 1}
    ).SerializeToString()
    more = ConsumeRequest(credit=credit).SerializeToString()
    for _ in range(20):
        links.append(
            http2.connected(
                siege.port, http2.PREFACE + http2.settings(window=0) + http2.call_headers("Consume", 1)
            )
        )
        http2.sent(
            links[-1], http2.call_data(opened, 1, end=False) + http2.call_data(more, 1, end=False) * 2000
        )
    wait_until(lambda: siege.wire.stats("slow").assigned_rows == 100_000)
    siege.check()
    # They go, and what they held is there for others.
    for link in links:
        link.close()
    wait_until(lambda: siege.wire.stats("slow").ready_rows == 100_000)


def test_more_connections_than_are_allowed(tmp_path: pathlib.Path, links: list[socket.socket]) -> None:
    """They are closed again, and the files that the journal needs are not taken."""
    with LocalBroker(tmp_path / "few", connections_max=50) as broker, Wire(broker.address) as wire:

        def files() -> int:
            return len(os.listdir(f"/proc/{broker.pid}/fd"))

        assert wire.publisher(QUEUE).send(rows(5)).receipt.rows == 5
        before = files()
        port = int(broker.address.rpartition(":")[2])
        for _ in range(200):
            with contextlib.suppress(OSError):
                links.append(http2.connected(port))
        wait_until(lambda: sum(http2.is_closed(link) for link in links) >= 150, 5)
        assert files() < 150
        assert wire.publisher(QUEUE).send(rows(5)).receipt.rows == 5
        for link in links:
            link.close()
        wait_until(lambda: files() < before + 10)
        with Wire(broker.address) as another:
            assert another.stats(QUEUE, wait_for_ready=True).ready_rows == 10, "there is room again"
