"""An hour of steady work of all kinds of clients on one broker: memory, threads, descriptors and disk are
flat, and every row is counted.

MQ_SOAK_MINUTES says how long; without it nothing runs. Figures are taken from /proc.
"""

from __future__ import annotations

import os
import pathlib
import statistics
import sys
import time
from dataclasses import dataclass, replace
from typing import Final

import pytest

from mq_broker import LocalBroker
from spark_tests.support.crew.actor import World
from spark_tests.support.crew.load import Load, judge, linger
from spark_tests.support.seeds import seeded, session_seed

MINUTES: Final = float(os.environ.get("MQ_SOAK_MINUTES", "0"))
#: Samples in all; growth is judged from the second half of them, since caches and audits fill up first.
_SAMPLES: Final = 120
#: Between two steps of a client: a load that a busy day has, not the most there can be.
_PAUSE_S: Final = 1.0
#: What two quarters of a flat line may differ by: the allocator's noise, streams that come and go, segments
#: in use.
_NOISE: Final = {"memory_kib": 0.05, "threads": 0.5, "descriptors": 0.5, "disk_bytes": 0.5}


@dataclass(frozen=True, slots=True)
class Sample:
    """What the broker's process holds at one moment."""

    memory_kib: int
    threads: int
    descriptors: int
    disk_bytes: int

    @classmethod
    def of(cls, broker: LocalBroker) -> Sample:
        proc = pathlib.Path(f"/proc/{broker.pid}")
        status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
        disk = sum(file.stat().st_blocks * 512 for file in broker.data_dir.rglob("*") if file.is_file())
        return cls(
            int(status["RssAnon"].split()[0]),
            int(status["Threads"]),
            len(list((proc / "fd").iterdir())),
            disk,
        )


@pytest.mark.slow
@pytest.mark.skipif(not MINUTES, reason="runs for as long as MQ_SOAK_MINUTES says: make soak")
@pytest.mark.timeout(MINUTES * 120 + 600)
def test_a_broker_at_work_does_not_grow(tmp_path: pathlib.Path) -> None:
    # What is kept per producer, and how often snapshots come, is filled up and seen within the run.
    settings = {"segment_bytes": 32 << 20, "snapshot_interval_s": 20, "anonymous_producers_max": 50}
    with LocalBroker(tmp_path / "broker", **settings) as broker:
        world = World(broker.address, seeded("soak"), pause_s=_PAUSE_S)
        load = Load(world)
        load.start()
        samples = []
        began = time.monotonic()
        for number in range(1, _SAMPLES + 1):
            linger(began + 60 * MINUTES * number / _SAMPLES - time.monotonic())
            load.healthy()
            samples.append(Sample.of(broker))
            sys.stdout.write(f"{(time.monotonic() - began) / 60:6.1f} min  {samples[-1]}\n")
            sys.stdout.flush()
        load.finish()
        report = judge(world, broker, f"MQ_SEED={session_seed()}")
    sys.stdout.write(f"seed {session_seed()}, {MINUTES} minutes\n{report}\n")
    check_flat(samples)


def check_flat(samples: list[Sample]) -> None:
    """Fails where the last quarter of a run has more of anything than the one before."""
    third, last = samples[len(samples) // 2 : 3 * len(samples) // 4], samples[3 * len(samples) // 4 :]
    for what, noise in _NOISE.items():
        before, after = (
            statistics.median(getattr(sample, what) for sample in quarter) for quarter in (third, last)
        )
        sys.stdout.write(f"{what}: median of the third quarter {before:,.0f}, of the last {after:,.0f}\n")
        assert after <= before * (1 + noise), f"{what} grew from {before:,.0f} to {after:,.0f}"


def test_growth_is_found() -> None:
    flat = [Sample(150_000 + 9000 * (number % 5), 36, 30, 300 << 20) for number in range(_SAMPLES)]
    check_flat(flat)
    with pytest.raises(AssertionError, match="memory_kib grew"):
        check_flat(
            [
                replace(sample, memory_kib=sample.memory_kib + 500 * number)
                for number, sample in enumerate(flat)
            ]
        )
