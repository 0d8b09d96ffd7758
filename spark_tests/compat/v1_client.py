"""A program written against pyspark-mq 0.1.0, which must go on working against every later broker. Run with
that version's own packages:

    PYTHONPATH=<unzipped wheel>:<this project> python -m spark_tests.compat.v1_client mq://127.0.0.1:7654
    <unzipped wheel>

It says what it has done, one line each; at "restart" it waits for a line on stdin, by when the broker has
been killed and is back. It is frozen with the version: what it calls and expects is never adapted.
"""

from __future__ import annotations

import sys
from typing import Any

import pyarrow as pa

import mq_wire
import pyspark_mq
from mq_wire import errors
from mq_wire.limits import TOKEN_BYTES
from mq_wire.v1 import admin_pb2, produce_pb2, subscribe_pb2
from mq_wire.v1.common_pb2 import Positions
from pyspark_mq import Connection, Consumer, Producer

# Where version 0.1.0 has them: not in the packages of today.
from pyspark_mq.columns import Rows, delivered_schema, envelope_mask  # type: ignore[attr-defined]
from pyspark_mq.options import BrowseOptions  # type: ignore[import-not-found]
from pyspark_mq.reader import Fetch  # type: ignore[import-not-found]
from pyspark_mq.run import Run  # type: ignore[import-not-found]

TIMEOUT_S = 20.0
_COLUMNS = ("value", "offset", "delivery_count")


def say(what: str) -> None:
    sys.stdout.write(what + "\n")
    sys.stdout.flush()


def same(actual: Any, expected: Any, what: str) -> None:
    """Ends the program where something is not as it was, saying what."""
    if actual != expected:
        raise AssertionError(f"{what}: {actual!r} instead of {expected!r}")


def modules(root: str) -> None:
    for module in (pyspark_mq, mq_wire, errors, produce_pb2):
        assert str(module.__file__).startswith(root + "/"), (
            f"{module.__name__} comes from {module.__file__}, not from {root}"
        )


def batch_of(*values: bytes, **columns: Any) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(values, pa.binary()), **columns})


def producers(address: str) -> None:
    with Producer(address, queue="old.produced") as producer:
        receipt = producer.send(b"one", key=b"k", priority=7, headers={"h": b"x"}, partition=1)
        receipt.result(TIMEOUT_S)
        same((receipt.partition, receipt.offset), (1, 0), "receipt of one message")
        producer.send_batch(
            batch_of(b"two", b"three", priority=pa.array([9, 0], pa.int8()), partition=[0, 0])
        ).result(TIMEOUT_S)
        for number in range(500):
            producer.send(b"many %d" % number)
        producer.flush(TIMEOUT_S)
        same(producer.rows_stored, 503, "rows stored")
    older = Producer(address, queue="old.produced", name="old-name")
    older.send(b"named one").result(TIMEOUT_S)
    with Producer(address, queue="old.produced", name="old-name") as newer:
        newer.send(b"named two").result(TIMEOUT_S)
        try:
            older.send(b"from who was replaced").result(TIMEOUT_S)
            raise AssertionError("the older instance of a named producer was not fenced")
        except errors.ProducerFenced:
            pass
    try:
        older.close(1)
    except errors.MqError as error:
        say(f"the fenced producer was closed: {error.code}")


