"""A client program that takes hold of something, waits for a word, and goes on: `python -m
spark_tests.faults.holder KIND ADDRESS QUEUE`.

Says `holding` when it has it. At the next line of stdin it goes on, and says how that ended: the name of an
error, or `done`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa

from mq_wire.errors import MqError
from mq_wire.v1 import produce_pb2, subscribe_pb2
from mq_wire.v1.common_pb2 import Positions
from pyspark_mq import Connection, Consumer, Producer
from pyspark_mq.client.run import Run

_PATIENCE_S: Final = 60.0
#: Of the one batch that the writers write.
QUERY, TARGET = "holder", "query:holder"

Holder = Callable[[str, str], Iterator[None]]


def consumer(address: str, queue: str) -> Iterator[None]:
    """Holds ten messages, of which it has looked at three; then acknowledges those."""
    with Consumer(address, queue=queue, prefetch=10) as receiving:
        messages = [receiving.receive(_PATIENCE_S) for _ in range(3)]
        yield
        receiving.acknowledge([message for message in messages if message is not None])
        receiving.flush(_PATIENCE_S)


def producer(address: str, queue: str) -> Iterator[None]:
    """Has sent under a name; then sends on."""
    with Producer(address, queue=queue, name="holder", send_timeout=_PATIENCE_S) as sending:
        sending.send(b"held").result(_PATIENCE_S)
        yield
        sending.send(b"late").result(_PATIENCE_S)


def writer(address: str, queue: str) -> Iterator[None]:
    """Stages rows of a batch; then goes on staging, and commits."""
    with Connection(address) as connection:
        token = b"h" * 16
        epoch = connection.call("TakeEpoch", produce_pb2.TakeEpochRequest()).epoch
        staged = produce_pb2.StagedSet(token=token, epoch=epoch, query_id=QUERY, batch_id=0, run_id="held")
        with Producer(queue=queue, staged=staged, connection=connection, send_timeout=_PATIENCE_S) as sending:
            sending.send_batch(pa.record_batch({"value": [b"held"]})).result(_PATIENCE_S)
            yield
            sending.send_batch(pa.record_batch({"value": [b"late"]})).result(_PATIENCE_S)
        _commit(connection, queue, token, 2)


def driver(address: str, queue: str) -> Iterator[None]:
    """Has staged a whole set; then commits it."""
    with Connection(address) as connection:
        token = b"d" * 16
        epoch = connection.call("TakeEpoch", produce_pb2.TakeEpochRequest()).epoch
        staged = produce_pb2.StagedSet(token=token, epoch=epoch, query_id=QUERY, batch_id=0, run_id="held")
        with Producer(queue=queue, staged=staged, connection=connection, send_timeout=_PATIENCE_S) as sending:
            sending.send_batch(pa.record_batch({"value": [b"held"]})).result(_PATIENCE_S)
        yield
        _commit(connection, queue, token, 1)


def reader(address: str, queue: str) -> Iterator[None]:
    """Has opened a range; then opens it again, as a task that comes late does, and acknowledges it."""
    with Connection(address) as connection:
        run = Run(connection)
        who = subscribe_pb2.ConsumerRef(destination=queue, consumer="holder", run=run.number())
        plan = connection.call(
            "Plan", subscribe_pb2.PlanRequest(who=who, start=Positions(), max_rows=5, max_bytes=1 << 20)
        )
        who.cluster_id, who.destination_id, who.incarnation = (
            plan.cluster_id,
            plan.destination_id,
            plan.incarnation,
        )
        request = subscribe_pb2.OpenRangeRequest(who=who, start=Positions(), end=plan.end)
        connection.call("OpenRange", request)
        yield
        connection.call("OpenRange", request)
        connection.call("AcknowledgeRange", subscribe_pb2.AcknowledgeRangeRequest(who=who, end=plan.end))
        run.close()


def _commit(connection: Connection, queue: str, token: bytes, rows: int) -> Any:
    tokens = [produce_pb2.StagedToken(token=token, rows=rows)]
    request = produce_pb2.CommitStagedRequest(
        tokens=tokens, target=queue, rows=rows, owner=TARGET, version=0, run_id="held"
    )
    return connection.call("CommitStaged", request, retry_timeout=_PATIENCE_S)


KINDS: Final[dict[str, Holder]] = {
    "consumer": consumer, "producer": producer, "writer": writer, "driver": driver, "reader": reader,
}  # fmt: skip


def main(kind: str, address: str, queue: str) -> None:
    outcome = "done"
    try:
        for _ in KINDS[kind](address, queue):
            sys.stdout.write("holding\n")
            sys.stdout.flush()
            sys.stdin.readline()
    except MqError as error:
        outcome = type(error).__name__
    sys.stdout.write(f"{outcome}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
