"""Format `troubled`: our source and sink, whose tasks fail at random while a file is there. Spark's workers
import this module.
"""

from __future__ import annotations

import pathlib
import random
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from pyspark_mq.spark.datasource import MqDataSource
from pyspark_mq.spark.reader import BATCH_ID
from pyspark_mq.spark.sink import MqStreamWriter
from pyspark_mq.spark.source import MqStreamReader

#: Spark tries a task four times: the last attempt is left alone.
_FAILING_ATTEMPTS: Final = 3
_PLACES: Final = (
    "reading first",
    "reading last",
    "writing first",
    "writing middle",
    "writing last",
    "written",
)


class TroubledDataSource(MqDataSource):
    """Takes one option more, `trouble`: the path of the file. Its text is the seed, and each failure adds a
    line to `path`.failed.
    """

    def __init__(self, options: dict[str, str]) -> None:
        kept = dict(options)
        self._trouble = Trouble(kept.pop("trouble"))
        super().__init__(kept)

    @classmethod
    def name(cls) -> str:
        return "troubled"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        reader = super().streamReader(schema)
        assert isinstance(reader, MqStreamReader), "the options are right"
        became: DataSourceStreamReader = _became(reader, TroubledReader, self._trouble)
        return became

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        became: DataSourceStreamWriter = _became(
            super().streamWriter(schema, overwrite), TroubledWriter, self._trouble
        )
        return became


class Trouble:
    """Decides for each attempt of each task whether it fails, and where."""

    def __init__(self, path: str) -> None:
        self._path = pathlib.Path(path)

    def strike(self, place: str) -> None:
        """Raises where this attempt is to fail here."""
        task = TaskContext.get()
        assert task is not None
        attempt = task.attemptNumber()
        if attempt < _FAILING_ATTEMPTS and self._path.exists():
            rng = random.Random(
                f"{self._path.read_text()}/{task.getLocalProperty(BATCH_ID)}/{task.partitionId()}/{attempt}"
            )
            if rng.choice([*_PLACES, "", ""]) == place:
                with self._path.with_name(self._path.name + ".failed").open("a") as failed:
                    failed.write(f"{place}\n")
                raise RuntimeError(f"attempt {attempt} fails: {place}")


class TroubledReader(MqStreamReader):
    trouble: Trouble

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        self.trouble.strike("reading first")
        yield from super().read(partition)
        self.trouble.strike("reading last")


class TroubledWriter(MqStreamWriter):
    trouble: Trouble

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        message = super().write(self._rows(iterator))
        self.trouble.strike("written")
        return message

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        self.trouble.strike("writing first")
        for batch in batches:
            yield batch.slice(0, batch.num_rows // 2)
            self.trouble.strike("writing middle")
            yield batch.slice(batch.num_rows // 2)
        self.trouble.strike("writing last")


def _became(instance: Any, kind: type[Any], trouble: Trouble) -> Any:
    instance.__class__, instance.trouble = kind, trouble
    return instance
