"""A crew at work on one broker that things happen to, from its start to the judgement."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from mq_broker import LocalBroker
from mq_wire.errors import BrokerUnavailable
from pyspark_mq import Consumer
from spark_tests.oracle.judge import Report, check
from spark_tests.support.crew.actor import PATIENCE_S, Actor, World
from spark_tests.support.crew.members import QUEUES, clients, finish
from spark_tests.support.waiting import wait_until


def eventful_settings(rng: random.Random) -> dict[str, Any]:
    """Settings of a broker with small segments and frequent snapshots, so that both change under load many
    times.
    """
    return {
        "segment_bytes": 32 << 20,
        "snapshot_bytes": rng.choice([1 << 20, 4 << 20]),
        "snapshot_interval_s": rng.choice([1, 300]),
        "default_partitions": rng.choice([1, 3, 4]),
        "run_grace_s": 30,
    }


class Load:
    """One client of every kind on three queues.

    Args:
        world: what they share.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self._senders, self._receivers = clients(world)

    @property
    def actors(self) -> list[Actor]:
        return self._senders + self._receivers

    @property
    def progress(self) -> int:
        return sum(actor.progress for actor in self.actors)

    def start(self) -> None:
        for actor in self.actors:
            actor.start()

    def healthy(self) -> bool:
        """Raises what ended a client; True otherwise."""
        for actor in self.actors:
            actor.check()
        return True

    def wait_for_progress(self, messages: int) -> None:
        """Returns when the clients together have come this much further."""
        target = self.progress + messages
        wait_until(
            lambda: self.healthy() and self.progress >= target, PATIENCE_S, "the clients make no progress"
        )

    def wait_for_everybody(self) -> None:
        """Returns when every client has been confirmed something since now: all have healed."""
        before = [actor.progress for actor in self.actors]
        for actor, progress in zip(self.actors, before, strict=True):
            wait_until(
                lambda a=actor, p=progress: self.healthy() and a.progress > p,  # type: ignore[misc]
                PATIENCE_S,
                f"{actor.name} does not heal",
            )

    def sometimes_wait_for_everybody(self) -> None:
        """Lest the next fault heals what this one has broken: a stuck client is told by its own progress, not
        by that of all together.
        """
        if self.world.rng.random() < _EVERYBODY_SHARE:
            self.wait_for_everybody()

    def finish(self) -> None:
        """Lets everybody come to an end, and takes what is left."""
        finish(self.world, self._senders, self._receivers)


def judge(world: World, broker: LocalBroker, title: str) -> Report:
    """Judges a run that has come to its end, restarts the broker once more, and finds all queues as empty as
    they were left.

    Raises:
        AssertionError: anything is wrong, or nothing happened at all.
    """
    report = check(world.history)
    assert not report.wrong, f"{title}: {report}"
    assert report.ok > 0, title
    broker.kill()
    broker.start()
    for queue in QUEUES:
        assert world.stats(queue).depth_rows == 0, f"{title}: {queue} has rows again after the last restart"
        with Consumer(broker.address, queue=queue) as consumer:
            assert consumer.receive(timeout=0.2) is None
    return report


def start_and_break_off(broker: LocalBroker, after_s: float, fault: Callable[[], None]) -> None:
    """Lets something happen to a broker while it starts and recovers, then kills it, if it has not ended."""

    def start() -> None:
        with contextlib.suppress(BrokerUnavailable):  # what this is for
            broker.start()

    thread = threading.Thread(target=start)
    thread.start()
    wait_until(lambda: broker.running or not thread.is_alive(), 60)
    linger(after_s)
    fault()
    with contextlib.suppress(BrokerUnavailable):  # the start has noticed a failure of its own
        os.kill(broker.pid, signal.SIGKILL)
    thread.join()
    broker.kill()


def linger(seconds: float) -> None:
    """Lets the clients go on for a moment: what is aimed at is a moment in time, not a condition."""
    until = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= until, seconds + 10)


def shown(settings: Mapping[str, Any]) -> str:
    """Returns settings in one line, for reports."""
    return " ".join(f"{name}={value}" for name, value in settings.items())


#: Of the faults, so many are healed by everybody before the next one.
_EVERYBODY_SHARE: Final = 0.25
#: Moments between a little and a lot of work, in confirmed messages.
STRETCHES: Final = (0, 1, 1000, 20_000)
