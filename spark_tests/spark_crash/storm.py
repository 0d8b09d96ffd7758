"""Random kills under a continuous producer: any victim, at any step or moment, the last files of the
checkpoint among them.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from typing import Final

from spark_tests.spark_crash.losses import any_loss
from spark_tests.spark_crash.pipeline import BATCH_ROWS, PATIENCE_S, Pipeline
from spark_tests.spark_crash.processes import kill
from spark_tests.spark_crash.refusals import is_by_spark, is_refusal, names_two_readers
from spark_tests.spark_crash.steps import Step
from spark_tests.spark_crash.strikes import FATES
from spark_tests.support.waiting import wait_until

#: How many kills the long forms do; 0 in the short run.
ROUNDS: Final = int(os.environ.get("MQ_SPARK_CRASH_ROUNDS", "0"))
WORKERS: Final = ("planner", "reader", "writer", "maker", "committer")
#: How often each is chosen: a driver takes seconds to come back. With a "checkpoint" its driver dies too, and
#: the last files in it go; "two readers" is a driver that comes back with another query, which reads one
#: queue twice.
_VICTIMS: Final = {
    "broker": 4,
    **dict.fromkeys(WORKERS, 2),
    "driver": 2,
    "paused driver": 1,
    "checkpoint": 3,
    "two readers": 1,
}
_WITH_DRIVERS: Final = ("driver", "paused driver", "checkpoint", "two readers")


class Refused(Exception):
    """The query was refused for good, since its checkpoint lost something, and its sink cannot go on with
    another one.
    """


class Storm:
    """Kills on a pipeline whose query is at work, round by round.

    Attributes:
        victims: who died, how often.
        refusals: how often a checkpoint that had lost something was refused, by whom.
    """

    def __init__(self, pipeline: Pipeline, with_drivers: bool = True) -> None:
        self._pipeline, self._rng = pipeline, pipeline.rng
        self._chances = {
            name: weight for name, weight in _VICTIMS.items() if with_drivers or name not in _WITH_DRIVERS
        }
        self.victims: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()

    def blow(self, rounds: int) -> None:
        """Kills so many times, while rows keep coming; returns when all of them have crossed.

        Raises:
            Refused: the query cannot go on; what it had is to be judged by `Pipeline.judge_refused`.
        """
        producer = _Producer(self._pipeline)
        producer.start()
        try:
            for number in range(rounds):
                producer.check()
                victim = self._rng.choices(list(self._chances), list(self._chances.values()))[0]
                step = self._rng.choice(self._pipeline.steps) if self._rng.random() < 0.6 else None
                what = f"round {number}: {victim} at {step or 'any moment'}"
                self.victims[victim] += 1
                self._strike(victim, step, what)
                self._wait_for_commits(self._rng.choice([0, 1, 3]), what)
        finally:
            producer.finish()
        producer.check()
        self._pipeline.wait_until_crossed("after the storm")

    def _strike(self, victim: str, step: Step | None, what: str) -> None:
        pipeline, fate = self._pipeline, self._rng.choice(FATES)
        stop = pipeline.stop_at(step) if step is not None else None
        if stop is not None and step is not None:
            pipeline.reach(stop, step)
        else:
            self._linger(self._rng.uniform(0, 0.5))
        paused = None
        if victim == "broker":
            pipeline.broker.kill()
            fate = "cut"
        elif victim in ("driver", "checkpoint", "two readers"):
            pipeline.driver.kill()
        elif victim == "paused driver":
            paused = pipeline.driver
            paused.pause()
        else:
            pid = pipeline.process(victim, stop, step)
            if pid is not None:
                kill(pid)
            if step is not None and step.caller != victim:
                fate = "late"
        if stop is not None and fate != "last":
            stop.cut() if fate == "cut" else stop.release()
        if victim == "broker":
            pipeline.broker.start()
        elif victim == "checkpoint":
            self._lose(what)
        elif victim == "two readers":
            self._intrude(what)
        elif "driver" in victim:
            pipeline.start_driver()
        self._wait_for_commits(2, what)
        if stop is not None:
            stop.release()
        if paused is not None:
            paused.resume()
            wait_until(paused.failures, PATIENCE_S, f"{what}: a driver that was replaced goes on")
            paused.kill()

    def _lose(self, what: str) -> None:
        """The power failed before the disk had the last files of the checkpoint. Goes on, or is refused, and
        begins again.
        """
        pipeline, loss = self._pipeline, any_loss(self._rng)
        loss.strike(pipeline.checkpoint)
        driver, target = pipeline.start_driver(), pipeline.batches_begun() + 3

        def decided() -> bool:
            return driver.check() and (pipeline.batches_begun() >= target or len(driver.failures()) > 1)

        wait_until(decided, PATIENCE_S, f"{what}, {loss}: neither goes on nor fails")
        errors = [error for error in driver.failures() if is_refusal(error) or is_by_spark(error)]
        if not errors:
            return
        assert all(is_refusal(error) or loss.spark_fails for error in errors), (
            f"{what}, {loss}: no clear refusal: {errors}"
        )
        self.refusals["us" if is_refusal(errors[0]) else "Spark"] += 1
        driver.kill()
        if pipeline.sink != "queue":
            raise Refused(f"{what}, {loss}: {errors[0]}")
        pipeline.begin_again()

    def _intrude(self, what: str) -> None:
        """A query that reads one queue twice runs beside the other one: it is refused, and its rows are where
        they were.
        """
        pipeline = self._pipeline
        books, query = pipeline.intruder(len(pipeline.drivers), self._rng.choice(["union", "join"]))
        if self._rng.random() < 0.5:
            books.feed(BATCH_ROWS)
        driver = pipeline.start_driver(beside=query)
        wait_until(
            lambda: driver.check() and driver.events(), PATIENCE_S, f"{what}: the driver does not start"
        )
        books.feed(BATCH_ROWS)
        error = wait_until(
            lambda: driver.check() and driver.failure_beside(),
            PATIENCE_S,
            f"{what}: two readers are not refused",
        )
        assert names_two_readers(str(error)), f"{what}: no clear refusal: {error}"
        books.judge_refused()

    def _wait_for_commits(self, count: int, what: str) -> None:
        pipeline = self._pipeline
        target = pipeline.batches_begun() + count
        wait_until(
            lambda: pipeline.driver.check() and pipeline.batches_begun() >= target,
            PATIENCE_S,
            f"no commits: {what}",
        )

    def _linger(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        wait_until(lambda: time.monotonic() >= until, seconds + 10)


class _Producer:
    """Keeps a few batches waiting in the source, on a thread of its own."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="producer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        self._ended.set()
        self._thread.join(PATIENCE_S)

    def check(self) -> None:
        if self._error is not None:
            raise AssertionError(f"the producer did not heal: {self._error}") from self._error

    def _run(self) -> None:
        rng = self._pipeline.world.random()
        try:
            while not self._ended.is_set():
                if self._pipeline.waiting_rows() < 4 * BATCH_ROWS:
                    self._pipeline.feed(rng.randint(1, 3 * BATCH_ROWS))
                self._ended.wait(0.05)
        except Exception as error:  # told by `check`, on the thread of the test
            self._error = error
