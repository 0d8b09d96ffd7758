"""A seeded choice of simulations: all clean, and everything that is supposed to happen does happen. `make
simulate SEEDS=...` runs more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from typing import Final

import pytest

from spark_tests.simulation.__main__ import told
from spark_tests.simulation.simulation import simulate
from spark_tests.support.seeds import seeded
from spark_tests.support.tree import PROJECT

HISTORIES: Final = 30
#: What is rare may need some more.
HISTORIES_MAX: Final = 120
#: What a simulation in which it never happens proves nothing about.
HAPPENS: Final = """
kills; kills in a step of the disk; power cuts; power cuts in a step of the disk; clean stops
storage failures; failed: sync; failed: write
snapshots begun; segments rolled; segments recycled; segments cleaned; segments removed
links broken; late requests; answers lost; calls repeated; sessions broken; sessions ended
duplicates answered; skips; producers that died; Publish: StoreFull; Publish: OutOfOrder
Publish: ProducerFenced; Publish: EpochFenced
named producers opened; batches committed; commits repeated; zombie tasks; DiscardStagedRequest
batches of pipelines committed; ranges replayed; readers that crashed; zombies refused; takeovers
checkpoints superseded; releases
checkpoints that lost 1 batches; checkpoints that lost 2 batches; checkpoints that lost all batches
lost files refused; strangers refused
parts browsed; queues deleted; consumers of deleted queues told; questions answered
sessions ended by operators
recoveries compared; clean stops compared; snapshots rotten
"""


@pytest.mark.timeout(900)
def test_whole_brokers_in_random_schedules() -> None:
    rng = seeded("simulation")
    counts: Counter[str] = Counter()
    for number in range(HISTORIES_MAX):
        if number >= HISTORIES and not missing_of(counts):
            break
        outcome = simulate(rng.getrandbits(32))
        assert outcome.is_clean, told(outcome)
        assert outcome.report.ok > 0 or not outcome.report.acknowledged, told(outcome)
        counts += outcome.counts
    assert not missing_of(counts), f"never happened in {HISTORIES_MAX} histories: {missing_of(counts)}"


def missing_of(counts: Counter[str]) -> list[str]:
    """Returns what should have happened and did not."""
    return [
        what for each in HAPPENS.replace("\n", ";").split(";") if (what := each.strip()) and not counts[what]
    ]


def test_one_number_repeats_a_history() -> None:
    seed = seeded("repeated").getrandbits(32)
    first, second, others = (
        simulate(seed),
        simulate(seed),
        [simulate(seed + 1).trace_hash, simulate(seed + 2).trace_hash],
    )
    assert first.trace == second.trace
    assert str(first.report) == str(second.report)
    assert first.counts == second.counts
    assert first.trace_hash not in others
    # Another process has other hashes of strings, so other orders within sets.
    code = (
        f"from spark_tests.simulation.simulation import simulate; print([simulate({seed} + "
        f"n).trace_hash for n in range(3)])"
    )
    command = [sys.executable, "-c", code]
    path = os.pathsep.join(str(PROJECT / root) for root in ("proto", "broker_core", "connector", "."))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "7"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert json.loads(done.stdout) == [first.trace_hash, *others]
