"""Readers that ask for much, in small pieces, or never read what they asked for."""

from __future__ import annotations

import functools
import random
from typing import Final

from mq_wire.v1.admin_pb2 import CreateDestinationRequest
from mq_wire.v1.consume_pb2 import ConsumeRequest
from mq_wire.v1.subscribe_pb2 import FetchRequest, OpenBrowseRequest
from spark_tests.hostile import http2
from spark_tests.hostile.siege import Attack, Target
from spark_tests.support.waiting import wait_until
from spark_tests.support.wire import Wire, batch_of

#: Rows of one published batch.
_BATCH: Final = 50_000


def fill(target: Target, queue: str, rows: int, *, priorities: int = 1) -> None:
    """Publishes so many small rows into one partition, in a random order of priorities."""
    rng = random.Random(queue)
    with Wire(target.address) as wire:
        wire.call("CreateDestination", CreateDestinationRequest(name=queue, partitions=1))
        publisher = wire.publisher(queue)
        batch = batch_of([b"v"] * _BATCH, priority=[rng.randrange(priorities) for _ in range(_BATCH)])
        for _ in range(-(-rows // _BATCH)):
            answer = publisher.send(batch)
            assert answer.receipt.rows == _BATCH, answer
        publisher.stream.end()


def fill_wide(target: Target, queue: str) -> None:
    """One row of nearly 4 MiB."""
    with Wire(target.address) as wire:
        publisher = wire.publisher(queue)
        assert publisher.send(batch_of([bytes(4_000_000)])).receipt.rows == 1
        publisher.stream.end()


def row_by_row(target: Target, queue: str, *, reads: bool) -> None:
    """Endless credit, and one row in each delivery."""
    credit = {"rows": 1 << 62, "bytes": 1 << 62}
    opened = ConsumeRequest(
        open={"destination": queue, "credit": credit, "batch_rows_max": 1}
    ).SerializeToString()
    client = target.client(window=1 << 20 if reads else 0, reads=reads)
    client.call("Consume", opened, end=False)
    if reads:
        wait_until(lambda: client.received[1] > target.times(500_000), 30)


def browses(target: Target) -> None:
    """A thousand views of one large queue, which nobody ever reads."""
    wire = target.wire()
    for _ in range(target.times(1000)):
        wire.call("OpenBrowse", OpenBrowseRequest(destination="browsed"))


def fetches(target: Target) -> None:
    """Many streams that fetch one wide row and never read it."""
    browse = target.wire().call("OpenBrowse", OpenBrowseRequest(destination="wide"))
    (part,) = browse.parts
    opened = {"browse": browse.browse, "partition": part.partition, "last": part.last}
    words = FetchRequest(open=opened, credit_rows=1 << 40, credit_bytes=1 << 50).SerializeToString()
    for _ in range(target.times(10)):
        client = target.client(window=0, reads=False)
        for _ in range(18):
            client.call("Fetch", words, end=False)


def consumers(target: Target) -> None:
    """Consumers with endless credit that come, read nothing and go, many times."""
    credit = {"rows": 1 << 62, "bytes": 1 << 62}
    opened = ConsumeRequest(open={"destination": "grabbed", "credit": credit}).SerializeToString()
    client = target.client(window=0, reads=False)
    for _ in range(target.times(200)):
        client.reset(client.call("Consume", opened, end=False))


def cut_off(target: Target) -> None:
    """Consumers with endless credit whose connections end in the middle of large deliveries, many times."""
    credit = {"rows": 1 << 62, "bytes": 1 << 62}
    opened = ConsumeRequest(open={"destination": "cut", "credit": credit}).SerializeToString()
    for _ in range(target.times(60)):
        with http2.Client(target.port, window=1 << 20) as client:
            stream = client.call("Consume", opened, end=False)
            wait_until(lambda: client.received[stream] > 1_000_000, 30)  # noqa: B023


ATTACKS: Final = (
    Attack(
        "large deliveries that are cut off",
        cut_off,
        prepare=functools.partial(fill, queue="cut", rows=1_000_000, priorities=10),
        lawful=True,
        seconds=3,
    ),
    Attack(
        "one row a delivery",
        functools.partial(row_by_row, queue="rowwise", reads=True),
        prepare=functools.partial(fill, queue="rowwise", rows=200_000, priorities=10),
        lawful=True,
    ),
    Attack(
        "one row a delivery that nobody reads",
        functools.partial(row_by_row, queue="unread", reads=False),
        prepare=functools.partial(fill, queue="unread", rows=500_000, priorities=10),
        seconds=0.5,
    ),
    Attack(
        "views of a large queue",
        browses,
        prepare=functools.partial(fill, queue="browsed", rows=400_000, priorities=10),
        lawful=True,
    ),
    Attack("fetches that nobody reads", fetches, prepare=functools.partial(fill_wide, queue="wide")),
    Attack(
        "consumers that come and go",
        consumers,
        prepare=functools.partial(fill, queue="grabbed", rows=200_000, priorities=10),
        seconds=0.5,
    ),
)
