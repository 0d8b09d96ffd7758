"""A real broker process, killed with SIGKILL under load again and again: nothing promised is lost, nothing
comes twice, all clients heal.

MQ_CRASH_ROUNDS says how often (6); the printed seed repeats the choices, though not the schedule of
processes.
"""

from __future__ import annotations

import os
import pathlib
import random
import shutil
import sys
from typing import Final

import pytest

from mq_broker import LocalBroker
from spark_tests.oracle.judge import check
from spark_tests.support.crew.actor import World
from spark_tests.support.crew.load import (
    STRETCHES,
    Load,
    eventful_settings,
    judge,
    linger,
    shown,
    start_and_break_off,
)
from spark_tests.support.crew.members import SHARED
from spark_tests.support.crew.receivers import drain
from spark_tests.support.crew.senders import SingleSender
from spark_tests.support.seeds import seeded, session_seed

ROUNDS: Final = int(os.environ.get("MQ_CRASH_ROUNDS", "6"))
#: Rounds on one data directory; then everything is drained and judged, and the next episode begins with an
#: empty one.
_EPISODE_ROUNDS: Final = 20


class Chaos:
    """Kills a broker and starts it again on the same data."""

    def __init__(self, broker: LocalBroker, load: Load, rng: random.Random) -> None:
        self._broker, self._load, self._rng = broker, load, rng

    def kill_under_load(self) -> None:
        """Kills once the clients have come some way further, wherever that finds the broker."""
        self._load.wait_for_progress(self._rng.choice(STRETCHES))
        linger(self._rng.uniform(0, 0.005))
        self._broker.kill()

    def start(self) -> None:
        """Starts it; now and then a first start is killed while it recovers."""
        if self._rng.random() < 0.2:
            # What a start takes differs between machines; most of it is the imports of Python.
            start_and_break_off(self._broker, self._rng.uniform(0.2, 1.2), lambda: None)
        self._broker.start()

    def sometimes_stop_in_order(self) -> None:
        """A clean stop under load leaves another data directory behind than a kill does."""
        if self._rng.random() < 0.1:
            self._load.wait_for_everybody()
            assert self._broker.stop() == 0, self._broker.stderr()
            self._broker.start()


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.timeout(500 + 10 * _EPISODE_ROUNDS)
@pytest.mark.parametrize("episode", range(-(-ROUNDS // _EPISODE_ROUNDS)))
def test_a_killed_broker_loses_nothing_and_doubles_nothing(episode: int, tmp_path: pathlib.Path) -> None:
    rng = seeded(f"sigkill/{episode}")
    rounds = min(_EPISODE_ROUNDS, ROUNDS - episode * _EPISODE_ROUNDS)
    settings = eventful_settings(rng)
    title = f"MQ_SEED={session_seed()}, episode {episode}, {rounds} kills, {shown(settings)}"
    with LocalBroker(tmp_path / "broker", **settings) as broker:
        world = World(broker.address, rng)
        try:
            _run(Load(world), broker, rounds)
        finally:
            world.stopping.set()
        sys.stdout.write(f"{title}\n{judge(world, broker, title)}\n")


def test_a_data_directory_from_the_past_rings_the_alarm(tmp_path: pathlib.Path) -> None:
    """What a stale copy costs is found by the same clients and the same oracle that find nothing above."""
    data_dir, past = tmp_path / "broker", tmp_path / "past"
    with LocalBroker(data_dir, segment_bytes=32 << 20) as broker:
        world = World(broker.address, seeded("past"))
        for number in (1, 2):
            sender = SingleSender(world, SHARED, number)
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
        drain(world, SHARED)
    report = check(world.history)
    assert report.wrong.keys() == {"lost"}, str(report)
    assert report.lost == (0, 0, sender.progress)
    assert report.ok == report.acknowledged - sender.progress > 0


def _run(load: Load, broker: LocalBroker, rounds: int) -> None:
    chaos = Chaos(broker, load, load.world.random())
    load.start()
    for _ in range(rounds):
        chaos.kill_under_load()
        chaos.start()
        load.sometimes_wait_for_everybody()
        chaos.sometimes_stop_in_order()
    load.wait_for_everybody()
    load.finish()
