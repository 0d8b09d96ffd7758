"""One queue, read twice by one query: each message would go to one of the readers only, so it is refused
before anything is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from mq_wire.v1 import admin_pb2
from pyspark_mq import Connection
from spark_tests.spark.queries import fill, finish, run, stream, values
from spark_tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from mq_broker import LocalBroker

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]

#: All of them go to the reader that plans first.
ROWS = 100


def filtered(load: Callable[[], DataFrame]) -> DataFrame:
    return load().where("priority >= 5").select("value").union(load().where("priority < 5").select("value"))


def joined_with_itself(load: Callable[[], DataFrame]) -> DataFrame:
    rows = load().select("value")
    return rows.alias("a").join(rows.alias("b"), on="value")


def joined_loads(load: Callable[[], DataFrame]) -> DataFrame:
    return load().select("value").join(load().select("value"), on="value")


def ready_rows(address: str, queue: str) -> int:
    return int(
        Connection.shared(address)
        .call("Stats", admin_pb2.StatsRequest(destination=queue))
        .destination.ready_rows
    )


@pytest.mark.parametrize("arrive", ["before", "later"])
@pytest.mark.parametrize("twice", [filtered, joined_with_itself, joined_loads])
def test_two_readers_are_refused_and_nothing_is_lost(
    spark: SparkSession,
    module_broker: LocalBroker,
    queue: str,
    checkpoint: str,
    twice: Callable[[Callable[[], DataFrame]], DataFrame],
    arrive: str,
) -> None:
    address = module_broker.address
    Connection.shared(address).call("CreateDestination", admin_pb2.CreateDestinationRequest(name=queue))
    if arrive == "before":
        fill(address, queue, ROWS)
    rows = twice(lambda: stream(spark, address, queue))
    with pytest.raises(Exception, match="SharedRange"):
        finish(rows.writeStream.format("noop").option("checkpointLocation", checkpoint).start())
    if arrive == "later":
        fill(address, queue, ROWS)
    wait_until(lambda: ready_rows(address, queue) == ROWS, 30, "everything is in the queue")


def test_a_dataframe_united_with_itself_has_one_reader(
    spark: SparkSession, module_broker: LocalBroker, queue: str, checkpoint: str
) -> None:
    fill(module_broker.address, queue, ROWS)
    rows = stream(spark, module_broker.address, queue).select("value")
    found: list[int] = []
    run(rows.union(rows), checkpoint, lambda batch, _: found.extend(values(batch.collect())))
    assert sorted(found) == sorted([*range(ROWS), *range(ROWS)])
