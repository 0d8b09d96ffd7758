"""What a read task does: fetch its ranges with bounded credit and hand them to Spark as Arrow batches."""

from __future__ import annotations

import socket
import warnings
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from mq_wire.errors import DataLost, InvalidOption
from pyspark_mq.client.address import Address
from pyspark_mq.spark.options import BrowseOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from mq_wire.v1 import subscribe_pb2

#: Spark takes source batches as they are: small ones cost per batch, huge ones memory.
BATCH_ROWS_MIN: Final = 16_384
BATCH_ROWS_MAX: Final = 65_536
#: Ranges of one task that are on their way at the same time; more than one matters only for small ones.
FETCHES_MAX: Final = 4

#: Task properties in which Spark says what a task works for. Missing inside Spark Connect's foreachBatch.
QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
RUN_ID: Final = "spark.jobGroup.id"


@dataclass(frozen=True)
class RangePartition(InputPartition):
    """What one task reads.

    Attributes:
        parts: (broker partition, first number, number after the last), read one after the other; none where
            the task only tells the broker who reads the queue in this query.
        planned_on: name of the host where the driver runs.
        who: the serialised ConsumerRef; empty when browsing.
        browse: handle of the browse view; empty for a consumer.
    """

    parts: tuple[tuple[int, int, int], ...]
    planned_on: str
    who: bytes = b""
    browse: bytes = b""


@dataclass(frozen=True)
class Work:
    """What Spark says a task works for; also writes inside of foreachBatch have it, those under Spark Connect
    have nothing.
    """

    query_id: str = ""
    batch_id: int = -1
    run_id: str = ""

    @classmethod
    def of_this_task(cls) -> Work:
        """Returns it, as far as Spark tells."""
        context = TaskContext.get()
        if context is None:
            return cls()
        batch_id = context.getLocalProperty(BATCH_ID)
        return cls(
            query_id=context.getLocalProperty(QUERY_ID) or "",
            batch_id=int(batch_id) if batch_id else -1,
            run_id=context.getLocalProperty(RUN_ID) or "",
        )


def read_partition(
    partition: RangePartition, options: BrowseOptions, schema: StructType
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of one task as Arrow batches of exactly `schema`.

    Raises:
        DataLost: rows that are no longer kept; with failOnDataLoss=false they read as nothing, with a
            warning.
        BrokerUnavailable: the broker stayed away for FETCH_RETRY_S.
    """
    check_reachable(options.broker, partition.planned_on)
    if partition.who and not partition.parts:
        _join_query(partition, options)
    wanted = to_arrow_schema(schema, timezone="UTC")
    return _coalesce(_read_parts(partition, options, wanted))


def _join_query(partition: RangePartition, options: BrowseOptions) -> None:
    """Tells the broker who reads the queue in this query where nothing is to be fetched: a second reader is
    refused before it has rows.

    Raises:
        SharedRange: another reader of this query has joined before.
    """
    from mq_wire.v1 import subscribe_pb2
    from pyspark_mq.client.connection import Connection
    from pyspark_mq.client.fetch import FETCH_RETRY_S

    work = Work.of_this_task()
    if not work.query_id:
        return
    request = subscribe_pb2.JoinQueryRequest(
        query_id=work.query_id, batch_id=max(work.batch_id, 0), spark_run_id=work.run_id
    )
    request.who.ParseFromString(partition.who)
    Connection.shared(options.broker).call("JoinQuery", request, retry_timeout=FETCH_RETRY_S)


def check_reachable(broker: str, planned_on: str) -> None:
    """Refuses an address that means another machine here than on the driver.

    Raises:
        InvalidOption: a loopback address, and this task is not on the driver's host.
    """
    host = socket.gethostname()
    if host != planned_on and Address.parse(broker).is_loopback:
        raise InvalidOption(
            f"option broker is {broker!r}, which on this executor's host {host} is not the broker that the "
            f"driver on {planned_on} means: "
            "give a host name that every executor can reach"
        )


def _read_parts(
    partition: RangePartition, options: BrowseOptions, wanted: pa.Schema
) -> Iterator[pa.RecordBatch]:
    from pyspark_mq.client.columns import Rows
    from pyspark_mq.client.connection import Connection
    from pyspark_mq.client.fetch import Fetch

    connection = Connection.shared(options.broker)
    waiting = deque(
        Fetch(connection, request, options.prefetch_rows, options.prefetch_bytes)
        for request in _requests(partition, options, wanted.names)
    )
    running: deque[Fetch] = deque()
    try:
        while waiting or running:
            while waiting and len(running) < FETCHES_MAX:
                running.append(waiting.popleft())
                running[-1].start()
            fetch = running.popleft()
            try:
                for header, records in fetch:
                    yield Rows(header, records, options.queue).record_batch(wanted)
            except DataLost as lost:
                if options.fail_on_data_loss:
                    raise
                warnings.warn(
                    f"failOnDataLoss=false: {lost}; the batch goes on without these rows",
                    RuntimeWarning,
                    stacklevel=2,
                )
            finally:
                fetch.close()
    finally:
        for fetch in running:
            fetch.close()


def _requests(
    partition: RangePartition, options: BrowseOptions, names: list[str]
) -> Iterator[subscribe_pb2.OpenFetch]:
    from mq_wire.v1 import subscribe_pb2
    from pyspark_mq.client.columns import envelope_mask

    work = Work.of_this_task()
    common = subscribe_pb2.OpenFetch(
        browse=partition.browse,
        columns=envelope_mask(names),
        batch_rows_max=BATCH_ROWS_MAX,
        query_id=work.query_id,
        batch_id=max(work.batch_id, 0),
        spark_run_id=work.run_id,
        accept_data_loss=not options.fail_on_data_loss,
    )
    if partition.who:
        common.who.ParseFromString(partition.who)
    for number, first, last in partition.parts:
        request = subscribe_pb2.OpenFetch(partition=number, first=first, last=last)
        request.MergeFrom(common)
        yield request


def _coalesce(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Joins neighbours until they have BATCH_ROWS_MIN rows; large batches pass as they are."""
    pending: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if pending and rows + batch.num_rows > BATCH_ROWS_MAX:
            yield joined(pending)
            pending, rows = [], 0
        pending.append(batch)
        rows += batch.num_rows
        if rows >= BATCH_ROWS_MIN:
            yield joined(pending)
            pending, rows = [], 0
    if pending:
        yield joined(pending)


def joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Returns all rows as one batch; a single one without copying it."""
    if len(batches) == 1:
        return batches[0]
    import pyarrow as pa

    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
