"""Format `mq`: what Spark finds by itself once the package is installed.

Spark loads this module in several short-lived processes of every query, also of queries that never use it, so
it imports little, and each half of the connector only when asked for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_mq.spark.options import SinkOptions


class MqDataSource(DataSource):
    """A durable queue as a Spark source and sink.

        spark.readStream.format("mq").option("broker", "mq://127.0.0.1:7654").option("queue", "orders").load()
        df.writeStream.format("mq").option("queue", "alerts").option("checkpointLocation", path).start()
        spark.read.format("mq").option("queue", "orders").load()                          # browses, consumes
        nothing df.write.format("mq").option("queue", "orders").mode("append").save()              # one
        transaction

    Options: see `SourceOptions`, `BrowseOptions` and `SinkOptions` in `pyspark_mq.spark.options`.
    """

    @classmethod
    def name(cls) -> str:
        """Returns the name of the format."""
        return "mq"

    def schema(self) -> str:
        """Returns the source's columns; a schema given by the user picks some of them.

        Spark calls this at `load()`, so wrong options are refused there; with a schema of the user's it calls
        nothing before the query.
        """
        from pyspark_mq.spark.options import ReadOptions
        from pyspark_mq.spark.schema import source_ddl

        return source_ddl(ReadOptions.parse(self.options).include_headers)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Returns the streaming source; what is wrong with it is raised when the query makes its first
        call.
        """
        _check_spark()
        from mq_wire.errors import MqError
        from pyspark_mq.spark.options import SourceOptions
        from pyspark_mq.spark.source import MqStreamReader, RefusedStreamReader

        try:
            return MqStreamReader(SourceOptions.parse(self.options), schema)
        except MqError as error:
            # Raised here, Spark's own clean-up would fail and print its UnboundLocalError behind the message.
            return RefusedStreamReader(error)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Returns the batch source."""
        _check_spark()
        from pyspark_mq.spark.browse import MqBatchReader
        from pyspark_mq.spark.options import BrowseOptions

        return MqBatchReader(BrowseOptions.parse(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Returns the streaming sink."""
        from pyspark_mq.spark.sink import MqStreamWriter

        options = self._sink_options(schema, "outputMode('append')" if overwrite else "")
        return MqStreamWriter(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Returns the batch sink."""
        from pyspark_mq.spark.sink import MqBatchWriter

        options = self._sink_options(schema, "mode('append')" if overwrite else "")
        return MqBatchWriter(options, schema).reach_broker()

    def _sink_options(self, schema: StructType, remedy: str) -> SinkOptions:
        from mq_wire.errors import Unsupported
        from pyspark_mq.spark.options import SinkOptions
        from pyspark_mq.spark.schema import check_sink_schema

        _check_spark()
        options = SinkOptions.parse(self.options)
        if remedy:
            raise Unsupported(
                f"queue {options.queue}: messages are only ever added to a queue, nothing is overwritten: "
                f"use {remedy}"
            )
        check_sink_schema(schema, options.queue, options.route_by_columns)
        return options


def _check_spark() -> None:
    """Says clearly what an older Spark lacks; never while it imports us, which would hide all other sources
    from it.
    """
    import importlib.util

    if importlib.util.find_spec("pyspark.sql.streaming.datasource") is None:
        from pyspark.version import __version__

        from mq_wire.errors import Unsupported

        raise Unsupported(
            f"format mq needs Spark 4.2 or newer (admission control for Python sources), not "
            f"{__version__}: update pyspark"
        )


#: The name under which Spark looks for it.
DefaultSource = MqDataSource
