"""A real broker process, killed with SIGKILL under load again and again: nothing promised is lost, nothing comes twice, all clients heal.

MQ_CRASH_ROUNDS says how often (20); the printed seed repeats the choices, though not the schedule of processes.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import shutil
import signal
import sys
import threading
import time
from typing import Final

import pytest

from mq_broker import LocalBroker
from mq_wire.errors import BrokerUnavailable
from pyspark_mq import Consumer
from spark_tests.crash.actor import PATIENCE_S, Actor, World
from spark_tests.crash.ranges import RangeReader
from spark_tests.crash.receivers import BatchReceiver, MessageReceiver, drain
from spark_tests.crash.senders import BatchSender, HastySender, NamedSender, SingleSender, StagingSender
from spark_tests.oracle.judge import check
from spark_tests.support.seeds import seeded, session_seed
from spark_tests.support.waiting import wait_until

ROUNDS: Final = int(os.environ.get("MQ_CRASH_ROUNDS", "20"))
#: Rounds on one data directory; then everything is drained and judged, and the next episode begins with an empty one.
_EPISODE_ROUNDS: Final = 20
_SHARED, _ALONE, _RANGES = "crash.shared", "crash.alone", "crash.ranges"


class Chaos:
    """Kills a broker and starts it again on the same data."""

    def __init__(self, broker: LocalBroker, actors: list[Actor], rng: random.Random) -> None:
        self._broker, self._actors, self._rng = broker, actors, rng

    def kill_under_load(self) -> None:
        """Kills once the clients have come some way further, wherever that finds the broker."""
        target = self._progress() + self._rng.choice([0, 1, 1000, 20_000])
        wait_until(lambda: self._healthy() and self._progress() >= target, PATIENCE_S, "the clients make no progress")
        self._linger(self._rng.uniform(0, 0.005))
        self._broker.kill()

    def start(self) -> None:
        """Starts it; now and then a first start is killed while it recovers."""
        if self._rng.random() < 0.2:
            self._kill_in_recovery()
        self._broker.start()

    def sometimes_stop_in_order(self) -> None:
        """A clean stop under load leaves another data directory behind than a kill does."""
        if self._rng.random() < 0.1:
            self.wait_for_everybody()
            assert self._broker.stop() == 0, self._broker.stderr()
            self._broker.start()

    def _kill_in_recovery(self) -> None:
        def start() -> None:
            try:
                self._broker.start()
            except BrokerUnavailable:
                return  # what this is for

        thread = threading.Thread(target=start)
        thread.start()
        wait_until(lambda: self._broker.running or not thread.is_alive(), 60)
        # What a start takes differs between machines; most of it is the imports of Python.
        self._linger(self._rng.uniform(0.2, 1.2))
        with contextlib.suppress(BrokerUnavailable):  # the start has noticed a failure of its own
            os.kill(self._broker.pid, signal.SIGKILL)
        thread.join()
        self._broker.kill()

    def _linger(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        wait_until(lambda: time.monotonic() >= until, seconds + 10)

    def _progress(self) -> int:
        return sum(actor.progress for actor in self._actors)

    def _healthy(self) -> bool:
        for actor in self._actors:
            actor.check()
        return True

    def wait_for_everybody(self) -> None:
        """Returns when every client has been confirmed something since now: all have healed."""
        before = [actor.progress for actor in self._actors]
        for actor, progress in zip(self._actors, before, strict=True):
            wait_until(lambda a=actor, p=progress: self._healthy() and a.progress > p, PATIENCE_S, f"{actor.name} does not heal")  # type: ignore[misc]


def _clients(world: World) -> tuple[list[Actor], list[Actor]]:
    """Returns those who send and those who receive."""
    named = bool(world.rng.getrandbits(1))
    senders = [
        BatchSender(world, _SHARED, 1),
        BatchSender(world, _RANGES, 2),
        SingleSender(world, _SHARED, 3),
        StagingSender(world, _ALONE, 4),
        StagingSender(world, _RANGES, 5),
        HastySender(world, _ALONE, 6),
        NamedSender(world, _ALONE, 100),
    ]
    receivers = [
        MessageReceiver(world, _SHARED, 1),
        BatchReceiver(world, _SHARED, 2),
        BatchReceiver(world, _ALONE, 3, alone=True),
        RangeReader(world, _RANGES, 4, named=named),
    ]
    return [*senders], [*receivers]


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.timeout(120 + 10 * _EPISODE_ROUNDS)
@pytest.mark.parametrize("episode", range(-(-ROUNDS // _EPISODE_ROUNDS)))
def test_a_killed_broker_loses_nothing_and_doubles_nothing(episode: int, tmp_path: pathlib.Path) -> None:
    rng = seeded(f"sigkill/{episode}")
    rounds = min(_EPISODE_ROUNDS, ROUNDS - episode * _EPISODE_ROUNDS)
    # Small segments and frequent snapshots, so that both change under load many times.
    settings = {
        "segment_bytes": 32 << 20, "snapshot_bytes": rng.choice([1 << 20, 4 << 20]), "snapshot_interval_s": rng.choice([1, 300]),
        "default_partitions": rng.choice([1, 3, 4]), "run_grace_s": 30,
    }  # fmt: skip
    with LocalBroker(tmp_path / "broker", **settings) as broker:
        world = World(broker.address, rng)
        try:
            _run(world, broker, rounds)
        finally:
            world.stopping.set()
        report = check(world.history)
        sys.stdout.write(f"seed {session_seed()}, episode {episode}, {rounds} kills, {settings}\n{report}\n")
        assert not report.wrong, f"MQ_SEED={session_seed()}, episode {episode}: {report}"
        assert report.ok > 0
        broker.kill()
        broker.start()
        for queue in (_SHARED, _ALONE, _RANGES):
            assert world.stats(queue).depth_rows == 0, f"{queue} has rows again after the last restart"
            with Consumer(broker.address, queue=queue) as consumer:
                assert consumer.receive(timeout=0.2) is None


def test_a_data_directory_from_the_past_rings_the_alarm(tmp_path: pathlib.Path) -> None:
    """What a stale copy costs is found by the same clients and the same oracle that find nothing above."""
    data_dir, past = tmp_path / "broker", tmp_path / "past"
    with LocalBroker(data_dir, segment_bytes=32 << 20) as broker:
        world = World(broker.address, seeded("past"))
        for number in (1, 2):
            sender = SingleSender(world, _SHARED, number)
            for _ in range(5):
                sender.step()
            sender.finish()
            if number == 1:
                broker.kill()
                shutil.copytree(data_dir, past)
                broker.start()
        broker.kill()
        shutil.rmtree(data_dir)
        past.rename(data_dir)
        broker.start()
        drain(world, _SHARED)
    report = check(world.history)
    assert report.wrong.keys() == {"lost"}, str(report)
    assert report.lost == (0, 0, sender.progress)
    assert report.ok == report.acknowledged - sender.progress > 0


def _run(world: World, broker: LocalBroker, rounds: int) -> None:
    senders, receivers = _clients(world)
    chaos = Chaos(broker, senders + receivers, world.random())
    for actor in senders + receivers:
        actor.start()
    for _ in range(rounds):
        chaos.kill_under_load()
        chaos.start()
        chaos.sometimes_stop_in_order()
    chaos.wait_for_everybody()
    _finish(world, senders, receivers)


def _finish(world: World, senders: list[Actor], receivers: list[Actor]) -> None:
    """Lets everybody come to an end, and takes what is left."""
    world.stopping.set()
    for actor in senders + receivers:
        actor.join(PATIENCE_S)
    for queue in (_SHARED, _ALONE):
        wait_until(lambda q=queue: not world.stats(q).assigned_rows, PATIENCE_S, f"{queue} has rows of consumers that have ended")  # type: ignore[misc]
        drain(world, queue)
        assert world.stats(queue).depth_rows == 0, f"{queue} has rows that nobody was given"
    assert world.stats(_RANGES).depth_rows == 0
