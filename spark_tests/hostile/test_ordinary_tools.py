"""Tools that everybody has, at work as often as somebody may set them: health probes, port checks, and
whoever asks by reflection.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, Final

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from mq_wire.service import METHODS, SERVICE_NAME
from spark_tests.hostile import http2
from spark_tests.hostile.siege import SCALE, Attack, Siege, Target, side_by_side

pytestmark = pytest.mark.slow

#: Rounds of each tool; ten milliseconds apart they would be two seconds.
ROUNDS: Final = round(200 * SCALE)
SERVING: Final = health_pb2.HealthCheckResponse.SERVING


def channel(target: Target) -> grpc.Channel:
    """A connection of its own each time, as a process of its own has it."""
    return grpc.insecure_channel(
        target.address.removeprefix("mq://"), options=[("grpc.use_local_subchannel_pool", 1)]
    )


def check(target: Target, service: str) -> None:
    with channel(target) as opened:
        stub = health_pb2_grpc.HealthStub(opened)
        assert stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=20).status == SERVING


def give_up(target: Target) -> None:
    """A probe whose time is over before it is answered."""
    with channel(target) as opened:
        call = health_pb2_grpc.HealthStub(opened).Check.future(health_pb2.HealthCheckRequest(), timeout=20)
        call.cancel()


def look(target: Target) -> None:
    """Kubernetes: is the port open? A load balancer: does it speak HTTP?"""
    http2.connected(target.port).close()
    with (
        contextlib.suppress(OSError),
        http2.connected(target.port, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n") as link,
    ):
        link.recv(100)


def probes(target: Target) -> None:
    """All of them side by side, without a pause."""

    def work(probe: Callable[[int], None]) -> None:
        for number in range(ROUNDS // 4):
            probe(number)

    kinds: list[Callable[[int], None]] = [
        lambda number: check(target, SERVICE_NAME if number % 2 else ""),
        lambda number: give_up(target),
        lambda number: look(target),
    ]
    side_by_side([functools.partial(work, kind) for kind in kinds])


def test_probes_of_all_kinds(siege: Siege) -> None:
    siege.endure(Attack("probes", probes)).check()


class Reflection:
    """What grpcurl does: one stream, question after question."""

    def __init__(self, opened: grpc.Channel) -> None:
        self._stub = reflection_pb2_grpc.ServerReflectionStub(opened)

    def ask(self, **question: Any) -> Any:
        (answer,) = self._stub.ServerReflectionInfo(
            iter((reflection_pb2.ServerReflectionRequest(**question),)), timeout=20
        )
        return answer

    def files(self, **question: Any) -> list[descriptor_pb2.FileDescriptorProto]:
        answer = self.ask(**question)
        return [
            descriptor_pb2.FileDescriptorProto.FromString(one)
            for one in answer.file_descriptor_response.file_descriptor_proto
        ]


@pytest.fixture
def reflection(siege: Siege) -> Iterator[Reflection]:
    with channel(Target(siege.broker.address)) as opened:
        yield Reflection(opened)


def test_every_service_can_be_described(reflection: Reflection) -> None:
    listed = [service.name for service in reflection.ask(list_services="").list_services_response.service]
    assert {SERVICE_NAME, "grpc.health.v1.Health"} <= set(listed)
    for service in listed:
        pool, todo = descriptor_pool.DescriptorPool(), reflection.files(file_containing_symbol=service)
        known: dict[str, descriptor_pb2.FileDescriptorProto] = {}
        while todo:
            file = todo.pop()
            if file.name not in known:
                known[file.name] = file
                for name in file.dependency:
                    todo += reflection.files(file_by_filename=name)
        waiting = dict(known)
        while waiting:
            ready = [file for file in waiting.values() if not set(file.dependency) & set(waiting)]
            assert ready, list(waiting)
            for file in ready:
                pool.Add(waiting.pop(file.name))
        described = pool.FindServiceByName(service)
        if service == SERVICE_NAME:
            assert {method.name for method in described.methods} == set(METHODS)


@pytest.mark.parametrize(
    "question",
    [
        {"file_containing_symbol": "no.such.Thing"},
        {"file_by_filename": "no_such.proto"},
        {"file_containing_extension": {"containing_type": "mq.v1.StatsRequest", "extension_number": 7}},
        {"all_extension_numbers_of_type": "no.such.Thing"},
    ],
    ids=str,
)
def test_what_is_not_there_is_said_so(reflection: Reflection, question: dict[str, Any]) -> None:
    answer = reflection.ask(**question)
    assert answer.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0], answer


def test_the_newer_reflection_is_refused_so_that_tools_fall_back(siege: Siege) -> None:
    with channel(Target(siege.broker.address)) as opened:
        reflect: Any = opened.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
        call = reflect(iter((b"",)), timeout=20)
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_descriptions_of_everything_again_and_again(siege: Siege) -> None:
    def describe(target: Target) -> None:
        with channel(target) as opened:
            reflection = Reflection(opened)
            for _ in range(ROUNDS):
                assert reflection.files(file_containing_symbol=SERVICE_NAME)

    siege.endure(Attack("descriptions", describe)).check()
