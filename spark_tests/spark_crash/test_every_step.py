"""Each part of queue -> Spark -> queue dies with SIGKILL at each boundary between two steps of a batch: every
row crosses exactly once.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Iterator

import pytest

from spark_tests.spark_crash.pipeline import Pipeline
from spark_tests.spark_crash.steps import OPEN, STEPS, Step
from spark_tests.spark_crash.storm import ROUNDS, Storm
from spark_tests.spark_crash.strikes import (
    double_batch,
    failing_tasks,
    late_writer,
    overtake_driver,
    strike_broker,
    strike_driver,
    strike_worker,
    warm_up,
)
from spark_tests.support.seeds import seeded

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def trouble(module_path: pathlib.Path) -> pathlib.Path:
    """Where this file is, tasks fail."""
    return module_path / "trouble"


@pytest.fixture(scope="module")
def pipeline(module_path: pathlib.Path, trouble: pathlib.Path) -> Iterator[Pipeline]:
    """One driver for all tests that leave it alive. Spark tries a task four times."""
    with Pipeline(module_path, seeded("spark crash"), "local[2,4]", trouble=str(trouble)) as started:
        warm_up(started)
        yield started


def steps_of(role: str) -> list[Step]:
    """Every boundary between two of Spark's steps, and those inside of the role's own ones."""
    return [step for step in STEPS if step.named or step.caller == role]


def judged(pipeline: Pipeline) -> None:
    sys.stdout.write(f"{len(pipeline.driver.failures())} failures of the query; {pipeline.judge()}\n")


def test_broker_killed_at_every_step(pipeline: Pipeline) -> None:
    failed = len(pipeline.driver.failures())
    for step in STEPS:
        strike_broker(pipeline, step)
    assert len(pipeline.driver.failures()) == failed, "a query outlives its broker"
    judged(pipeline)


@pytest.mark.parametrize("role", ["reader", "writer"])
def test_task_worker_killed_at_every_step(pipeline: Pipeline, role: str) -> None:
    failed = len(pipeline.driver.failures())
    for step in steps_of(role):
        strike_worker(pipeline, role, step)
    assert len(pipeline.driver.failures()) == failed, (
        "a query outlives its workers, where Spark may try again"
    )
    judged(pipeline)


def test_planner_killed_at_every_step(pipeline: Pipeline) -> None:
    for step in steps_of("planner"):
        failed = len(pipeline.driver.failures())
        strike_worker(pipeline, "planner", step)
        assert len(pipeline.driver.failures()) > failed, f"the query went on without its planner: {step}"
    judged(pipeline)


@pytest.mark.parametrize("step", [step for step in STEPS if step.caller in ("maker", "committer")], ids=str)
def test_driver_side_worker_of_the_sink_killed_at_its_steps(pipeline: Pipeline, step: Step) -> None:
    strike_worker(pipeline, step.caller, step)
    judged(pipeline)


def test_rows_of_an_attempt_that_lost_arrive_after_the_commit(pipeline: Pipeline) -> None:
    late_writer(pipeline)
    judged(pipeline)


def test_tasks_that_fail_on_their_first_attempts(pipeline: Pipeline, trouble: pathlib.Path) -> None:
    failed = len(pipeline.driver.failures())
    places = failing_tasks(pipeline, trouble, 5)
    assert len(pipeline.driver.failures()) == failed, "a query outlives its tasks, where Spark may try again"
    assert sum(places.values()) > 3, places
    judged(pipeline)


def test_a_batch_that_is_there_twice_rings_the_alarm(pipeline: Pipeline) -> None:
    double_batch(pipeline)
    with pytest.raises(AssertionError, match="duplicated: stored at two places: 40"):
        pipeline.judge()
    pipeline.forget()


def test_random_kills_around_one_driver(pipeline: Pipeline) -> None:
    Storm(pipeline, with_drivers=False).blow(5)
    judged(pipeline)


@pytest.mark.timeout(900)
@pytest.mark.crash_spark
def test_driver_killed_or_overtaken_at_every_step(tmp_path: pathlib.Path) -> None:
    """Each of them takes a new driver: at two steps, another one with each seed, or at all of them in `make
    crash-spark`.
    """
    with Pipeline(tmp_path, seeded("driver killed")) as pipeline:
        pipeline.start_driver()
        # The first one dies in batch 0, for which the others' boundaries have nothing that went before.
        named = [step for step in STEPS if step.named]
        first, *others = sorted(named, key=lambda step: step.methods != OPEN)
        for step in (first, *(others if ROUNDS else pipeline.rng.sample(others, 1))):
            strike_driver(pipeline, step)
        overtake_driver(pipeline, pipeline.rng.choice(STEPS))
        judged(pipeline)
