"""Bytes that have come and were not handled, and rows that were read and are not taken: bounded for all
together.
"""

from __future__ import annotations

import struct
import threading
from typing import Any, Final

import pytest

from mq_wire import envelope, framing
from mq_wire.limits import RPC_BYTES_MAX
from mq_wire.v1.consume_pb2 import ConsumeRequest
from mq_wire.v1.produce_pb2 import PublishHeader
from mq_wire.v1.subscribe_pb2 import FetchRequest, OpenBrowseRequest
from spark_tests.hostile import http2
from spark_tests.hostile.siege import SCALE, Attack, Siege, Target
from spark_tests.support.wire import batch_of

pytestmark = pytest.mark.slow

#: Ranges of an acknowledgement of 8 MB: each is one offset, and none stands beside another.
RANGES: Final = b"".join(struct.pack("<qq", 2 * number, 2 * number + 1) for number in range(520_000))


def in_threads(count: int, work: Any) -> None:
    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def acknowledgements(target: Target) -> None:
    opened = ConsumeRequest(
        open={"destination": "acked", "credit": {"rows": 1, "bytes": 1}, "create": True}
    ).SerializeToString()
    large = ConsumeRequest(
        acknowledge={"request_id": 1, "partitions": [{"partition": 0, "ranges": RANGES}]}
    ).SerializeToString()

    def one(number: int) -> None:
        client = target.client()
        stream = client.call("Consume", opened, end=False)
        for _ in range(target.times(20)):
            try:
                client.send(stream, http2.message(large), timeout=20)
            except ConnectionError:  # ended by the broker
                stream = client.call("Consume", opened, end=False)

    in_threads(10, one)


def sends(target: Target) -> None:
    """All at once, on ten connections: each is whole but for its last byte, which then comes."""
    records = envelope.encode(batch_of([bytes(4_100_000)]))

    def one(number: int) -> None:
        client = target.client()
        streams = []
        for at in range(target.times(25)):
            header = PublishHeader(
                destination="sent",
                producer_id=f"{number:016x}{at:016x}",
                request_id=1,
                rows=1,
                columns=envelope.VALUE,
            )
            message = http2.message(framing.join(header.SerializeToString(), memoryview(records)))
            streams.append((client.call("Send"), message))
        for stream, message in streams:
            try:
                client.send(stream, message, end=True, timeout=20)
            except ConnectionError:
                continue

    in_threads(10, one)


def calls_that_lack_their_last_byte(target: Target) -> None:
    body = http2.message(bytes(RPC_BYTES_MAX - 100))[:-1]

    def one(number: int) -> None:
        client = target.client()
        for name in ("Send", "Hello", "Publish", "Consume") * target.times(3):
            stream = client.call(name)
            try:
                client.send(stream, body, timeout=20)
            except (ConnectionError, TimeoutError):
                continue

    in_threads(10, one)


def a_large_row(target: Target) -> None:
    publisher = target.wire().publisher("large")
    assert publisher.send(batch_of([bytes(4_100_000)])).receipt.rows == 1


def unread_fetches(target: Target) -> None:
    view = target.wire().call("OpenBrowse", OpenBrowseRequest(destination="large"))
    part = next(part for part in view.parts if part.first < part.last)
    opened = {"browse": view.browse, "partition": part.partition, "first": part.first, "last": part.last}
    fetch = FetchRequest(open=opened, credit_rows=1, credit_bytes=1 << 30).SerializeToString()
    for _ in range(4):
        client = target.client(window=0, reads=False)
        for _ in range(target.times(50)):
            client.call("Fetch", fetch, end=False)


@pytest.mark.skipif(SCALE <= 1, reason="larger than what test_attacks does of the same kind: make fuzz")
@pytest.mark.parametrize(
    "attack",
    [
        # Ten of 8 MB at a time, each of them several times: as parts, as a message, parsed, and as arrays.
        Attack("acknowledgements of 8 MB", acknowledgements, lawful=True, peak_bytes_max=900 << 20),
        Attack("sends at the limit", sends, lawful=True),
        Attack("calls that lack their last byte", calls_that_lack_their_last_byte),
        Attack("unread fetches of one row", unread_fetches, prepare=a_large_row),
    ],
    ids=lambda attack: attack.name,
)
def test_what_is_not_handled_is_bounded(siege: Siege, attack: Attack) -> None:
    report = siege.endure(attack)
    report.check()
