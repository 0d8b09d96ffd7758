"""The streaming source, driver side: plans micro-batches and acknowledges them.

Spark's stream offsets are delivery numbers. What is asked in which order, and what a restart repeats, is told
in ARCHITECTURE.md; the rule that everything here follows: the broker and the checkpoint hold all state, this
object none that matters.
"""

from __future__ import annotations

import logging
import socket
import time
import warnings
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from mq_wire.errors import InvalidOption, MqError
from pyspark_mq.client.boundary import Boundary
from pyspark_mq.spark.offsets import from_json, to_json
from pyspark_mq.spark.options import SourceOptions
from pyspark_mq.spark.reader import RangePartition, read_partition
from pyspark_mq.spark.schema import check_source_schema
from pyspark_mq.spark.tasks import Part, plan_tasks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from mq_wire.v1 import subscribe_pb2
    from pyspark_mq.client.durable_consumer import DurableConsumer

logger: Final = logging.getLogger(__name__)


class MqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a queue as a stream of ranges that can be read again until they are acknowledged.

    Made twice on the driver and pickled to the tasks: nothing happens before the first real call.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_source_schema(schema)
        self._options = options
        self._schema = schema
        self._made: DurableConsumer | None = None
        self._created = False
        self._acknowledged: dict[str, Any] | None = None  # by the last plan
        self._lag: subscribe_pb2.Lag | None = None
        self._available_now = False
        self._last_batch_s: float | None = None  # monotonic

    # -- planning ------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Returns a constant: Spark asks several times, and again on a restart with batch 0 unfinished."""
        return to_json(Boundary())

    def getDefaultReadLimit(self) -> ReadLimit:
        """Returns maxOffsetsPerTrigger."""
        return ReadMaxRows(self._options.max_offsets_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fixes where the query ends: at what is in the queue now. A queue that does not exist has nothing,
        now and for this query.
        """
        self._consumer.stop_at_end()
        self._available_now = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Acknowledges what lies before `start` (Spark has it in its checkpoint) and returns the end of the
        next batch.

        With nothing ready `start` itself comes back: Spark compares offsets as text.
        """
        done = self._read_offsets(start)
        max_rows, max_bytes, min_rows = self._limits(limit)
        create = done.initial and not self._available_now
        if create:
            self._create_queue()
        plan = self._consumer.plan(
            done,
            max_rows=max_rows,
            max_bytes=max_bytes,
            min_rows=min_rows,
            wait_ms=0 if self._available_now else self._options.idle_wait_ms,
            create=create,
        )
        self._lag, self._acknowledged = plan.lag, start
        if plan.data_loss:
            self._warn_of_loss()
        if plan.end is None:
            return start
        self._last_batch_s = time.monotonic()
        return to_json(plan.end)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Returns the lag as of the last plan, for `sources[].latestOffset` in the query's progress."""
        if self._lag is None:
            return None
        lag = self._lag
        return {
            "dead_letters": lag.dead_letters,
            "duplicates": lag.duplicates,
            "lag_bytes": lag.bytes,
            "lag_rows": lag.rows,
            "oldest_age_ms": lag.oldest_age_ms,
        }

    def _limits(self, limit: ReadLimit) -> tuple[int, int, int]:
        """Returns rows at most, bytes at most (0 = no limit) and rows at least."""
        options = self._options
        if isinstance(limit, ReadAllAvailable):  # Trigger.Once: the user asked for everything
            return 0, 0, 0
        max_rows, max_bytes, min_rows = (
            options.max_offsets_per_trigger,
            options.max_bytes_per_trigger,
            options.min_offsets_per_trigger,
        )
        if isinstance(limit, ReadMaxRows):
            max_rows = limit.max_rows
        elif isinstance(limit, ReadMaxBytes):
            max_bytes = limit.max_bytes
        elif isinstance(limit, ReadMinRows):
            min_rows = limit.min_rows
        if not min_rows or self._available_now:
            return max_rows, max_bytes, 0
        # As in Kafka's connector: the first trigger does not wait, and each delay that has gone by starts
        # anew.
        now_s = time.monotonic()
        if self._last_batch_s is None or (now_s - self._last_batch_s) * 1000 >= options.max_trigger_delay:
            self._last_batch_s = now_s
            min_rows = 0
        return max_rows, max_bytes, min_rows

    # -- one batch -----------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Opens the range for this run, which freezes what is delivered, and cuts it into tasks."""
        first, last = self._read_offsets(start), self._read_offsets(end)
        if last.initial:  # Spark runs batch 0 of a new query also where nothing was ready
            return self._probe(self._consumer.who(last))
        opened = self._consumer.open(first, last)
        if opened.data_loss:
            self._warn_of_loss()
        parts = (Part(part.partition, part.first, part.last, part.rows, part.bytes) for part in opened.parts)
        tasks = plan_tasks(parts, self._options.min_partitions, self._options.max_records_per_partition)
        if first.initial and not tasks:
            return self._probe(opened.who)
        host, named = socket.gethostname(), opened.who.SerializeToString()
        return [
            RangePartition(tuple((p.partition, p.first, p.last) for p in task), planned_on=host, who=named)
            for task in tasks
        ]

    def _probe(self, who: subscribe_pb2.ConsumerRef) -> Sequence[InputPartition]:
        """Returns the task of a first batch that reads nothing: it says who reads this queue in the query.

        Tasks with rows say so with each fetch. Two readers of one queue, of whom one got all rows of the
        first batch, would only be found when both get some, and then rows of the batches before are lost to
        one of them.
        """
        if not self._consumer.joins_queries:
            return []
        return [RangePartition((), planned_on=socket.gethostname(), who=who.SerializeToString())]

    def _warn_of_loss(self) -> None:
        warnings.warn(
            f"failOnDataLoss=false: queue {self._options.queue!r} no longer keeps some of the rows that "
            f"the checkpoint asks for: they were "
            "acknowledged, or their bytes on the broker's disk are damaged; the query goes on with what is "
            "kept",
            RuntimeWarning,
            stacklevel=3,
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the rows of one task, on its executor."""
        assert isinstance(partition, RangePartition)
        return read_partition(partition, self._options, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Acknowledges everything before `end`, where the plan that Spark asks for first has not done it."""
        done = self._read_offsets(end)
        if not done.initial and end != self._acknowledged:
            self._consumer.acknowledge(done)

    def stop(self) -> None:
        """Ends the run. Spark does not always call this; the end of the process does the same."""
        if self._made is not None:
            self._made.close()

    # -- the broker ----------------------------------------------------------------------------------------

    @property
    def _consumer(self) -> DurableConsumer:
        from pyspark_mq.client.connection import Connection
        from pyspark_mq.client.durable_consumer import DurableConsumer

        if self._made is None:
            options = self._options
            self._made = DurableConsumer(
                Connection.shared(options.broker),
                options.queue,
                options.consumer,
                accept_data_loss=not options.fail_on_data_loss,
            )
        return self._made

    def _create_queue(self) -> None:
        """Creates the queue where it is missing, and says so: a misspelt name would wait for rows for
        ever.
        """
        if not self._created:
            if self._consumer.create_queue():
                logger.info(
                    "queue %r did not exist: created at %s", self._options.queue, self._options.broker
                )
            self._created = True

    def _read_offsets(self, value: dict[str, Any]) -> Boundary:
        boundary = from_json(value)
        if not boundary.initial:
            for option, given, stored in (
                ("queue", self._options.queue, boundary.destination),
                ("consumer", self._options.consumer, boundary.consumer),
            ):
                if given != stored:
                    raise InvalidOption(
                        f"option {option} is {given!r}, but the checkpoint was made with {stored!r}: give "
                        f"{stored!r}, or start with "
                        "another checkpoint"
                    )
        return boundary


class RefusedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stands for a source with wrong options or schema: its first call fails the query with what is wrong."""

    def __init__(self, error: MqError) -> None:
        self._error = error

    def getDefaultReadLimit(self) -> ReadLimit:
        """Raises the error."""
        raise self._error

    def prepareForTriggerAvailableNow(self) -> None:
        """Raises the error."""
        raise self._error

    def initialOffset(self) -> dict[str, Any]:
        """Raises the error."""
        raise self._error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Raises the error."""
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Raises the error."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raises the error."""
        raise self._error
