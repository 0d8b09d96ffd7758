"""Views and tables of Spark's catalog with the format mq."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException

from pyspark_mq import Producer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from mq_broker import LocalBroker

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]


def test_a_temporary_view_browses_its_queue(
    spark: SparkSession, module_broker: LocalBroker, queue: str
) -> None:
    with Producer(module_broker.address, queue=queue) as producer:
        producer.send(b"first")
    options = f"(broker '{module_broker.address}', queue '{queue}')"
    spark.sql(f"create temporary view mq_view using mq options {options}")
    try:
        for _ in range(2):  # nothing is consumed
            assert spark.sql("select cast(value as string) from mq_view").collect() == [("first",)]
    finally:
        spark.catalog.dropTempView("mq_view")


@pytest.mark.parametrize("columns", ["", "(value binary)"])
def test_a_table_is_refused_with_what_to_do_instead(
    spark: SparkSession, module_broker: LocalBroker, queue: str, columns: str
) -> None:
    """Spark would keep its options to itself."""
    options = f"(broker '{module_broker.address}', queue '{queue}')"
    try:
        # Spark makes a table with given columns without asking: its first use is refused.
        if columns:
            spark.sql(f"create table mq_table {columns} using mq options {options}")
        use = "select * from mq_table" if columns else f"create table mq_table using mq options {options}"
        with pytest.raises(AnalysisException, match="use CREATE TEMPORARY VIEW"):
            spark.sql(use).collect()
    finally:
        spark.sql("drop table if exists mq_table")
