"""Connections: one Hello, errors by their class, healing, and one per process for those who share."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import grpc
import pytest

from mq_broker import LocalBroker
from mq_wire.errors import (
    BrokerUnavailable,
    Busy,
    ClientClosed,
    InvalidName,
    MqError,
    UnknownDestination,
    Unsupported,
)
from mq_wire.limits import PROTOCOL_VERSION
from mq_wire.v1 import admin_pb2
from pyspark_mq import Connection
from spark_tests.support.waiting import wait_until


def describe(name: str, create: bool = False) -> admin_pb2.DescribeDestinationRequest:
    return admin_pb2.DescribeDestinationRequest(name=name, create=create)


def test_hello_says_who_is_there(module_broker: LocalBroker) -> None:
    with Connection(module_broker.address, client="a test") as connection:
        hello = connection.hello()
        assert hello.protocol == PROTOCOL_VERSION
        assert len(connection.cluster_id) == 16
        assert connection.hello() is hello
        assert connection.hello(refresh=True).cluster_id == hello.cluster_id


def test_errors_come_as_their_class_with_the_brokers_words(module_broker: LocalBroker) -> None:
    with Connection(module_broker.address) as connection:
        with pytest.raises(InvalidName, match=r"a\.\.b"):
            connection.call("DescribeDestination", describe("a..b"))
        with pytest.raises(UnknownDestination, match="nowhere"):
            connection.call("DescribeDestination", describe("nowhere"))


def test_nobody_there_is_told_with_address_and_remedy() -> None:
    with (
        Connection("mq://127.0.0.1:9") as connection,
        pytest.raises(BrokerUnavailable, match=r"mq://127\.0\.0\.1:9.*`mq broker`"),
    ):
        connection.call("DescribeDestination", describe("a"), retry_timeout=0)


def test_calls_wait_for_a_broker_that_comes_back(broker: LocalBroker) -> None:
    with Connection(broker.address) as connection:
        connection.call("DescribeDestination", describe("a", create=True))
        broker.kill()
        with pytest.raises(BrokerUnavailable):
            connection.call("DescribeDestination", describe("a"), retry_timeout=None)
        starter = threading.Thread(target=broker.start)
        starter.start()
        assert connection.call("DescribeDestination", describe("a"), retry_timeout=30).name == "a"
        starter.join()


def test_failover_takes_the_next_address(module_broker: LocalBroker) -> None:
    there = module_broker.address.removeprefix("mq://")
    with Connection(f"mq://127.0.0.1:9,{there}") as connection:
        assert connection.call("DescribeDestination", describe("a", create=True)).name == "a"
        assert connection.endpoint == there


def test_a_closed_connection_says_so(module_broker: LocalBroker) -> None:
    connection = Connection(module_broker.address)
    connection.hello()
    connection.close()
    with pytest.raises(ClientClosed):
        connection.call("DescribeDestination", describe("a"))


def test_shared_connections_are_one_per_address_and_survive_pickling(module_broker: LocalBroker) -> None:
    shared = Connection.shared(module_broker.address)
    assert Connection.shared(module_broker.address) is shared
    assert pickle.loads(pickle.dumps(Connection(module_broker.address))) is shared
    shared.close()
    again = Connection.shared(module_broker.address)
    assert again is not shared
    assert again.hello().protocol == PROTOCOL_VERSION
    again.close()


def test_the_error_handler_has_a_thread_of_its_own(module_broker: LocalBroker) -> None:
    told: list[tuple[MqError, str]] = []
    error = Busy("later")
    with Connection(
        module_broker.address, on_error=lambda error: told.append((error, threading.current_thread().name))
    ) as connection:
        assert connection.report(error)
        wait_until(lambda: told)
    assert told == [(error, "mq-errors")]
    with Connection(module_broker.address) as silent:
        assert not silent.report(error)


class Status(grpc.RpcError):
    """What gRPC raises, as far as it is read."""

    def __init__(
        self, code: grpc.StatusCode, details: str, metadata: tuple[tuple[str, str], ...] = ()
    ) -> None:
        super().__init__()
        self._parts = code, details, metadata

    def code(self) -> grpc.StatusCode:
        return self._parts[0]

    def details(self) -> str:
        return self._parts[1]

    def trailing_metadata(self) -> Any:
        return self._parts[2]


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [
        (Status(grpc.StatusCode.ABORTED, "no", (("mq-error-code", "BUSY"),)), Busy, "no"),
        (Status(grpc.StatusCode.ABORTED, "no", (("mq-error-code", "NEW_CODE"),)), MqError, "NEW_CODE"),
        (Status(grpc.StatusCode.UNAVAILABLE, "refused"), BrokerUnavailable, "mq broker"),
        (Status(grpc.StatusCode.CANCELLED, "shutting down"), BrokerUnavailable, "shutting down"),
        (Status(grpc.StatusCode.UNKNOWN, "Stream removed"), BrokerUnavailable, "Stream removed"),
        (Status(grpc.StatusCode.DEADLINE_EXCEEDED, ""), BrokerUnavailable, "in time"),
        (Status(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many"), Busy, "too many"),
        (Status(grpc.StatusCode.UNIMPLEMENTED, "no such method"), Unsupported, "update"),
        (Status(grpc.StatusCode.INTERNAL, "odd"), MqError, "INTERNAL: odd"),
    ],
)
def test_statuses_become_errors(status: Status, error: type[MqError], words: str) -> None:
    got = Connection("mq://127.0.0.1:9").error_of(status, "asking")
    assert isinstance(got, error)
    assert words in str(got)
