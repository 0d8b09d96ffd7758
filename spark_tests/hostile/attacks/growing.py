"""Small lawful requests that each leave something behind for ever, or make the next one dearer."""

from __future__ import annotations

import contextlib
import functools
import uuid
from typing import Final

import grpc

from mq_wire.v1.admin_pb2 import CreateDestinationRequest, DeleteDestinationRequest, HelloRequest
from mq_wire.v1.consume_pb2 import ConsumeRequest
from mq_wire.v1.produce_pb2 import CommitStagedRequest, ListMarkersRequest
from mq_wire.v1.subscribe_pb2 import HoldRunRequest, ListConsumersRequest
from spark_tests.hostile.siege import Attack, Target, side_by_side
from spark_tests.support.wire import Publisher, Wire, batch_of, error_code

#: Unanswered requests of one publish stream.
_WINDOW: Final = 500


def partitions(target: Target) -> None:
    """Queues of 1,024 partitions, a hundred bytes each to create. They are deleted when the attack is over:
    what then stays is too much.
    """
    wire = target.wire()
    for _ in range(target.times(100)):
        name = f"broad.{uuid.uuid4().hex}"
        try:
            wire.call("CreateDestination", CreateDestinationRequest(name=name, partitions=1024))
            target.later(
                functools.partial(wire.call, "DeleteDestination", DeleteDestinationRequest(name=name))
            )
        except grpc.RpcError as error:
            if error_code(error) != "LIMIT_EXCEEDED":
                raise
            return


def strangers(target: Target) -> None:
    """A producer of its own for each row, in each of a thousand partitions: the duplicate audit knows them
    all.
    """
    wire = target.wire()
    wire.call("CreateDestination", CreateDestinationRequest(name="audited", partitions=1024))
    publisher, batch = wire.publisher("audited"), batch_of([b"v"])
    count = target.times(5000)
    for number in range(count):
        publisher.producer_id = f"{number:032x}"
        publisher.put(batch, number % 1024, first_sequence=0)
        if number >= _WINDOW:
            assert not publisher.answer().error.code
    for _ in range(min(count, _WINDOW)):
        assert not publisher.answer().error.code


def single_rows(target: Target) -> None:
    """Batches of one row, one partition, one producer; nobody reads them."""
    wire = target.wire()
    publishers: list[Publisher] = [wire.publisher(f"single.{number}") for number in range(4)]

    def send(publisher: Publisher) -> None:
        batch, count = batch_of([b"v"]), target.times(2500)
        for number in range(count):
            publisher.put(batch)
            if number >= _WINDOW:
                assert not publisher.answer().error.code
        for _ in range(min(count, _WINDOW)):
            assert not publisher.answer().error.code

    side_by_side([functools.partial(send, publisher) for publisher in publishers])


def poison(target: Target) -> None:
    """One row that is taken, counted as seen and given back, again and again: each time it has failed once
    more.
    """
    wire = target.wire()
    publisher = wire.publisher("poisoned")
    assert publisher.send(batch_of([b"poison"])).receipt.rows == 1
    credit = {"rows": 1, "bytes": 1000}
    opened = ConsumeRequest(open={"destination": "poisoned", "credit": credit}).SerializeToString()
    seen = ConsumeRequest(credit=credit).SerializeToString()
    client = target.client()
    for _ in range(target.times(1500)):
        stream = client.call("Consume", opened, end=False)
        client.send(stream, b"\x00" + len(seen).to_bytes(4, "big") + seen)
        client.reset(stream)


def runs(target: Target) -> None:
    """Runs that are held for a moment."""
    client = target.client()
    with contextlib.suppress(ConnectionError):  # gRPC has had enough of it
        for _ in range(target.times(3000)):
            client.reset(client.call("HoldRun", HoldRunRequest().SerializeToString(), end=False))


def remember_markers(target: Target) -> None:
    with Wire(target.address) as wire:
        for _ in range(target.times(2000)):
            wire.call("CommitStaged", CommitStagedRequest(owner=f"app:{uuid.uuid4().hex}", version=1))


def searches(target: Target) -> None:
    """Questions about all markers and all consumers, to which the answer is nothing."""
    client = target.client()
    for _ in range(target.times(300)):
        client.call("ListMarkers", ListMarkersRequest(prefix="nobody").SerializeToString())
        client.call("ListConsumers", ListConsumersRequest().SerializeToString())


def hellos(target: Target) -> None:
    """Greetings with long names, each of which is a line of the log."""
    client = target.client()
    with contextlib.suppress(TimeoutError, ConnectionError):
        for number in range(target.times(3000)):
            client.call(
                "Hello", HelloRequest(client=f"{number} " + "\n\x1b[2Jx" * 60, protocol=1).SerializeToString()
            )


ATTACKS: Final = (
    Attack("broad queues", partitions, lawful=True, left_bytes_max=200 << 20, seconds=1),
    Attack("strangers in every partition", strangers, seconds=2),
    Attack("batches of one row", single_rows, lawful=True, seconds=2),
    Attack("a row that always fails", poison, seconds=2),
    Attack("runs of a moment", runs, seconds=1),
    Attack("searches for nothing", searches, prepare=remember_markers, lawful=True, seconds=1),
    Attack("greetings", hellos, seconds=1),
)
