"""The batch source: looks at what is in a queue without consuming it."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_mq.spark.options import BrowseOptions
from pyspark_mq.spark.reader import RangePartition, read_partition
from pyspark_mq.spark.schema import check_source_schema
from pyspark_mq.spark.tasks import Part, plan_tasks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa


class MqBatchReader(DataSourceReader):
    """Reads what was in the queue when the query was planned; nothing is assigned, counted or
    acknowledged.
    """

    def __init__(self, options: BrowseOptions, schema: StructType) -> None:
        check_source_schema(schema)
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Opens a view of the queue and cuts it into tasks."""
        from mq_wire.v1 import subscribe_pb2
        from pyspark_mq.client.connection import Connection

        request = subscribe_pb2.OpenBrowseRequest(destination=self._options.queue)
        view = Connection.shared(self._options.broker).call("OpenBrowse", request)
        parts = (Part(part.partition, part.first, part.last, part.rows, part.bytes) for part in view.parts)
        tasks = plan_tasks(parts, self._options.min_partitions, self._options.max_records_per_partition) or [
            ()
        ]
        host = socket.gethostname()
        return [
            RangePartition(
                tuple((p.partition, p.first, p.last) for p in task), planned_on=host, browse=view.browse
            )
            for task in tasks
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the rows of one task, on its executor."""
        assert isinstance(partition, RangePartition)
        return read_partition(partition, self._options, self._schema)
