"""Kills one part of the pipeline while a call is held between two steps, and sees that the rows cross all the
same.
"""

from __future__ import annotations

import json
import pathlib
from collections import Counter
from typing import Final

from mq_wire.v1 import produce_pb2
from pyspark_mq.client.connection import Connection
from spark_tests.spark_crash.pipeline import BATCH_ROWS, PATIENCE_S, TARGET, Pipeline
from spark_tests.spark_crash.processes import kill
from spark_tests.spark_crash.steps import STAGE, STEPS, Step
from spark_tests.support.waiting import wait_until

#: What becomes of the held call of a process that is dead: it never left, arrives now, or when everything is
#: over.
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
    pid = pipeline.process(role, stop, step)
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


def overtake_driver(pipeline: Pipeline, step: Step) -> None:
    """Stops the driver with SIGSTOP at a boundary, lets another one do its work, and wakes it up: it must
    fail.
    """
    stop = pipeline.stop_at(step)
    pipeline.feed(2 * BATCH_ROWS)
    pipeline.reach(stop, step)
    old = pipeline.driver
    old.pause()
    pipeline.start_driver()
    pipeline.wait_until_crossed(f"driver stopped: {step}")
    old.resume()
    stop.release()
    wait_until(old.failures, PATIENCE_S, f"a driver that was replaced goes on: {step}")
    old.kill()
    pipeline.feed(BATCH_ROWS)
    pipeline.wait_until_crossed(f"driver replaced: {step}")


def double_batch(pipeline: Pipeline) -> None:
    """Makes the broker forget that it has committed a batch, before Spark knows of it: the batch is there
    twice.
    """
    step = STEPS[-1]
    stop = pipeline.stop_at(step)
    pipeline.feed_one_batch()
    pipeline.reach(stop, step)
    query_id = json.loads((pipeline.checkpoint / "metadata").read_text())["id"]
    with Connection(pipeline.broker.address) as connection:
        connection.call(
            "ForgetMarker", produce_pb2.ForgetMarkerRequest(owner=f"query:{query_id}", target=TARGET)
        )
    pid = pipeline.process(step.caller, stop, step)
    assert pid is not None
    kill(pid)
    stop.cut()
    pipeline.wait_until_crossed("a batch committed twice")


def failing_tasks(pipeline: Pipeline, trouble: pathlib.Path, batches: int) -> Counter[str]:
    """Lets tasks fail at random on their first attempts, and returns how often they failed where."""
    trouble.write_text(str(pipeline.rng.getrandbits(32)))
    pipeline.feed(batches * BATCH_ROWS)
    pipeline.wait_until_crossed("tasks fail")
    trouble.unlink()
    return Counter(trouble.with_name(trouble.name + ".failed").read_text().split())


def late_writer(pipeline: Pipeline) -> None:
    """Lets a dead attempt's rows arrive when the retry's batch, the last one for now, has long been
    committed.
    """
    step = next(step for step in STEPS if step.methods == STAGE and step.moment == "request")
    stop = pipeline.stop_at(step)
    pipeline.feed_one_batch()
    pipeline.reach(stop, step)
    pid = pipeline.process("writer", stop, step)
    assert pid is not None
    kill(pid)
    pipeline.wait_until_crossed("writer killed, its rows under way")
    answers = pipeline.answered(STAGE)
    stop.release()
    wait_until(lambda: pipeline.answered(STAGE) > answers, PATIENCE_S, "the late rows were not answered")
