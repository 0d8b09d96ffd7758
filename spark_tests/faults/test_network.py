"""A network that misbehaves, between all kinds of clients and a real broker: a proxy cuts, delays, goes
silent, and swallows answers. So does a broker whose process stops for a while.

MQ_NETWORK_ROUNDS says how often (6); the printed seed repeats the choices, though not the schedule of
processes.
"""

from __future__ import annotations

import os
import pathlib
import random
import sys
from collections.abc import Callable
from typing import Any, Final

import pytest

from mq_broker import LocalBroker
from pyspark_mq.client import link
from spark_tests.faults.pause import stopped
from spark_tests.support.crew.actor import World
from spark_tests.support.crew.load import STRETCHES, Load, eventful_settings, judge, linger, shown
from spark_tests.support.proxy import ANSWERS, REQUESTS, Proxy
from spark_tests.support.seeds import seeded, session_seed

ROUNDS: Final = int(os.environ.get("MQ_NETWORK_ROUNDS", "6"))
#: Rounds on one data directory; then everything is drained and judged, and the next episode begins with an
#: empty one.
_EPISODE_ROUNDS: Final = 20
#: Silence is noticed after as many seconds instead of 40, so that there can be many.
_QUICK_KEEPALIVE: Final = {
    "grpc.keepalive_time_ms": 2000,
    "grpc.keepalive_timeout_ms": 1000,
    "grpc.http2.ping_timeout_ms": 1000,
}
_QUICK_BROKER: Final = {"keepalive_ms": 2000, "keepalive_timeout_ms": 1000}
_SILENCE_S: Final = 4.0

pytestmark = [pytest.mark.network, pytest.mark.slow]


@pytest.fixture
def quick_keepalive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of this process look sooner whether the other side still lives."""
    options: list[tuple[str, Any]] = [
        (name, _QUICK_KEEPALIVE.get(name, value)) for name, value in link._CHANNEL_OPTIONS
    ]
    monkeypatch.setattr(link, "_CHANNEL_OPTIONS", tuple(options))


@pytest.mark.timeout(700 + 15 * _EPISODE_ROUNDS)
@pytest.mark.parametrize("episode", range(-(-ROUNDS // _EPISODE_ROUNDS)))
@pytest.mark.usefixtures("quick_keepalive")
def test_a_network_that_misbehaves_loses_nothing_and_doubles_nothing(
    episode: int, tmp_path: pathlib.Path
) -> None:
    rng = seeded(f"network/{episode}")
    rounds = min(_EPISODE_ROUNDS, ROUNDS - episode * _EPISODE_ROUNDS)
    settings = {**eventful_settings(rng), "run_grace_s": 5, **_QUICK_BROKER}
    title = f"MQ_SEED={session_seed()}, episode {episode}, {rounds} faults, {shown(settings)}"
    # Two ways to one broker: what goes wrong on the one sends clients to the other, with all that they left
    # unanswered.
    with (
        LocalBroker(tmp_path / "broker", **settings) as broker,
        Proxy(broker.address) as first,
        Proxy(broker.address) as second,
    ):
        world = World(f"{first.address},{second.address.removeprefix('mq://')}", rng, sessions_overlap=True)
        load = Load(world)
        faults = _faults((first, second), broker, rng)
        try:
            load.start()
            # In turn, so that a few rounds show each of them.
            for number in range(rounds):
                load.wait_for_progress(rng.choice(STRETCHES))
                fault = faults[(number + episode * _EPISODE_ROUNDS) % len(faults)]
                fault()
                first.heal()
                second.heal()
                load.sometimes_wait_for_everybody()
            load.wait_for_everybody()
            load.finish()
        finally:
            world.stopping.set()
        sys.stdout.write(f"{title}\n{judge(world, broker, title)}\n")


def _faults(
    proxies: tuple[Proxy, Proxy], broker: LocalBroker, rng: random.Random
) -> list[Callable[[], None]]:
    """Returns what may happen, on one way or on both; each has happened when it returns, and is over with the
    next `heal`.
    """

    def some() -> tuple[Proxy, ...]:
        return rng.choice([proxies[:1], proxies[1:], proxies])

    def cut() -> None:
        for _ in range(rng.randint(1, 5)):
            for proxy in some():
                proxy.cut()
            linger(rng.uniform(0, 0.3))

    def cut_within_a_frame() -> None:
        for proxy in some():
            proxy.cut_after(int(2 ** rng.uniform(0, 20)), rng.choice([REQUESTS, ANSWERS]))
        linger(rng.uniform(0.2, 1))

    def swallow() -> None:
        for proxy in some():
            proxy.swallow()
        linger(rng.uniform(0, 0.5))

    def silence() -> None:
        directions = rng.choice([(REQUESTS,), (ANSWERS,), (REQUESTS, ANSWERS)])
        for proxy in some():
            proxy.silence(*directions)
        linger(_SILENCE_S)

    def slow_down() -> None:
        for proxy in some():
            proxy.slow_down(delay_s=rng.choice([0.05, 0.4]), bytes_per_s=rng.choice([0, 1 << 20]))
        linger(rng.uniform(0.5, 2))

    def pause() -> None:
        """Shorter than anybody would notice."""
        for proxy in some():
            proxy.silence(REQUESTS, ANSWERS)
        linger(rng.uniform(0, 0.5))

    def stop_the_broker() -> None:
        """Longer than its clients wait."""
        with stopped(broker.pid):
            linger(_SILENCE_S)

    return [swallow, cut_within_a_frame, silence, cut, slow_down, stop_the_broker, pause]
