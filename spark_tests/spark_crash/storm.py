"""Random kills under a continuous producer: any victim, at any step or moment."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Final

from spark_tests.spark_crash.pipeline import BATCH_ROWS, PATIENCE_S, Pipeline
from spark_tests.spark_crash.processes import kill
from spark_tests.spark_crash.steps import COMMIT, STEPS, Step
from spark_tests.spark_crash.strikes import FATES
from spark_tests.support.waiting import wait_until

WORKERS: Final = ("planner", "reader", "writer", "maker", "committer")
#: How often each is chosen: a driver takes seconds to come back.
_VICTIMS: Final = {"broker": 4, **dict.fromkeys(WORKERS, 2), "driver": 2, "paused driver": 1}


class Storm:
    """Kills on a pipeline whose query is at work, round by round. `victims` counts who died."""

    def __init__(self, pipeline: Pipeline, with_drivers: bool = True) -> None:
        self._pipeline, self._rng = pipeline, pipeline.rng
        self._chances = {name: weight for name, weight in _VICTIMS.items() if with_drivers or "driver" not in name}
        self.victims: Counter[str] = Counter()

    def blow(self, rounds: int) -> None:
        """Kills so many times, while rows keep coming; returns when all of them have crossed."""
        producer = _Producer(self._pipeline)
        producer.start()
        try:
            for number in range(rounds):
                producer.check()
                victim = self._rng.choices(list(self._chances), list(self._chances.values()))[0]
                step = self._rng.choice(STEPS) if self._rng.random() < 0.6 else None
                what = f"round {number}: {victim} at {step or 'any moment'}"
                self._strike(victim, step, what)
                self.victims[victim] += 1
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
        elif victim == "driver":
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
        elif "driver" in victim:
            pipeline.start_driver()
        self._wait_for_commits(2, what)
        if stop is not None:
            stop.release()
        if paused is not None:
            paused.resume()
            wait_until(paused.failures, PATIENCE_S, f"{what}: a driver that was replaced goes on")
            paused.kill()

    def _wait_for_commits(self, count: int, what: str) -> None:
        target = self._pipeline.answered(COMMIT) + count
        wait_until(lambda: self._pipeline.driver.check() and self._pipeline.answered(COMMIT) >= target, PATIENCE_S, f"no commits: {what}")

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
