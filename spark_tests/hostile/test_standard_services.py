"""Health and reflection, as probes and tools use them, and as nobody should: the broker serves others, and
ends when it is told to.
"""

from __future__ import annotations

import contextlib
import gzip
import pathlib
import socket
import threading
from typing import Any, Final

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from mq_broker import LocalBroker
from mq_wire.errors import InvalidOption
from mq_wire.service import SERVICE_NAME
from spark_tests.hostile import http2
from spark_tests.hostile.siege import Siege
from spark_tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

CHECK: Final = "/grpc.health.v1.Health/Check"
WATCH: Final = "/grpc.health.v1.Health/Watch"
REFLECT: Final = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
SERVING: Final = health_pb2.HealthCheckResponse.SERVING


def is_serving(siege: Siege) -> bool:
    reply = health_pb2_grpc.HealthStub(siege.wire.channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
    return bool(reply.status == SERVING)


def probe(address: str, rounds: int) -> None:
    """Watches for a moment and cancels, as health probes do."""
    with grpc.insecure_channel(address.removeprefix("mq://")) as channel:
        for number in range(rounds):
            watch = health_pb2_grpc.HealthStub(channel).Watch(
                health_pb2.HealthCheckRequest(service="" if number % 3 else SERVICE_NAME)
            )
            if number % 2:
                assert next(watch).status == SERVING
            watch.cancel()


def test_probes_that_watch_for_a_moment_and_cancel(siege: Siege) -> None:
    probes = [threading.Thread(target=probe, args=(siege.broker.address, 40)) for _ in range(8)]
    for thread in probes:
        thread.start()
    for thread in probes:
        thread.join(60)
        assert not thread.is_alive(), "a probe hangs"
    siege.check(20)
    assert is_serving(siege)


def test_watchers_that_never_read(siege: Siege, links: list[socket.socket]) -> None:
    request = http2.call_data(health_pb2.HealthCheckRequest().SerializeToString(), 1)
    words = http2.PREFACE + http2.settings(window=0) + http2.call_headers(WATCH, 1) + request
    links += [http2.connected(siege.port, words) for _ in range(10)]
    for _ in range(20):
        assert is_serving(siege)
    siege.check(20)


@pytest.mark.parametrize("path", [CHECK, WATCH, REFLECT])
def test_thousands_of_calls_without_a_request_on_one_connection(
    siege: Siege, links: list[socket.socket], path: str
) -> None:
    links.append(http2.connected(siege.port, http2.PREFACE + http2.settings()))
    for start in range(1, 6801, 200):
        http2.sent(
            links[-1], b"".join(http2.call_headers(path, stream) for stream in range(start, start + 200, 2))
        )
    siege.check(30)
    assert is_serving(siege)


def test_a_watcher_of_an_unknown_service_waits_and_who_asks_once_is_told(siege: Siege) -> None:
    stub = health_pb2_grpc.HealthStub(siege.wire.channel)
    watch = stub.Watch(health_pb2.HealthCheckRequest(service="nobody"))
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    watch.cancel()
    with pytest.raises(grpc.RpcError) as caught:
        stub.Check(health_pb2.HealthCheckRequest(service="nobody"), timeout=10)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("leave", [False, True])
def test_a_broker_ends_while_hundreds_watch_or_leave(tmp_path: pathlib.Path, leave: bool) -> None:
    with LocalBroker(tmp_path / "broker") as broker, contextlib.ExitStack() as stack:
        stubs = []
        for _ in range(6):
            channel = stack.enter_context(grpc.insecure_channel(broker.address.removeprefix("mq://")))
            stubs.append(health_pb2_grpc.HealthStub(channel))
        watches = [stub.Watch(health_pb2.HealthCheckRequest()) for stub in stubs for _ in range(50)]
        assert all(next(watch).status == SERVING for watch in watches)
        leaving = threading.Thread(target=lambda: [watch.cancel() for watch in watches if leave])
        leaving.start()
        assert broker.stop() == 0
        leaving.join()
        if not leave:
            last: list[Any] = []
            for watch in watches:
                with contextlib.suppress(grpc.RpcError):
                    last += [answer.status for answer in watch]
            assert health_pb2.HealthCheckResponse.NOT_SERVING in last


def compressed(message: bytes, stream: int) -> bytes:
    packed = gzip.compress(message)
    return http2.frame(
        http2.DATA, http2.END_STREAM, stream, b"\x01" + len(packed).to_bytes(4, "big") + packed
    )


def test_questions_of_tools_are_bounded_and_nothing_is_unpacked(
    siege: Siege, links: list[socket.socket]
) -> None:
    before = siege.rss_anon_bytes()
    large = reflection_pb2.ServerReflectionRequest(file_by_filename="x" * 8_000_000).SerializeToString()
    for _ in range(4):
        words = http2.PREFACE + http2.settings(window=0)
        for stream in range(1, 51, 2):
            words += http2.call_headers(REFLECT, stream, http2.field("grpc-encoding", "gzip")) + compressed(
                large, stream
            )
        links.append(http2.connected(siege.port))
        http2.sent(links[-1], words)
    siege.check(20)
    assert siege.rss_anon_bytes() < before + (400 << 20)
    stub = reflection_pb2_grpc.ServerReflectionStub(siege.wire.channel)
    asked = (reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE_NAME) for _ in range(5000))
    with pytest.raises(grpc.RpcError) as caught:
        for _ in stub.ServerReflectionInfo(asked, timeout=30):
            pass
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    wait_until(lambda: siege.rss_anon_bytes() < before + (50 << 20), 20)


def test_times_that_no_clock_has_are_refused_in_one_line(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InvalidOption, match=r"keepalive_ms = 2147483648 is out of bounds: give 1000 to"):
        LocalBroker(tmp_path / "broker", keepalive_ms=1 << 31)
