"""Good traffic of every method against a live broker: what mutations start from, with ids that this broker
really gave.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from typing import Any, Final

import pyarrow as pa

from mq_wire import envelope, framing
from mq_wire.v1 import admin_pb2, consume_pb2, produce_pb2, subscribe_pb2
from spark_tests.hostile.boundary import Boundary
from spark_tests.support.worlds.lists import CLUSTER

#: Method -> what is sent on one call; one message where the method takes one.
Corpus = dict[str, list[tuple[bytes, ...]]]

QUEUE: Final = "orders"
#: Where what was accepted is read: nothing else consumes it.
PRODUCERS: Final = tuple(f"{number:032x}" for number in range(8))


def rows(count: int) -> pa.RecordBatch:
    """A batch with every column that is acted upon."""
    texts = [f"text-{number}" for number in range(count)]
    values: dict[str, list[Any]] = {
        "key": [b"k%d" % number if number % 3 else None for number in range(count)],
        "value": [b"value-%d" % number for number in range(count)],
        "headers": [
            [{"key": "a", "value": b"1"}, {"key": "b", "value": None}] if number % 2 else None
            for number in range(count)
        ],
        "priority": [number % 10 for number in range(count)],
        "message_id": texts,
        "created_at": [1_700_000_000_000_000 + number for number in range(count)],
        **dict.fromkeys(("correlation_id", "reply_to", "type", "trace_context"), texts),
    }
    schema = envelope.schema_of(sum(envelope.BIT[name] for name in values))
    return pa.record_batch([pa.array(values[field.name], field.type) for field in schema], schema=schema)


def publish(batch: pa.RecordBatch, **fields: Any) -> bytes:
    """A PublishRequest of this batch."""
    header = {
        "destination": QUEUE,
        "rows": batch.num_rows,
        "columns": envelope.columns_of(batch.schema),
        **fields,
    }
    return framing.join(
        produce_pb2.PublishHeader(**header).SerializeToString(), memoryview(envelope.encode(batch))
    )


def batches() -> list[pa.RecordBatch]:
    """Small and simple, small and full, wide strings, one row."""
    full = rows(12)
    few = (
        ["value"],
        ["key", "value"],
        ["value", "priority"],
        ["value", "headers"],
        ["value", "message_id", "created_at"],
    )
    return [full, rows(1), *(full.select(list(names)) for names in few)]


class Traffic:
    """Goes through the life of a query, a sink, a producer and a consumer, and writes down every request."""

    def __init__(self, boundary: Boundary) -> None:
        self.boundary = boundary
        self.corpus: Corpus = defaultdict(list)
        self._admin()
        self._produce()
        self._stage()
        self._query()
        self._consume()
        self._operate()

    def call(self, method: str, *requests: Any) -> Any:
        """Calls a method, notes the request, returns the last answer."""
        messages = tuple(r if isinstance(r, bytes) else r.SerializeToString() for r in requests)
        self.corpus[method].append(messages)
        answers = list(self.boundary.feed(method, *messages))
        assert not any(code for code, _, _ in answers), (method, answers)
        return answers[-1][2]

    def _admin(self) -> None:
        self.call("Hello", admin_pb2.HelloRequest(client="fuzz", protocol=1, features=["browse", "runs"]))
        self.call("CreateDestination", admin_pb2.CreateDestinationRequest(name=QUEUE, partitions=2))
        self.call("DescribeDestination", admin_pb2.DescribeDestinationRequest(name=QUEUE, create=True))
        self.call("CreateDestination", admin_pb2.CreateDestinationRequest(name="gone"))
        self.call("DeleteDestination", admin_pb2.DeleteDestinationRequest(name="gone"))
        self.call("ListDestinations", admin_pb2.ListDestinationsRequest(prefix="or"))
        self.call("Stats", admin_pb2.StatsRequest(destination=QUEUE))
        self.call("Stats", admin_pb2.StatsRequest())

    def _produce(self) -> None:
        for producer, batch in zip(PRODUCERS, batches(), strict=False):
            self.call("Send", publish(batch, producer_id=producer))
        opened = self.call("OpenProducer", produce_pb2.OpenProducerRequest(name="billing", destination=QUEUE))
        name = {"producer_id": opened.producer_id, "epoch": opened.epoch}
        self.call("Send", publish(rows(3), request_id=1, cluster_id=CLUSTER, **name))
        skip = produce_pb2.PublishHeader(destination=QUEUE, first_sequence=3, rows=2, skip=True, **name)
        self.call("Send", framing.join(skip.SerializeToString()))
        simple = rows(4).select(["value"])
        self.call(
            "Publish",
            *(
                publish(simple, request_id=n, producer_id=PRODUCERS[7], first_sequence=4 * n)
                for n in range(3)
            ),
        )

    def _stage(self) -> None:
        epoch = self.call("TakeEpoch", produce_pb2.TakeEpochRequest()).epoch
        staged: dict[str, Any] = {"epoch": epoch, "query_id": "q-1", "batch_id": 3, "run_id": "r-1"}
        for number in range(3):
            self.call("Send", publish(rows(5), staged={"token": bytes([number]) * 16, **staged}))
        tokens = [{"token": bytes([number]) * 16, "rows": 5} for number in range(2)]
        commit: dict[str, Any] = {
            "target": QUEUE,
            "owner": "query:q-1",
            "version": 3,
            "run_id": "r-1",
            "rows": 10,
        }
        self.call("CommitStaged", produce_pb2.CommitStagedRequest(tokens=tokens, **commit))
        self.call("CommitStaged", produce_pb2.CommitStagedRequest(tokens=tokens, **commit))
        staged |= {"epoch": self.call("TakeEpoch", produce_pb2.TakeEpochRequest()).epoch, "batch_id": 4}
        for number in range(3, 6):  # open ones, which mutations may commit or discard
            self.call("Send", publish(rows(2), staged={"token": bytes([number]) * 16, **staged}))
        last = {"token": bytes([5]) * 16, "rows": 2}
        self.corpus["CommitStaged"].append(
            (produce_pb2.CommitStagedRequest(tokens=[last], rows=2).SerializeToString(),)
        )
        self.call("DiscardStaged", produce_pb2.DiscardStagedRequest(tokens=[bytes([2]) * 16]))
        self.call("TakeEpoch", produce_pb2.TakeEpochRequest(query_id="q-2", target=QUEUE))
        self.call(
            "Send",
            publish(
                rows(2),
                staged={"token": bytes([6]) * 16, "query_id": "q-2", "epoch": 1 << 40, "target": QUEUE},
            ),
        )
        self.call(
            "CommitStaged", produce_pb2.CommitStagedRequest(owner="app:nightly", version=1, query_id="q-2")
        )
        self.call("ListStaged", produce_pb2.ListStagedRequest(after=bytes([3]) * 16, query_id="q-1"))
        self.call("ListMarkers", produce_pb2.ListMarkersRequest(after_owner="app:nightly", prefix="query:"))
        self.call("ForgetMarker", produce_pb2.ForgetMarkerRequest(owner="app:nightly"))

    def _query(self) -> None:
        run = self.call("HoldRun", subscribe_pb2.HoldRunRequest()).run
        who = subscribe_pb2.ConsumerRef(destination=QUEUE, consumer="spark", run=run)
        plan = self.call(
            "Plan", subscribe_pb2.PlanRequest(who=who, max_rows=20, max_bytes=1 << 20, create=True)
        )
        who.cluster_id, who.destination_id, who.incarnation = (
            plan.cluster_id,
            plan.destination_id,
            plan.incarnation,
        )
        opened = self.call("OpenRange", subscribe_pb2.OpenRangeRequest(who=who, end=plan.end))
        for part in opened.parts:
            fetch = subscribe_pb2.OpenFetch(
                who=who, partition=part.partition, last=part.last, query_id="q-2", batch_id=7, columns=3
            )
            credit = subscribe_pb2.FetchRequest(credit_rows=1000, credit_bytes=1 << 20)
            self.call("Fetch", subscribe_pb2.FetchRequest(open=fetch, credit_rows=1, credit_bytes=1), credit)
        self.call(
            "JoinQuery",
            subscribe_pb2.JoinQueryRequest(who=who, query_id="q-2", batch_id=7, spark_run_id="s-2"),
        )
        self.corpus["AcknowledgeRange"].append(
            (subscribe_pb2.AcknowledgeRangeRequest(who=who, end=plan.end).SerializeToString(),)
        )
        again = subscribe_pb2.PlanRequest(who=who, start=plan.end, max_rows=5, bounded=True, min_rows=1)
        again.available_below.next.update({0: 1000, 1: 1000})
        self.corpus["Plan"].append((again.SerializeToString(),))
        browse = self.call("OpenBrowse", subscribe_pb2.OpenBrowseRequest(destination=QUEUE))
        for part in browse.parts:
            fetch = subscribe_pb2.OpenFetch(
                browse=browse.browse, partition=part.partition, first=1, last=part.last, batch_rows_max=3
            )
            self.call("Fetch", subscribe_pb2.FetchRequest(open=fetch, credit_rows=1000, credit_bytes=1 << 20))

    def _consume(self) -> None:
        self.call("Send", publish(rows(6), producer_id=f"{9:032x}", partition=1, destination="small"))
        opened = consume_pb2.OpenConsumer(
            destination="small", credit={"rows": 4, "bytes": 1 << 20}, batch_rows_max=2, create=True
        )
        ranges = struct.pack("<4q", 0, 1, 2, 3)
        done = consume_pb2.AcknowledgeRows(request_id=1, partitions=[{"partition": 1, "ranges": ranges}])
        more = consume_pb2.ConsumeRequest(credit={"rows": 2, "bytes": 100}, acknowledge=done)
        messages = [
            consume_pb2.ConsumeRequest(open=opened),
            consume_pb2.ConsumeRequest(credit={"rows": 1}),
            more,
        ]
        self.corpus["Consume"].append(tuple(message.SerializeToString() for message in messages))
        list(self.boundary.feed("Consume", *self.corpus["Consume"][0]))

    def _operate(self) -> None:
        self.call("ListConsumers", subscribe_pb2.ListConsumersRequest(destination=QUEUE))
        self.corpus["ReleaseConsumer"].append(
            (subscribe_pb2.ReleaseConsumerRequest(destination=QUEUE, consumer="spark").SerializeToString(),)
        )
