"""Connections that say nothing any more, and slow ones: how soon a client notices, and that it goes on.

With the settings that everybody has, silence is noticed after 30 s without a word and 10 s more; the long
version measures that (MQ_NETWORK_ROUNDS above 6), the short one looks at tenths of it.
"""

from __future__ import annotations

import os
import pathlib
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pytest

from mq_broker import LocalBroker
from mq_wire.errors import SendOutcomeUnknown, SendTimeout
from mq_wire.v1 import admin_pb2
from pyspark_mq import Connection, Consumer, Producer
from pyspark_mq.client import link
from pyspark_mq.client.run import Run
from spark_tests.support.proxy import ANSWERS, REQUESTS, Proxy
from spark_tests.support.waiting import wait_until

pytestmark = [pytest.mark.network, pytest.mark.slow]

_IS_LONG: Final = int(os.environ.get("MQ_NETWORK_ROUNDS", "0")) > 6
#: Short of the keepalive's 30 + 10 s by so much in the short version.
_SHARE: Final = 1 if _IS_LONG else 10
_KEEPALIVE: Final = ("grpc.keepalive_time_ms", "grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms")
#: Within 40 s, says gRPC; then a connection is made anew.
_NOTICED_WITHIN_S: Final = 40 / _SHARE + 5


@pytest.fixture(scope="module")
def broker(module_path: pathlib.Path) -> Iterator[LocalBroker]:
    with LocalBroker(
        module_path / "broker", keepalive_ms=20_000 // _SHARE, keepalive_timeout_ms=1000
    ) as started:
        yield started


@pytest.fixture
def share_of_keepalive(monkeypatch: pytest.MonkeyPatch) -> None:
    options: list[tuple[str, Any]] = [
        (name, value // _SHARE if name in _KEEPALIVE else value) for name, value in link._CHANNEL_OPTIONS
    ]
    monkeypatch.setattr(link, "_CHANNEL_OPTIONS", tuple(options))


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("share_of_keepalive")
@pytest.mark.parametrize("directions", [(ANSWERS,), (REQUESTS, ANSWERS)])
def test_clients_notice_silence_and_go_on(
    broker: LocalBroker, directions: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    """Silence for good on the connections that there are; new ones work."""
    queue = f"silence.{len(directions)}"
    with Proxy(broker.address) as gate, Connection(broker.address) as direct:
        with (
            Producer(gate.address, queue=queue, send_timeout=120) as producer,
            Consumer(gate.address, queue=queue) as consumer,
            Connection(gate.address) as runs,
        ):
            producer.send(b"0").result(30)
            message = consumer.receive(30)
            assert message is not None
            run = Run(runs)
            number = run.number()
            gate.silence_present(*directions)
            began = time.monotonic()
            receipt = producer.send_batch(pa.record_batch({"value": [b"1"]}))
            receipt.result(_NOTICED_WITHIN_S)
            sent_s = time.monotonic() - began
            received = consumer.receive(_NOTICED_WITHIN_S)
            assert received is not None
            received_s = time.monotonic() - began
            wait_until(lambda: run.number() == number and gate.connections >= 3, _NOTICED_WITHIN_S)
            sys.stdout.write(
                f"silence of {directions} noticed: producer {sent_s:.1f} s, consumer {received_s:.1f} s\n"
            )
            run.close()
        wait_until(lambda: _depth(direct, queue) == 2, 30)
        # What the consumer held comes back, once: nothing was acknowledged.


def _depth(direct: Connection, queue: str) -> int:
    return int(direct.call("Stats", admin_pb2.StatsRequest(destination=queue)).destination.depth_rows)


def test_a_sender_is_told_in_time_while_the_connection_is_silent(broker: LocalBroker) -> None:
    """Its patience ends when it says, not when the connection is given up."""
    with Proxy(broker.address) as proxy:
        producer = Producer(proxy.address, queue="silence.patience", send_timeout=1.0, window_bytes=1 << 22)
        producer.send(b"0").result(30)
        proxy.silence(REQUESTS, ANSWERS)
        began = time.monotonic()
        receipts = [producer.send_batch(pa.record_batch({"value": [bytes(1 << 19)]})) for _ in range(6)]
        with pytest.raises(SendOutcomeUnknown, match="may be stored or not"):
            receipts[0].result()
        for receipt in receipts[1:]:
            with pytest.raises(
                (SendOutcomeUnknown, SendTimeout)
            ):  # what the broker gave no window for never left
                receipt.result()
        assert time.monotonic() - began < 3.0
        proxy.heal()
        producer.close(30)


@pytest.mark.skipif(not _IS_LONG, reason="takes half a minute: make network")
@pytest.mark.timeout(120)
def test_a_long_way_is_a_way(module_broker: LocalBroker) -> None:
    """A connection over which an answer takes more than two seconds can be made, and used."""
    with Proxy(module_broker.address) as proxy:
        proxy.slow_down(delay_s=1.2)
        with Producer(proxy.address, queue="silence.slow", connect_timeout=30) as producer:
            producer.send(b"0").result(30)
