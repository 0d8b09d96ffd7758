"""Kills one part of the pipeline while a call is held between two steps, and sees that the rows cross all the same."""

from __future__ import annotations

from typing import Final

from spark_tests.spark_crash.pipeline import BATCH_ROWS, Pipeline
from spark_tests.spark_crash.processes import kill
from spark_tests.spark_crash.steps import Step

#: What becomes of the held call of a process that is dead: it never left, arrives now, or when everything is over.
FATES: Final = ("cut", "late", "last")


def warm_up(pipeline: Pipeline) -> None:
    """Lets the query run once undisturbed: all workers are there, and one batch lies behind."""
    pipeline.feed(BATCH_ROWS)
    pipeline.start_driver()
    pipeline.wait_until_crossed("undisturbed")


def strike_broker(pipeline: Pipeline, step: Step) -> None:
    """Kills the broker at a boundary and starts it again."""
    stop = pipeline.stop_at(step)
    pipeline.feed(2 * BATCH_ROWS)
    pipeline.reach(stop, step)
    pipeline.broker.kill()
    stop.cut()
    pipeline.broker.start()
    pipeline.wait_until_crossed(f"broker killed: {step}")


def strike_worker(pipeline: Pipeline, role: str, step: Step) -> None:
    """Kills one Python worker of the query at a boundary; its call may arrive later."""
    fate = pipeline.rng.choice(FATES)
    stop = pipeline.stop_at(step)
    pipeline.feed(2 * BATCH_ROWS)
    pipeline.reach(stop, step)
    pid = pipeline.process(role)
    assert pid is not None, f"no {role} is there: {step}"
    kill(pid)
    if step.caller != role or fate == "late":
        stop.release()
    elif fate == "cut":
        stop.cut()
    pipeline.wait_until_crossed(f"{role} killed: {step}; its call: {fate}")
    stop.release()


def strike_driver(pipeline: Pipeline, step: Step) -> None:
    """Kills the driver with all its processes at a boundary, and starts another one on the checkpoint."""
    fate = pipeline.rng.choice(FATES)
    stop = pipeline.stop_at(step)
    pipeline.feed(2 * BATCH_ROWS)
    pipeline.reach(stop, step)
    pipeline.driver.kill()
    if fate == "cut":
        stop.cut()
    elif fate == "late":
        stop.release()
    pipeline.start_driver()
    pipeline.prepare_driver()
    pipeline.wait_until_crossed(f"driver killed: {step}; its call: {fate}")
    stop.release()