def consumers(address: str) -> None:
    with Consumer(address, queue="old.produced", prefetch=10) as consumer:
        message = consumer.receive(timeout=TIMEOUT_S)
        assert message is not None
        same(
            (message.value, message.priority, message.delivery_count),
            (b"two", 9, 1),
            "the most urgent message",
        )
        consumer.acknowledge(message)
        message = consumer.receive(timeout=TIMEOUT_S)
        assert message is not None
        same((message.value, message.key, dict(message.headers)), (b"one", b"k", {"h": b"x"}), "the next one")
    with Consumer(address, queue="old.produced") as consumer:
        again = consumer.receive(timeout=TIMEOUT_S)
        assert again is not None
        same((again.value, again.delivery_count), (b"one", 2), "a redelivery")
        consumer.acknowledge(again)
        rows = 0
        for batch in consumer.batches(max_rows=100, timeout=TIMEOUT_S):
            rows += batch.num_rows
            consumer.acknowledge(batch)
            if rows == 503:
                break
        same(rows, 503, "rows in batches")
        consumer.flush(TIMEOUT_S)
    with Connection(address) as connection:
        stats = connection.call("Stats", admin_pb2.StatsRequest(destination="old.produced")).destination
    same((stats.depth_rows, stats.enqueued_rows), (0, 505), "what is left")


class Query:
    """A durable consumer by raw calls."""

    def __init__(self, address: str, queue: str, name: str) -> None:
        self.address = address
        self.connection = Connection(address)
        self.who = subscribe_pb2.ConsumerRef(destination=queue, consumer=name)
        self.run = Run(self.connection)

    def plan(self, start: dict[int, int], rows: int) -> dict[int, int]:
        self.who.run = self.run.number()
        planned = self.connection.call(
            "Plan", subscribe_pb2.PlanRequest(who=self.who, start=Positions(next=start), max_rows=rows)
        )
        assert not planned.idle
        self.who.cluster_id, self.who.destination_id = planned.cluster_id, planned.destination_id
        self.who.incarnation = planned.incarnation
        return dict(planned.end.next)

    def read(self, start: dict[int, int], end: dict[int, int]) -> list[tuple[bytes, int]]:
        self.who.run = self.run.number()
        request = subscribe_pb2.OpenRangeRequest(
            who=self.who, start=Positions(next=start), end=Positions(next=end)
        )
        options = BrowseOptions(
            broker=self.address, queue=self.who.destination, prefetch_rows=2000, prefetch_bytes=1 << 20
        )
        read: list[tuple[bytes, int]] = []
        for part in self.connection.call("OpenRange", request).parts:
            fetch = Fetch(
                self.connection,
                subscribe_pb2.OpenFetch(
                    who=self.who,
                    partition=part.partition,
                    first=part.first,
                    last=part.last,
                    columns=envelope_mask(_COLUMNS),
                    query_id=f"query of {self.who.incarnation.hex()}",
                    batch_id=int(bool(start)),
                ),
                options,
            )
            fetch.start()
            for header, records in fetch:
                rows = Rows(header, records, self.who.destination).record_batch(delivered_schema(_COLUMNS))
                read += zip(
                    rows.column("value").to_pylist(), rows.column("delivery_count").to_pylist(), strict=True
                )
            fetch.close()
        return read

    def close(self) -> None:
        self.run.close()
        self.connection.close()


def ranges(address: str) -> None:
    values = [b"row %d" % number for number in range(10)]
    with Producer(address, queue="old.ranges") as producer:
        producer.send_batch(batch_of(*values, partition=[0] * 10)).result(TIMEOUT_S)
    query = Query(address, "old.ranges", "old-reader")
    first = query.plan({}, 4)
    same(query.read({}, first), [(value, 1) for value in values[:4]], "the first range")
    again = Query(address, "old.ranges", "old-reader")
    again.who.CopyFrom(query.who)
    same(again.read({}, first), [(value, 2) for value in values[:4]], "the first range of another run")
    try:
        query.plan({}, 4)
        raise AssertionError("the older run was not fenced")
    except errors.RunFenced:
        pass
    second = again.plan(first, 100)
    same(again.read(first, second), [(value, 1) for value in values[4:]], "the second range")
    request = subscribe_pb2.AcknowledgeRangeRequest(who=again.who, end=Positions(next=second))
    same(again.connection.call("AcknowledgeRange", request).rows, 6, "rows that were acknowledged")
    successor = Query(address, "old.ranges", "old-reader")
    with Producer(address, queue="old.ranges") as producer:
        producer.send(b"late", partition=0).result(TIMEOUT_S)
    same(successor.read({}, successor.plan({}, 9)), [(b"late", 1)], "what the successor gets")
    try:
        again.read(first, second)
        raise AssertionError("the older checkpoint was not refused")
    except errors.IncarnationSuperseded:
        pass
    listed = again.connection.call(
        "ListConsumers", subscribe_pb2.ListConsumersRequest(destination="old.ranges")
    ).consumers
    reads_for = f"query of {successor.who.incarnation.hex()}"
    same(
        [(each.consumer, each.unacknowledged_rows, each.query_id) for each in listed],
        [("old-reader", 1, reads_for)],
        "consumers",
    )
    release = subscribe_pb2.ReleaseConsumerRequest(destination="old.ranges", consumer="old-reader")
    same(again.connection.call("ReleaseConsumer", release).returned_rows, 1, "released rows")
    for each in (query, again, successor):
        each.close()


