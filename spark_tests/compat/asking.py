"""Questions to a running broker, over its public API, and its answers as plain JSON: what a broker of any
version must say of a directory.

Questions are data. They are asked in their order, since some change what comes after; the same ones were
asked when the directory was made.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

import grpc
from google.protobuf import json_format, message_factory

from mq_wire import envelope, framing
from mq_wire.service import METHODS
from mq_wire.v1 import admin_pb2, subscribe_pb2
from mq_wire.v1.common_pb2 import Positions
from mq_wire.v1.produce_pb2 import PublishHeader
from pyspark_mq.client.connection import Connection
from pyspark_mq.client.run import Run
from spark_tests.support.wire import Wire, batch_of, error_code, fetched, open_fetch

Json = dict[str, Any]

_FIGURES: Final = (
    "partitions",
    "depth_rows",
    "ready_rows",
    "assigned_rows",
    "duplicate_rows",
    "enqueued_rows",
    "dead_letters",
    "staged_rows",
    "consumers",
    "quarantined_rows",
)
_CONSUMER: Final = (
    "destination",
    "consumer",
    "unacknowledged_rows",
    "read_rows",
    "query_id",
    "batch_id",
    "failed_attempts",
)
_MANY: Final = 1 << 40
#: Where the time is in a row that is ready.
_TIME: Final = 4


class Asker:
    """One client that asks. Runs that it takes are held until it is closed."""

    def __init__(self, address: str) -> None:
        self.wire = Wire(address)
        self.address = address
        self.connection = Connection(address)
        self.cluster_id: bytes = self.wire.call(
            "Hello", admin_pb2.HelloRequest(client="asking", protocol=1)
        ).cluster_id
        self._runs: list[Run] = []

    def close(self) -> None:
        for run in self._runs:
            run.close()
        self.connection.close()
        self.wire.channel.close()

    def __enter__(self) -> Asker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, questions: list[Json]) -> list[Json]:
        """Returns the answer to each question."""
        return [self.answer(question) for question in questions]

    def answer(self, question: Json) -> Json:
        """Returns one answer; an error is one too."""
        arguments = {name: value for name, value in question.items() if name not in ("ask", "why")}
        method: Callable[..., Json] = getattr(self, question["ask"])
        try:
            return method(**arguments)
        except grpc.RpcError as error:
            return {"error": error_code(error) or str(error.code())}

    # -- looking -------------------------------------------------------------------------------------------

    def overview(self, *, runs: bool = False) -> Json:
        """Everything that can be seen without changing anything: figures, rows that are ready, durable
        consumers.
        """
        listed = self.wire.call("ListDestinations", admin_pb2.ListDestinationsRequest()).destinations
        found = self.wire.call("ListConsumers", subscribe_pb2.ListConsumersRequest()).consumers
        consumers = []
        for each in sorted(
            found, key=lambda consumer: (consumer.destination, consumer.consumer, consumer.incarnation)
        ):
            shown = {name: getattr(each, name) for name in _CONSUMER}
            shown |= {"incarnation": each.incarnation.hex(), "next": positions_json(each.next)} | (
                {"run": each.run} if runs else {}
            )
            consumers.append(shown)
        staged = self.wire.call("Stats", admin_pb2.StatsRequest()).broker.staged_rows
        return {
            "cluster_id": self.cluster_id.hex(),
            "staged_rows": staged,
            "destinations": {
                stats.name: self._destination(stats) for stats in sorted(listed, key=lambda stats: stats.name)
            },
            "consumers": consumers,
        }

    def _destination(self, stats: admin_pb2.DestinationStats) -> Json:
        described = self.wire.call(
            "DescribeDestination", admin_pb2.DescribeDestinationRequest(name=stats.name)
        )
        return {
            "destination_id": stats.destination_id.hex(),
            "end_offsets": [partition.end_offset for partition in described.partitions],
            "figures": {name: getattr(stats, name) for name in _FIGURES},
            "ready_by_priority": list(stats.ready_by_priority),
            "ready": self.browse(stats.name, times=True)["rows"],
        }

    def browse(self, destination: str, *, times: bool = False) -> Json:
        """The rows that are ready, in the order of delivery; without their times, where some are new."""
        opened = self.wire.call("OpenBrowse", subscribe_pb2.OpenBrowseRequest(destination=destination))
        rows = []
        for part in opened.parts:
            fields = {
                "browse": opened.browse,
                "partition": part.partition,
                "first": part.first,
                "last": part.last,
            }
            rows += [row[1:] if times else [*row[1:5], *row[6:]] for row in self._fetch(fields)]
        return {"rows": rows}

    def _fetch(self, fields: Json) -> Iterator[list[Any]]:
        stream = open_fetch(self.wire, _MANY, _MANY, **fields)
        try:
            for message in stream:
                yield from rows_json(*fetched(message))
        finally:
            stream.end()

    # -- working -------------------------------------------------------------------------------------------

    def call(self, method: str, request: Json) -> Json:
        """Any unary call, request and answer as protobuf's JSON."""
        message = json_format.ParseDict(request, message_factory.GetMessageClass(METHODS[method].request)())
        answer = self.wire.call(method, message)
        return json_format.MessageToDict(answer, preserving_proto_field_name=True)

    def send(
        self, *, values: list[str], columns: Json | None = None, staged: Json | None = None, **fields: Any
    ) -> Json:
        """One batch of a producer or of a staged set, or with `skip` none."""
        records: Any = b""
        if not fields.get("skip"):
            batch = batch_of([value.encode() for value in values], **(columns or {}))
            records = envelope.encode(batch)
            fields["columns"] = envelope.columns_of(batch.schema)
        header = PublishHeader(request_id=1, rows=len(values), cluster_id=self.cluster_id, **fields)
        if staged is not None:
            header.staged.token = bytes.fromhex(staged["token"])
            for name in staged.keys() - {"token"}:
                setattr(header.staged, name, staged[name])
        answer = self.wire.call("Send", framing.join(header.SerializeToString(), memoryview(records)))
        if answer.HasField("error"):
            return {"error": answer.error.code}
        receipt = answer.receipt
        told = {
            "partition": receipt.partition,
            "base_offset": receipt.base_offset,
            "rows": receipt.rows,
            "duplicates": receipt.duplicates,
        }
        return told | (
            {"append_time_us": receipt.append_time_us} if receipt.duplicates and staged is None else {}
        )

    def range(
        self, *, who: Json, start: Json, end: Json, query_id: str = "", batch_id: int = 0, run: int = 0
    ) -> Json:
        """What a new run of a durable consumer reads between two boundaries."""
        asker = who_of(who, run or self.new_run())
        request = subscribe_pb2.OpenRangeRequest(who=asker, start=positions_of(start), end=positions_of(end))
        parts = self.wire.call("OpenRange", request).parts
        rows: list[list[Any]] = []
        for part in parts:
            fields = {"who": asker, "partition": part.partition, "first": part.first, "last": part.last}
            rows += self._fetch(fields | {"query_id": query_id, "batch_id": batch_id})
        return {"parts": [[part.partition, part.first, part.last, part.rows] for part in parts], "rows": rows}

    def plan(self, *, who: Json, start: Json, max_rows: int = 0, run: int = 0) -> Json:
        """What a new run of a durable consumer gets next."""
        request = subscribe_pb2.PlanRequest(
            who=who_of(who, run or self.new_run()), start=positions_of(start), max_rows=max_rows
        )
        planned = self.wire.call("Plan", request)
        if planned.idle:
            return {"idle": True}
        # A new incarnation is a random number: only that it is one can be expected.
        same = planned.incarnation.hex() == who.get("incarnation")
        return {"end": positions_json(planned.end), "rows": planned.rows, "same_incarnation": same}

    def new_run(self) -> int:
        """Begins a run; returns its number."""
        run = Run(self.connection)
        self._runs.append(run)
        return run.number()


