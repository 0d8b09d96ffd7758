"""A Python source and sink with nothing behind them: the ceiling for any Python data source. What is left is
Spark itself.

It lives in a package of its own name and is registered by the session that uses it; its workers import it
from this tree.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

#: The columns that ours is asked for in the comparison too.
SCHEMA = (
    "key binary, value binary, queue string, partition int, offset long, timestamp timestamp, "
    "priority int, delivery_count int"
)
ARROW_ROWS = 16_384


@dataclass
class Range(InputPartition):
    start: int
    end: int


class NullReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Counts up to `rows`, `rowsPerBatch` at a time, in `tasks` tasks."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.rows = int(options["rows"])
        self.rows_per_batch = int(options["rowsPerBatch"])
        self.tasks = int(options.get("tasks", "4"))
        self.value_bytes = int(options.get("valueBytes", "100"))

    def initialOffset(self) -> dict[str, Any]:
        return {"row": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        """Nothing to fix: the rows are as many as the option says."""

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.rows_per_batch)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        step = self.rows if isinstance(limit, ReadAllAvailable) else self.rows_per_batch
        return {"row": min(self.rows, start["row"] + step)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        first, rows = start["row"], end["row"] - start["row"]
        edges = [first + rows * task // self.tasks for task in range(self.tasks + 1)]
        return [Range(low, high) for low, high in itertools.pairwise(edges) if low < high]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        rows = min(ARROW_ROWS, partition.end - partition.start)
        batch = pa.RecordBatch.from_pydict(
            {
                "key": pa.nulls(rows, pa.binary()),
                "value": pa.array([os.urandom(self.value_bytes)] * rows, pa.binary()),
                "queue": pa.array(["in"] * rows),
                "partition": pa.array([1] * rows, pa.int32()),
                "offset": pa.array(range(rows), pa.int64()),
                "timestamp": pa.array([1_700_000_000_000_000] * rows, pa.timestamp("us", "UTC")),
                "priority": pa.array([4] * rows, pa.int32()),
                "delivery_count": pa.array([1] * rows, pa.int32()),
            }
        )
        for at in range(partition.start, partition.end, rows):
            yield batch.slice(0, min(rows, partition.end - at))


class NullWriter(DataSourceStreamArrowWriter):
    """Takes everything and keeps nothing."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class NullSource(DataSource):
    """Format `null`."""

    @classmethod
    def name(cls) -> str:
        return "null"

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> NullReader:
        return NullReader(self.options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> NullWriter:
        return NullWriter()