def staged(address: str) -> None:
    with Connection(address) as connection:
        epoch = connection.call("TakeEpoch", produce_pb2.TakeEpochRequest()).epoch
        token = b"old staged token"
        assert len(token) == TOKEN_BYTES
        which = produce_pb2.StagedSet(
            token=token, epoch=epoch, query_id="old-sink", batch_id=3, run_id="a run"
        )
        with Producer(queue="old.staged", staged=which, connection=connection) as producer:
            producer.send_batch(batch_of(b"a", b"b", b"c"))
        stats = admin_pb2.StatsRequest(destination="old.staged")
        same(connection.call("Stats", stats).destination.ready_rows, 0, "staged rows that can be seen")
        sets = [produce_pb2.StagedToken(token=token, rows=3)]
        commit = produce_pb2.CommitStagedRequest(
            tokens=sets, target="old.staged", owner="query:old-sink", version=3, rows=3
        )
        done = connection.call("CommitStaged", commit)
        same((done.already_committed, done.rows), (False, 3), "a commit")
        done = connection.call("CommitStaged", commit)
        same((done.already_committed, done.rows), (True, 3), "a commit again")
        for change, expected in (
            ({"rows": 4}, errors.BatchMismatch),
            ({"version": 2}, errors.CheckpointTooOld),
        ):
            other = produce_pb2.CommitStagedRequest(
                target="old.staged", owner="query:old-sink", version=3, rows=3
            )
            for field, value in change.items():
                setattr(other, field, value)
            try:
                connection.call("CommitStaged", other)
                raise AssertionError(f"a commit with {change} was taken")
            except expected:
                pass
        same(connection.call("Stats", stats).destination.ready_rows, 3, "committed rows")


def restart(address: str) -> None:
    """The broker is killed and comes back under producer, consumer and run: all of them heal."""
    with (
        Producer(address, queue="old.restart") as producer,
        Consumer(address, queue="old.restart") as consumer,
    ):
        query = Query(address, "old.restart", "")
        number = query.run.number()
        producer.send(b"before", partition=0).result(TIMEOUT_S)
        message = consumer.receive(timeout=TIMEOUT_S)
        assert message is not None
        consumer.acknowledge(message)
        consumer.flush(TIMEOUT_S)
        say("restart")
        sys.stdin.readline()
        producer.send(b"after", partition=0).result(2 * TIMEOUT_S)
        message = consumer.receive(timeout=2 * TIMEOUT_S)
        assert message is not None
        same(message.value, b"after", "what comes behind the restart")
        consumer.acknowledge(message)
        consumer.flush(TIMEOUT_S)
        same(query.run.number(), number, "the run")
        query.close()


def main() -> None:
    address, root = sys.argv[1:]
    modules(root)
    for part in (producers, consumers, ranges, staged, restart):
        part(address)
        say(f"done: {part.__name__}")


if __name__ == "__main__":
    main()
