"""Real power cuts under load: the data directory lies on an ext4 file system of its own that loses all that
was not synced.

MQ_POWER_ROUNDS says how often (2); the printed seed repeats the choices, though not the schedule of
processes.
"""

from __future__ import annotations

import os
import pathlib
import random
import sys
from typing import Final

import pytest

from mq_broker import LocalBroker
from mq_broker.process import EXIT_STORAGE_FAILED
from spark_tests.faults.tracer import Injection, Tracer, why_no_tracer
from spark_tests.faults.volume import Volume, why_no_volume
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
from spark_tests.support.waiting import wait_until

ROUNDS: Final = int(os.environ.get("MQ_POWER_ROUNDS", "2"))
#: Rounds on one data directory; then everything is drained and judged, and the next episode begins with an
#: empty one.
_EPISODE_ROUNDS: Final = 10
#: How long a broker may go on that cannot write any more.
_ENDS_WITHIN_S: Final = 20.0

pytestmark = [
    pytest.mark.power,
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_no_volume()), reason=why_no_volume()),
]


@pytest.mark.timeout(500 + 15 * _EPISODE_ROUNDS)
@pytest.mark.parametrize("episode", range(-(-ROUNDS // _EPISODE_ROUNDS)))
def test_a_power_cut_loses_nothing_and_doubles_nothing(episode: int, tmp_path: pathlib.Path) -> None:
    rng = seeded(f"power/{episode}")
    rounds = min(_EPISODE_ROUNDS, ROUNDS - episode * _EPISODE_ROUNDS)
    settings = eventful_settings(rng)
    title = f"MQ_SEED={session_seed()}, episode {episode}, {rounds} power cuts, {shown(settings)}"
    with Volume(tmp_path) as volume, LocalBroker(volume.path / "broker", **settings) as broker:
        world = World(broker.address, rng)
        load = Load(world)
        try:
            load.start()
            for _ in range(rounds):
                load.wait_for_progress(rng.choice(STRETCHES))
                linger(rng.uniform(0, 0.005))
                _cut_power(volume, broker, rng)
                if rng.random() < 0.2:
                    # What a start takes differs between machines; most of it is the imports of Python.
                    start_and_break_off(broker, rng.uniform(0.2, 1.2), volume.cut_power)
                    volume.restart()
                broker.start()
                load.sometimes_wait_for_everybody()
            load.wait_for_everybody()
            load.finish()
        finally:
            world.stopping.set()
        sys.stdout.write(f"{title}\n{judge(world, broker, title)}\n")


def _cut_power(volume: Volume, broker: LocalBroker, rng: random.Random) -> None:
    """Cuts the power. As often as not the broker notices before it is gone itself, and ends; or what it read
    is not there any more.
    """
    volume.cut_power()
    if rng.random() < 0.5:
        wait_until(lambda: not broker.running, _ENDS_WITHIN_S, "the broker goes on without a disk")
        assert broker.stop() == EXIT_STORAGE_FAILED, broker.stderr()
        assert "StorageFailed" in broker.stderr().splitlines()[-1]
    broker.kill()
    volume.restart()


@pytest.mark.skipif(bool(why_no_tracer()), reason=why_no_tracer())
def test_a_sync_that_is_a_lie_rings_the_alarm(tmp_path: pathlib.Path) -> None:
    """Receipts without a sync are found out by the same cut and the same oracle that find nothing above: the
    rig can lose data.
    """
    with Volume(tmp_path) as volume, LocalBroker(volume.path / "broker", segment_bytes=32 << 20) as broker:
        world = World(broker.address, seeded("lie"))
        honest, deceived = SingleSender(world, SHARED, 1), SingleSender(world, SHARED, 2)
        _work(honest)
        with Tracer(broker.pid, Injection(("fdatasync", "fsync"), "retval=0")) as tracer:
            _work(deceived)
            assert tracer.log.hits
        volume.cut_power()
        broker.kill()
        volume.restart()
        broker.start()
        drain(world, SHARED)
    report = check(world.history)
    assert report.wrong.keys() == {"lost"}, str(report)
    assert report.lost == (0, 0, deceived.progress)
    assert report.ok == honest.progress > 0


def _work(sender: SingleSender) -> None:
    for _ in range(5):
        sender.step()
    sender.finish()
