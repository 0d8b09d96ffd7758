"""A checkpoint loses its last files, or an older copy of it comes back: every row arrives once, or the query
says clearly why it stops.

Nothing is killed, so one session does for all. The long form draws from all settings; `test_random_kills`
does the same to killed drivers.
"""

from __future__ import annotations

import itertools
import pathlib
import random
import sys
from collections import Counter
from typing import TYPE_CHECKING, Final

import pytest

from mq_broker import LocalBroker
from spark_tests.spark_crash.books import PARTITIONS
from spark_tests.spark_crash.lifetimes import Lifetime, Setting
from spark_tests.spark_crash.losses import LOSSES, Loss
from spark_tests.spark_crash.queries import SINKS
from spark_tests.spark_crash.storm import ROUNDS
from spark_tests.support.seeds import seeded, session_seed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

#: As many lives as a quarter of the kills.
LIVES: Final = ROUNDS // 4
_EPISODE_LIVES: Final = 20
#: Every pair of choices is among these.
_CHOICES: Final = ((1, True, True), (1, False, False), (2, True, False), (2, False, True))
#: What power cuts do most. A life costs up to ten seconds of processor time, so the short form has few of
#: them.
_FREQUENT: Final = [(Loss(1, 1), sink) for sink in SINKS] + [
    (Loss(2, 2), "files"),
    (Loss(1, 1, first=True), "files"),
]
_DRAWN: Final = 3


@pytest.fixture(scope="module")
def address(module_path: pathlib.Path) -> Iterator[str]:
    with LocalBroker(module_path / "broker", default_partitions=PARTITIONS, segment_bytes=32 << 20) as broker:
        yield broker.address


@pytest.mark.parametrize(("loss", "sink"), _FREQUENT, ids=str)
def test_lost_batches_lose_no_row(
    spark: SparkSession, address: str, tmp_path: pathlib.Path, loss: Loss, sink: str
) -> None:
    rng = seeded(f"lost/{loss}/{sink}")
    # A file sink passes over a batch that it knows without reading it: with two queues nobody but the source
    # can tell what is lost.
    setting = (
        Setting(sink, *rng.choice(_CHOICES))
        if sink != "files"
        else Setting(sink, 2, *rng.choice(_CHOICES)[1:])
    )
    sys.stdout.write(f"{setting}; {loss}: {Lifetime(spark, address, tmp_path, setting, rng).run(loss)}\n")


@pytest.mark.parametrize("number", range(_DRAWN))
def test_whatever_is_lost_loses_no_row(
    spark: SparkSession, address: str, tmp_path: pathlib.Path, number: int
) -> None:
    """Another part of all combinations with each seed."""
    rng = seeded(f"lost/drawn {number}")
    loss, setting = rng.choice(LOSSES), _any_setting(rng)
    try:
        end = Lifetime(spark, address, tmp_path, setting, rng).run(loss)
    except AssertionError as fault:
        raise AssertionError(f"{setting}; {loss}: {fault}") from fault
    sys.stdout.write(f"{setting}; {loss}: {end}\n")


@pytest.mark.crash_spark
@pytest.mark.timeout(300 + 60 * _EPISODE_LIVES)
@pytest.mark.parametrize("episode", range(-(-LIVES // _EPISODE_LIVES)))
def test_lives_with_losses(spark: SparkSession, address: str, tmp_path: pathlib.Path, episode: int) -> None:
    rng = seeded(f"lost/episode {episode}")
    ends: Counter[str] = Counter()
    for number in range(min(_EPISODE_LIVES, LIVES - episode * _EPISODE_LIVES)):
        loss, setting = rng.choice(LOSSES), _any_setting(rng)
        try:
            ends[Lifetime(spark, address, tmp_path, setting, rng).run(loss)] += 1
        except AssertionError as fault:
            raise AssertionError(
                f"seed {session_seed()}, episode {episode}, life {number}: {setting}; {loss}: {fault}"
            ) from fault
    told = ", ".join(f"{end} {count}" for end, count in sorted(ends.items()))
    sys.stdout.write(f"seed {session_seed()}, episode {episode} of lives with losses: {told}\n")


def _any_setting(rng: random.Random) -> Setting:
    return Setting(
        rng.choice(SINKS), *rng.choice(tuple(itertools.product((1, 2), (True, False), (True, False))))
    )
