"""A checkpoint loses its last files, or an older copy of it comes back: every row arrives once, or the query says clearly why it stops.

Nothing is killed, so one session does for all. The long form draws from all settings; `test_random_kills` does the same to killed drivers.
"""

from __future__ import annotations

import itertools
import os
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
from spark_tests.support.seeds import seeded, session_seed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

#: As many lives as a quarter of the kills.
LIVES: Final = int(os.environ.get("MQ_SPARK_CRASH_ROUNDS", "0")) // 4
_EPISODE_LIVES: Final = 20
#: Every pair of choices is among these.
_CHOICES: Final = ((1, True, True), (1, False, False), (2, True, False), (2, False, True))
#: What a copy of yesterday and a power cut do most: each sink meets them. The others meet one sink.
_FREQUENT: Final = (Loss(1, 1), Loss(2, 2), Loss(1, 1, first=True))


@pytest.fixture(scope="module")
def address(module_path: pathlib.Path) -> Iterator[str]:
    with LocalBroker(module_path / "broker", default_partitions=PARTITIONS, segment_bytes=32 << 20) as broker:
        yield broker.address


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_a_checkpoint_that_lost_something_loses_no_row(spark: SparkSession, address: str, tmp_path: pathlib.Path, loss: Loss) -> None:
    rng = seeded(f"lost/{loss}")
    # Which choices meet which sink follows from the seed, so that many runs see them all.
    choices = itertools.islice(itertools.cycle(_CHOICES), rng.randrange(len(_CHOICES)), None)
    faults = []
    for sink, choice in zip(SINKS if loss in _FREQUENT else [rng.choice(SINKS)], choices, strict=False):
        # A file sink passes over a batch that it knows without reading it: with two queues nobody but the source can tell what is lost.
        setting = Setting(sink, *choice) if sink != "files" else Setting(sink, 2, *choice[1:])
        try:
            end = Lifetime(spark, address, tmp_path, setting, rng).run(loss)
            sys.stdout.write(f"{setting}; {loss}: {end}\n")
        except AssertionError as fault:
            faults.append(f"{setting}; {loss}: {fault}")
    assert not faults, "\n".join(faults)


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
            raise AssertionError(f"seed {session_seed()}, episode {episode}, life {number}: {setting}; {loss}: {fault}") from fault
    told = ", ".join(f"{end} {count}" for end, count in sorted(ends.items()))
    sys.stdout.write(f"seed {session_seed()}, episode {episode} of lives with losses: {told}\n")


def _any_setting(rng: random.Random) -> Setting:
    return Setting(rng.choice(SINKS), *rng.choice(tuple(itertools.product((1, 2), (True, False), (True, False)))))
