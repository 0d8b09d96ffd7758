"""Random kills of everything that takes part, under a continuous producer and over one checkpoint: counted at
the end of each episode.

MQ_SPARK_CRASH_ROUNDS says how often (0: not at all, a short one is part of test_every_step); the printed seed
repeats the choices, though not the schedule of processes.
"""

from __future__ import annotations

import pathlib
import sys
from typing import Final

import pytest

from spark_tests.spark_crash.pipeline import Pipeline
from spark_tests.spark_crash.storm import ROUNDS, Refused, Storm
from spark_tests.spark_crash.strikes import warm_up
from spark_tests.support.seeds import seeded, session_seed

#: Rounds on one checkpoint; then everything is judged, and the next episode begins with an empty broker.
_EPISODE_ROUNDS: Final = 25


#: Most go into our sink, which lives through everything. Where the others are refused their episode ends.
_SINKS: Final = ("queue", "queue", "files", "batches")


@pytest.mark.crash_spark
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300 + 60 * _EPISODE_ROUNDS)
@pytest.mark.parametrize("episode", range(-(-ROUNDS // _EPISODE_ROUNDS)))
def test_random_kills_neither_lose_nor_double_a_row(episode: int, tmp_path: pathlib.Path) -> None:
    rounds = min(_EPISODE_ROUNDS, ROUNDS - episode * _EPISODE_ROUNDS)
    rng = seeded(f"spark crash/{episode}")
    master, sink = rng.choice(["local[2]", "local[2,4]", "local[1]"]), rng.choice(_SINKS)
    fail, consumer = rng.choice(["true", "false"]), rng.choice(["", "crossing"])
    setting = f"{master} into {sink}, failOnDataLoss={fail}, {'a consumer' if consumer else 'no consumer'}"
    with Pipeline(
        tmp_path, rng, master, sink=sink, consumer=consumer, source_options={"failOnDataLoss": fail}
    ) as pipeline:
        warm_up(pipeline)
        storm = Storm(pipeline)
        try:
            storm.blow(rounds)
            report = pipeline.judge()
        except Refused as refused:
            setting += f"; ended early, {refused}"
            report = pipeline.judge_refused()
    victims = ", ".join(f"{name} {count}" for name, count in sorted(storm.victims.items()))
    refusals = (
        ", ".join(f"refused by {name} {count}" for name, count in sorted(storm.refusals.items()))
        or "nothing refused"
    )
    sys.stdout.write(
        f"seed {session_seed()}, episode {episode}, {setting}, {rounds} kills ({victims}; "
        f"{refusals})\n{report}\n"
    )
