"""Each part of queue -> Spark -> queue dies with SIGKILL at each boundary between two steps of a batch: every row crosses exactly once."""

from __future__ import annotations

import pathlib
import sys

import pytest

from spark_tests.spark_crash.pipeline import Pipeline
from spark_tests.spark_crash.steps import STEPS
from spark_tests.spark_crash.strikes import strike_broker, strike_driver, strike_worker, warm_up
from spark_tests.support.seeds import seeded

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


def test_broker_or_worker_killed_at_every_step(tmp_path: pathlib.Path) -> None:
    with Pipeline(tmp_path, seeded("worker killed"), "local[2,4]") as pipeline:
        warm_up(pipeline)
        for step in STEPS:
            strike_broker(pipeline, step)
        assert not pipeline.driver.failures(), "a query outlives its broker"
        for role in ("reader", "writer"):
            for step in STEPS:
                strike_worker(pipeline, role, step)
        assert not pipeline.driver.failures(), "a query outlives its workers, where Spark may try again"
        for step in STEPS:
            strike_worker(pipeline, "planner", step)
        for step in STEPS:
            if step.caller in ("maker", "committer"):
                strike_worker(pipeline, step.caller, step)
        report = pipeline.judge()
        sys.stdout.write(f"{len(pipeline.driver.failures())} failures of the query; {report}\n")


def test_driver_killed_at_every_step(tmp_path: pathlib.Path) -> None:
    with Pipeline(tmp_path, seeded("driver killed")) as pipeline:
        warm_up(pipeline)
        for step in STEPS:
            if step.named:
                strike_driver(pipeline, step)
        sys.stdout.write(f"{pipeline.judge()}\n")
