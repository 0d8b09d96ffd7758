"""How a connection begins, and what any gRPC tool finds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from mq_wire.limits import RECORDS_BYTES_MAX, RECORDS_ROWS_MAX
from mq_wire.service import SERVICE_NAME
from mq_wire.v1.admin_pb2 import DescribeDestinationRequest, HelloRequest, StatsRequest
from spark_tests.support.wire import Wire, error_code

if TYPE_CHECKING:
    from mq_broker import LocalBroker


def test_hello_tells_identity_and_limits(wire: Wire) -> None:
    hello = wire.call("Hello", HelloRequest(client="test", protocol=1, features=["unheard-of"]))
    assert len(hello.cluster_id) == 16
    assert hello.protocol == 1
    assert (hello.limits.records_bytes_max, hello.limits.records_rows_max) == (
        RECORDS_BYTES_MAX,
        RECORDS_ROWS_MAX,
    )


def test_identity_survives_a_restart(broker: LocalBroker) -> None:
    with Wire(broker.address) as wire:
        before = wire.call("Hello", HelloRequest(protocol=1)).cluster_id
    broker.stop()
    broker.start()
    with Wire(broker.address) as wire:
        assert wire.call("Hello", HelloRequest(protocol=1)).cluster_id == before


def test_a_client_of_the_future_gets_our_version(wire: Wire) -> None:
    assert wire.call("Hello", HelloRequest(protocol=7)).protocol == 1


def test_a_client_without_version_is_refused(wire: Wire) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        wire.call("Hello", HelloRequest())
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert error_code(caught.value) == "UNSUPPORTED"


def test_errors_carry_status_code_and_remedy(wire: Wire) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        wire.call("DescribeDestination", DescribeDestinationRequest(name="nobody.made.this"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert error_code(caught.value) == "UNKNOWN_DESTINATION"
    assert "nobody.made.this" in (caught.value.details() or "")


def test_an_error_longer_than_trailers_may_be_still_arrives(wire: Wire) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        wire.call("DescribeDestination", DescribeDestinationRequest(name="\u20ac" * 100_000))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error_code(caught.value) == "INVALID_NAME"


def test_stats_of_the_process(wire: Wire) -> None:
    broker = wire.call("Stats", StatsRequest()).broker
    assert broker.uptime_ms > 0
    assert broker.rss_anon_bytes > 1 << 20


def test_health(wire: Wire) -> None:
    health = health_pb2_grpc.HealthStub(wire.channel)
    for service in ("", SERVICE_NAME):
        reply = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
        assert reply.status == health_pb2.HealthCheckResponse.SERVING


def test_reflection_finds_the_service_and_its_types(wire: Wire) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(wire.channel)
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE_NAME),
    ]
    listing, file = stub.ServerReflectionInfo(iter(requests), timeout=10)
    names = {service.name for service in listing.list_services_response.service}
    assert {SERVICE_NAME, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"} <= names
    assert file.file_descriptor_response.file_descriptor_proto
