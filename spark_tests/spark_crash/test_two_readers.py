"""Two readers of one queue in one query, beside a query that does it right: refused before a row is lost."""

from __future__ import annotations

import pathlib
import sys
from typing import TYPE_CHECKING

import pytest

from mq_broker import LocalBroker
from spark_tests.spark_crash.books import PARTITIONS
from spark_tests.spark_crash.lifetimes import BATCH_ROWS, Lifetime, Setting
from spark_tests.spark_crash.refusals import names_two_readers
from spark_tests.support.seeds import seeded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def address(module_path: pathlib.Path) -> Iterator[str]:
    with LocalBroker(module_path / "broker", default_partitions=PARTITIONS, segment_bytes=32 << 20) as broker:
        yield broker.address


@pytest.fixture(scope="module")
def neighbour(spark: SparkSession, address: str, module_path: pathlib.Path) -> Iterator[Lifetime]:
    """A query at work all the time, which must notice nothing."""
    life = Lifetime(spark, address, module_path, Setting("queue"), seeded("neighbour"))
    life.books.feed(BATCH_ROWS)
    life.start()
    yield life
    life.stop()
    life.books.judge()


@pytest.mark.parametrize(
    ("readers", "waiting"),
    [("union", True), ("union", False), ("join", True)],
    ids=["union, rows wait", "union, rows come later", "join, rows wait"],
)
def test_two_readers_in_one_query_are_refused(
    spark: SparkSession,
    address: str,
    tmp_path: pathlib.Path,
    neighbour: Lifetime,
    readers: str,
    waiting: bool,
) -> None:
    rng = seeded(f"two readers/{readers}/{waiting}")
    life = Lifetime(spark, address, tmp_path, Setting(rng.choice(["queue", "files"])), rng)
    life.job["readers"] = readers
    if waiting:
        life.books.feed(BATCH_ROWS)  # one reader gets them all
    life.start()
    neighbour.books.feed(BATCH_ROWS)
    error = life.failed() if waiting else life.failed(lambda: life.books.feed(4))
    life.stop()
    life.books.feed(BATCH_ROWS)
    (report,) = life.books.judge_refused()
    assert names_two_readers(error), f"no clear refusal: {error}"
    assert neighbour.crossed() == ""
    sys.stdout.write(f"{life.setting}, {readers}: {report}\n")
