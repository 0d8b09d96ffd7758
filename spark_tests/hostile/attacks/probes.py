"""Health and reflection, asked as no probe would, and calls that never say what they want."""

from __future__ import annotations

import gzip
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from spark_tests.hostile import http2
from spark_tests.hostile.siege import Attack, Target, side_by_side

CHECK: Final = "/grpc.health.v1.Health/Check"
WATCH: Final = "/grpc.health.v1.Health/Watch"
REFLECT: Final = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


def watch_and_cancel(target: Target) -> None:
    """Eight ordinary clients watch for a moment and go."""

    def probe() -> None:
        with grpc.insecure_channel(target.address.removeprefix("mq://")) as channel:
            for number in range(target.times(25)):
                watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=20)
                if number % 2:
                    next(watch)
                watch.cancel()

    side_by_side([probe] * 8)


def watch_unread(target: Target) -> None:
    """Watchers whose window is 0."""
    for _ in range(target.times(20)):
        target.client(window=0, reads=False).call(WATCH, health_pb2.HealthCheckRequest().SerializeToString())


def silent(target: Target) -> None:
    """3,400 calls without a request on one connection."""
    link = target.link(http2.PREFACE + http2.settings())
    for start in range(1, 2 * target.times(3400), 200):
        path = ("Stats", CHECK, WATCH, REFLECT)[start % 4]
        http2.sent(
            link, b"".join(http2.call_headers(path, stream) for stream in range(start, start + 200, 2))
        )


def reflections_packed(target: Target) -> None:
    """Compressed requests of 7.8 KB that are 8 MB, whose answers nobody reads."""
    large = gzip.compress(
        reflection_pb2.ServerReflectionRequest(file_by_filename="x" * 8_000_000).SerializeToString()
    )
    body = b"\x01" + len(large).to_bytes(4, "big") + large
    for _ in range(target.times(4)):
        words = http2.PREFACE + http2.settings(window=0)
        for stream in range(1, 51, 2):
            words += http2.call_headers(REFLECT, stream, http2.field("grpc-encoding", "gzip"))
            words += http2.frame(http2.DATA, http2.END_STREAM, stream, body)
        http2.sent(target.link(), words)


def reflections_unread(target: Target) -> None:
    """Names of 3,900 bytes that are repeated in an answer, which nobody reads, a hundred times a stream."""
    request = http2.message(
        reflection_pb2.ServerReflectionRequest(file_by_filename="x" * 3900).SerializeToString()
    )
    for _ in range(target.times(10)):
        client = target.client(window=0, reads=False)
        for _ in range(10):
            client.send(client.call(REFLECT), request)


ATTACKS: Final = (
    Attack("watches that are cancelled", watch_and_cancel, seconds=0.5),
    Attack("watches that nobody reads", watch_unread, seconds=0.2),
    Attack("calls without a request", silent, seconds=0.5),
    Attack("packed reflection", reflections_packed, seconds=0.2),
    Attack("reflection that nobody reads", reflections_unread, seconds=0.2),
)
