"""Addresses: several endpoints, default port, and clear refusals that repeat no secret."""

from __future__ import annotations

from typing import Any

import pytest

from mq_broker import LocalBroker
from mq_wire.errors import BrokerUnavailable, InvalidName, InvalidOption, Unsupported
from mq_wire.v1 import admin_pb2
from pyspark_mq import Connection, Producer
from pyspark_mq.client.address import Address, proxy_of


@pytest.mark.parametrize(
    ("text", "endpoints"),
    [
        ("mq://127.0.0.1:7654", ("127.0.0.1:7654",)),
        ("mq://broker.example", ("broker.example:7654",)),
        ("mq://a:1,b:2", ("a:1", "b:2")),
        ("mq://a, mq://b:2", ("a:7654", "b:2")),
        ("mq://[::1]:9", ("[::1]:9",)),
    ],
)
def test_endpoints(text: str, endpoints: tuple[str, ...]) -> None:
    assert Address.parse(text).endpoints == endpoints


@pytest.mark.parametrize(
    "text",
    [
        "",
        "localhost:7654",
        "http://a:1",
        "mq://",
        "mq://a:x",
        "mq://a:0",
        "mq://a:70000",
        "mq://a/queue",
        "mq://a,,b",
        "mq://a?x=1",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match=r"mq://"):
        Address.parse(text)


def test_user_info_is_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidOption, match="user info") as caught:
        Address.parse("mq://joe:hunter2@a:1")
    assert "hunter2" not in str(caught.value)
    assert "joe" not in str(caught.value)


def test_tls_is_named_as_not_there_yet() -> None:
    with pytest.raises(Unsupported, match=r"mq\+tls"):
        Address.parse("mq+tls://a:1")


@pytest.mark.parametrize(
    ("text", "loopback"),
    [("mq://127.0.0.1", True), ("mq://localhost,[::1]", True), ("mq://a,localhost", False)],
)
def test_loopback(text: str, loopback: bool) -> None:
    assert Address.parse(text).is_loopback is loopback


def test_a_queue_given_as_the_address_is_told() -> None:
    with pytest.raises(
        InvalidName,
        match=r"the queue is missing: write Producer\(queue=...\); 'orders' was given as the address",
    ):
        Producer("orders")
    with pytest.raises(InvalidOption, match="write queue='orders'"):
        Address.parse("orders")


def test_which_proxy_is_in_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("grpc_proxy", "https_proxy", "http_proxy", "no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(variable, raising=False)
    assert proxy_of("broker:7654") is None
    monkeypatch.setenv("http_proxy", "http://user:secret@127.0.0.1:9")
    assert proxy_of("broker:7654") == "http://127.0.0.1:9 (http_proxy)"
    assert proxy_of("127.0.0.1:7654") is proxy_of("localhost:7654") is proxy_of("[::1]:7654") is None
    with (
        Connection("mq://broker.invalid:7654") as connection,
        pytest.raises(BrokerUnavailable, match=r"through the proxy .*no_proxy"),
    ):
        connection.call("Hello", admin_pb2.HelloRequest(), retry_timeout=None)
    monkeypatch.setenv("no_proxy", "example.org, broker")
    assert proxy_of("broker:7654") is None


def test_this_machine_is_never_reached_through_a_proxy(
    module_broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("grpc_proxy", "https_proxy", "http_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with Connection(module_broker.address) as connection:
        assert len(connection.cluster_id) == 16


@pytest.mark.parametrize("value", [float("nan"), -1, -float("inf"), True, "1"])
def test_what_is_no_time_is_refused(module_broker: LocalBroker, value: Any) -> None:
    for option in ("send_timeout", "connect_timeout", "linger_ms"):
        with pytest.raises(InvalidOption, match=option):
            Producer(module_broker.address, queue="times", **{option: value})
    with Producer(module_broker.address, queue="times") as producer:
        receipt = producer.send(b"x")
        for call in (producer.flush, producer.close):
            with pytest.raises(InvalidOption, match="timeout"):
                call(value)
        receipt.result(10)


@pytest.mark.parametrize("value", [1e10, 1e300, float("inf")])
def test_long_times_are_taken(module_broker: LocalBroker, value: float) -> None:
    with Producer(
        module_broker.address, queue="times", send_timeout=value, connect_timeout=value, window_bytes=1000
    ) as producer:
        for _ in range(100):
            producer.send(b"x" * 100)
        producer.send(b"x").result(value)
        producer.flush(value)
    with Connection(module_broker.address) as connection:
        assert connection.call(
            "DescribeDestination",
            admin_pb2.DescribeDestinationRequest(name="times"),
            timeout=value,
            retry_timeout=value,
        )
