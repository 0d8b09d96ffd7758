"""One client with as many streams or connections as it gets: others come later, and are served."""

from __future__ import annotations

import pathlib
import re
from typing import Final

import pytest

from mq_wire.v1.consume_pb2 import ConsumeRequest
from spark_tests.hostile import http2
from spark_tests.hostile.siege import Attack, Siege, Target
from spark_tests.hostile.witness import Witness
from spark_tests.support.waiting import wait_until
from spark_tests.support.wire import Wire

pytestmark = pytest.mark.slow

OPEN: Final = ConsumeRequest(
    open={"destination": "idle", "credit": {"rows": 1, "bytes": 1}, "create": True}
).SerializeToString()
MANY: Final = 1000


def two_connections_with_a_thousand_streams(target: Target) -> None:
    streams = []
    for _ in range(2):
        client = target.client()
        streams += [(client, client.call("Consume", OPEN, end=False)) for _ in range(MANY)]
    wait_until(
        lambda: all(client.received[stream] or stream in client.ended for client, stream in streams), 60
    )
    refused = sum(1 for client, stream in streams if stream in client.ended)
    assert 300 < refused < 500, refused
    # Who comes now has no stream yet, and gets one.
    late = Witness(target.address)
    seen = late.wait_for(5)
    late.close()
    assert not [round_["error"] for round_ in seen if round_["error"]]


def test_streams_are_left_for_others(siege: Siege) -> None:
    siege.endure(Attack("two thousand streams", two_connections_with_a_thousand_streams, lawful=True)).check()


def test_an_old_connector_opens_one_stream_for_each_of_900_queues(siege: Siege) -> None:
    with http2.Client(siege.port) as client:
        streams = [client.call("Consume", OPEN, end=False) for _ in range(900)]
        wait_until(lambda: all(client.received[stream] for stream in streams), 60)
        assert not client.ended


def test_idle_connections_give_way(tmp_path: pathlib.Path) -> None:
    siege = Siege(tmp_path / "few", connections_max=200)
    target = Target(siege.broker.address)
    try:
        idle = [target.link(http2.PREFACE + http2.settings()) for _ in range(260)]
        wait_until(lambda: sum(http2.is_closed(link) for link in idle) >= 100, 20)
        with Wire(siege.broker.address) as wire:
            assert wire.stats(siege.witness.queue, wait_for_ready=True).enqueued_rows
        siege.witness.wait_for(5)
        assert re.search(
            r"\d+ idle connections of one host are closed: others need their place", siege.broker.stderr()
        )
    finally:
        target.close()
    siege.end()
