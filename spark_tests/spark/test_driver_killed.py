"""A driver that dies with SIGKILL in mid-query: another one goes on from the checkpoint, exactly once."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from spark_tests.spark.queries import browse, fill, pipe, stream, values
from spark_tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from mq_broker import LocalBroker

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(180)]

DRIVER = """
import sys
from pyspark.sql import SparkSession
from spark_tests.spark.queries import pipe, stream
address, queue, target, checkpoint = sys.argv[1:]
spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
         .config("spark.python.unix.domain.socket.enabled", "true").getOrCreate())
pipe(stream(spark, address, queue, maxOffsetsPerTrigger=200), checkpoint, address, target)
"""


def test_exactly_once_over_a_killed_driver(
    spark: SparkSession, broker: LocalBroker, queue: str, checkpoint: str, tmp_path: pathlib.Path
) -> None:
    rows = 10_000
    fill(broker.address, queue, rows)
    target = f"{queue}-out"
    said = tmp_path / "driver.log"
    with said.open("wb") as log:
        driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER, broker.address, queue, target, checkpoint],
            cwd=pathlib.Path(__file__).parents[2],
            env=os.environ | {"PYTHONPATH": os.pathsep.join([".", os.environ["PYTHONPATH"]])},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        commits = pathlib.Path(checkpoint) / "commits"
        wait_until(lambda: (commits / "3").exists() or driver.poll() is not None, 60, "four batches")
        assert driver.poll() is None, said.read_text()
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    pipe(stream(spark, broker.address, queue), checkpoint, broker.address, target)
    assert sorted(values(browse(spark, broker.address, target).collect())) == list(range(rows))
    assert len(list(commits.iterdir())) > 4, "the second driver went on where the first one was killed"
