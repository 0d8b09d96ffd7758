"""An hour of steady work of all kinds of clients on one broker: memory, threads, descriptors and disk are flat, and every row is counted.

MQ_SOAK_MINUTES says how long; without it nothing runs. Figures are taken from /proc.
"""

from __future__ import annotations

import os
import pathlib
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Final

import pytest

from mq_broker import LocalBroker
from spark_tests.crash.actor import World
from spark_tests.crash.crew import clients, finish
from spark_tests.oracle.judge import check
from spark_tests.support.seeds import seeded, session_seed
from spark_tests.support.waiting import wait_until

MINUTES: Final = float(os.environ.get("MQ_SOAK_MINUTES", "0"))
#: Samples in all; growth is judged from the second half of them, since caches and audits fill up first.
_SAMPLES: Final = 120
#: Between two steps of a client: a load that a busy day has, not the most there can be.
_PAUSE_S: Final = 0.5
#: What may be found between two halves of a flat line: noise of the allocator.
_MEMORY_NOISE: Final = 0.05


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
        return cls(int(status["RssAnon"].split()[0]), int(status["Threads"]), len(list((proc / "fd").iterdir())), disk)


@pytest.mark.slow
@pytest.mark.skipif(not MINUTES, reason="runs for as long as MQ_SOAK_MINUTES says: make soak")
@pytest.mark.timeout(MINUTES * 60 + 300)
def test_a_broker_at_work_does_not_grow(tmp_path: pathlib.Path) -> None:
    # What is kept per producer, and how often snapshots come, is filled up and seen within the run.
    settings = {"segment_bytes": 32 << 20, "snapshot_interval_s": 20, "anonymous_producers_max": 50}
    with LocalBroker(tmp_path / "broker", **settings) as broker:
        world = World(broker.address, seeded("soak"), pause_s=_PAUSE_S)
        senders, receivers = clients(world)
        for actor in senders + receivers:
            actor.start()
        samples = []
        began = time.monotonic()
        for number in range(1, _SAMPLES + 1):
            due = began + 60 * MINUTES * number / _SAMPLES
            wait_until(lambda due=due: time.monotonic() >= due, MINUTES * 60 + 60)  # type: ignore[misc]
            for actor in senders + receivers:
                actor.check()
            samples.append(Sample.of(broker))
            sys.stdout.write(f"{(time.monotonic() - began) / 60:6.1f} min  {samples[-1]}\n")
            sys.stdout.flush()
        finish(world, senders, receivers)
        report = check(world.history)
    sys.stdout.write(f"seed {session_seed()}, {MINUTES} minutes\n{report}\n")
    assert not report.wrong, f"MQ_SEED={session_seed()}: {report}"
    third, last = samples[_SAMPLES // 2 : 3 * _SAMPLES // 4], samples[3 * _SAMPLES // 4 :]
    for what in ("memory_kib", "threads", "descriptors", "disk_bytes"):
        before, after = (statistics.median(getattr(sample, what) for sample in quarter) for quarter in (third, last))
        sys.stdout.write(f"{what}: median of the third quarter {before:,.0f}, of the last {after:,.0f}\n")
        room = _MEMORY_NOISE if what == "memory_kib" else 0.5
        assert after <= before * (1 + room), f"{what} grew from {before:,.0f} to {after:,.0f}"