def who_of(who: Json, run: int) -> subscribe_pb2.ConsumerRef:
    ids = {name: bytes.fromhex(who.get(name, "")) for name in ("cluster_id", "destination_id", "incarnation")}
    return subscribe_pb2.ConsumerRef(
        destination=who["destination"], consumer=who.get("consumer", ""), run=run, **ids
    )


def positions_of(positions: Json) -> Positions:
    return Positions(next={int(partition): number for partition, number in positions.items()})


def positions_json(positions: Positions) -> Json:
    return {
        str(partition): positions.next[partition]
        for partition in sorted(positions.next)
        if positions.next[partition]
    }


def rows_json(header: Any, batch: Any) -> Iterator[list[Any]]:
    """Yields [delivery number, partition, offset, priority, delivery count, time, producer, sequence, value,
    other columns] of each row.
    """
    base = header.base_offset
    offsets = (
        memoryview(header.offsets).cast("q").tolist() if header.offsets else range(base, base + header.rows)
    )
    runs = [run for run, rows in enumerate(header.run_rows) for _ in range(rows)]
    others = [name for name in batch.schema.names if name not in ("value", "priority")]
    for at, (row, offset, run) in enumerate(zip(batch.to_pylist(), offsets, runs, strict=True)):
        producer = header.producers[header.producer[run]]
        sequence = offset + header.sequence_shift[run] if producer else 0
        yield [
            header.first_delivery + at,
            header.partition,
            offset,
            header.priority[run],
            header.delivery_count[run],
            header.append_time_us[run],
            producer,
            sequence,
            digest(row["value"]),
            digest({name: row[name] for name in others if row[name] is not None}),
        ]


def timeless(overview: Json) -> Json:
    """An overview without the times of rows, where some of them were made by the questions."""
    shown: Json = copy.deepcopy(overview)
    for destination in shown["destinations"].values():
        for row in destination["ready"]:
            del row[_TIME]
    return shown


def digest(content: Any) -> str:
    """A short name of a value, or of columns; empty where there is nothing."""
    if isinstance(content, dict):
        content = json.dumps(content, sort_keys=True, default=_plain).encode() if content else b""
    return hashlib.sha256(content).hexdigest()[:12] if content else ""


def _plain(value: Any) -> str:
    with suppress(AttributeError):
        return str(value.hex())
    return str(value.isoformat())
