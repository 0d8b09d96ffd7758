"""A Spark query whose range holds rotten rows: it fails naming them, or reads on without, as failOnDataLoss
says.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from mq_wire.errors import DataLost
from pyspark_mq.spark.options import SourceOptions
from pyspark_mq.spark.source import MqStreamReader
from spark_tests.support.rotten import LOST, WHOLE

if TYPE_CHECKING:
    from mq_broker import LocalBroker
    from spark_tests.support.wire import Wire

SCHEMA = StructType([StructField("value", BinaryType())])


@pytest.fixture(params=[True, False], ids=["fails", "reads on"])
def reader(request: pytest.FixtureRequest, broker: LocalBroker, rotten: Wire) -> Iterator[MqStreamReader]:
    options = {"broker": broker.address, "queue": "q", "failOnDataLoss": str(request.param).lower()}
    made = MqStreamReader(SourceOptions.parse(options), SCHEMA)
    yield made
    made.stop()


def test_a_query_over_rotten_rows(reader: MqStreamReader) -> None:
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    (task,) = reader.partitions(start, end)
    if reader._options.fail_on_data_loss:
        with pytest.raises(DataLost, match=LOST):
            list(reader.read(task))
        with pytest.raises(DataLost, match=LOST):
            reader.partitions(start, end)
        return
    assert [row for batch in reader.read(task) for row in batch.column("value").to_pylist()] == WHOLE
    with pytest.warns(RuntimeWarning, match="damaged"):
        (again,) = reader.partitions(start, end)
    assert [row for batch in reader.read(again) for row in batch.column("value").to_pylist()] == WHOLE
    assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end, (
        "what is done is acknowledged, lost rows too"
    )
