"""Requests at the limit: many at a time, unfinished, and those that are lists."""

from __future__ import annotations

import contextlib
import functools
import uuid
from typing import Final

import numpy as np

from mq_wire import envelope, framing
from mq_wire.limits import RECORDS_BYTES_MAX
from mq_wire.v1.consume_pb2 import ConsumeRequest
from mq_wire.v1.produce_pb2 import CommitStagedRequest, DiscardStagedRequest, PublishHeader
from spark_tests.hostile import http2
from spark_tests.hostile.http2 import Client
from spark_tests.hostile.siege import Attack, Target, side_by_side
from spark_tests.support.wire import batch_of

#: Pairs of int64 in one acknowledgement of nearly 8 MB.
_PAIRS: Final = 500_000


@functools.cache
def large_send() -> bytes:
    """A Send as large as one may be."""
    batch = batch_of([bytes(RECORDS_BYTES_MAX - 4096)])
    header = PublishHeader(
        destination="large", producer_id=uuid.uuid4().hex, rows=1, columns=envelope.columns_of(batch.schema)
    )
    return http2.message(framing.join(header.SerializeToString(), memoryview(envelope.encode(batch))))


def acknowledgement() -> bytes:
    """500,000 single offsets that nobody holds."""
    first = np.arange(_PAIRS, dtype="<i8") * 2
    ranges = np.column_stack([first, first + 1]).tobytes()
    return ConsumeRequest(
        acknowledge={"request_id": 1, "partitions": [{"partition": 0, "ranges": ranges}]}
    ).SerializeToString()


def at_once(tasks: list[functools.partial[None]]) -> None:
    """Does all of them side by side; a connection that the broker closes, or no longer reads, is the end of
    its task only.
    """

    def one(task: functools.partial[None]) -> None:
        with contextlib.suppress(ConnectionError, TimeoutError):
            task()

    side_by_side([functools.partial(one, task) for task in tasks])


def repeat(client: Client, stream: int, body: bytes, count: int) -> None:
    for _ in range(count):
        client.send(stream, body, timeout=3)


def acknowledgements(target: Target) -> None:
    """Acknowledgements of 8 MB on ten streams, as fast as they are taken."""
    opened = ConsumeRequest(open={"destination": "acknowledged", "create": True}).SerializeToString()
    body, tasks = http2.message(acknowledgement()), []
    for _ in range(10):
        client = target.client()
        tasks.append(
            functools.partial(
                repeat, client, client.call("Consume", opened, end=False), body, target.times(8)
            )
        )
    at_once(tasks)


def unfinished(target: Target) -> None:
    """Sends at the limit that lack their last byte."""
    body, tasks = large_send()[:-1], []
    for _ in range(target.times(15)):
        client = target.client()
        tasks += [functools.partial(repeat, client, client.call("Send"), body, 1) for _ in range(10)]
    at_once(tasks)


def sends(target: Target) -> None:
    """Sends at the limit, all at once, by a producer that repeats itself."""

    def send(client: Client) -> None:
        client.send(client.call("Send"), large_send(), end=True, timeout=3)

    clients = [target.client() for _ in range(15)]
    at_once([functools.partial(send, clients[number % 15]) for number in range(target.times(250))])


def tokens(target: Target) -> None:
    """Commits and discards of as many sets as a request may name, none of which is there."""
    names = [number.to_bytes(16, "big") for number in range(33_000)]
    commit = CommitStagedRequest(
        tokens=[{"token": name, "rows": 1} for name in names], rows=len(names)
    ).SerializeToString()
    discard = DiscardStagedRequest(
        tokens=[number.to_bytes(16, "big") for number in range(99_000)]
    ).SerializeToString()
    client = target.client()
    for _ in range(target.times(10)):
        for method, body in (("CommitStaged", commit), ("DiscardStaged", discard)):
            client.call(method, body)


ATTACKS: Final = (
    Attack("large acknowledgements", acknowledgements, seconds=2),
    Attack("sends without their last byte", unfinished, seconds=2),
    Attack("sends at the limit", sends, lawful=True, seconds=2),
    Attack("lists of tokens", tokens, lawful=True),
)
