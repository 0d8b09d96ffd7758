"""Two attempts of one task at work at the same time, on two executors: both write, one counts, and the late
one changes nothing.
"""

from __future__ import annotations

import pathlib
import sys
from typing import Final

import pytest

from mq_wire import framing
from mq_wire.v1.produce_pb2 import PublishHeader, PublishResponse
from spark_tests.spark_crash.cluster import Cluster
from spark_tests.spark_crash.gate import Moment
from spark_tests.spark_crash.pipeline import PATIENCE_S, Pipeline
from spark_tests.spark_crash.steps import FETCH, STAGE, STEPS
from spark_tests.spark_crash.strikes import warm_up
from spark_tests.support.seeds import seeded
from spark_tests.support.spark_home import JAVA_OPTIONS
from spark_tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

_CONF: Final = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
}


class Sets:
    """Which staged sets were written to, and what the broker answered last."""

    def __init__(self) -> None:
        self.tokens: set[bytes] = set()
        self.errors: list[str] = []

    def note(self, method: str, moment: Moment, message: bytes, port: int) -> None:
        if method in STAGE and moment == "request":
            self.tokens.add(PublishHeader.FromString(bytes(framing.split(message)[0])).staged.token)
        if method in STAGE and moment == "response":
            error = PublishResponse.FromString(message).error
            self.errors += [error.code] if error.code else []


def test_of_two_attempts_one_counts(tmp_path: pathlib.Path) -> None:
    sets = Sets()
    with (
        Cluster(tmp_path) as cluster,
        Pipeline(tmp_path, seeded("speculation"), cluster.address, conf=_CONF) as pipeline,
    ):
        pipeline.gate.watch(sets.note)
        warm_up(pipeline)
        for step in STEPS:
            if step.moment != "end" and step.methods in (FETCH, STAGE):
                before = len(sets.tokens)
                stop = pipeline.stop_at(step)
                pipeline.feed_one_batch()
                pipeline.reach(stop, step)
                # The held attempt is slow, so Spark starts another one, whose rows count.
                pipeline.wait_until_crossed(f"a second attempt: {step}")
                if step.methods == STAGE:
                    assert len(sets.tokens) == before + 3, "two tasks, and one of them twice"
                if step.methods == STAGE and step.moment == "request":
                    stop.release()
                    wait_until(
                        lambda: "EPOCH_FENCED" in sets.errors, PATIENCE_S, "late rows were not refused"
                    )
                stop.release()
        assert not pipeline.driver.failures()
        sys.stdout.write(f"{pipeline.judge()}\n")
