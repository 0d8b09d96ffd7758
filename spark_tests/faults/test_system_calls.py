"""System calls of a broker that fail, or at which it dies, under load and while it starts: no receipt counts
after a failed sync.

MQ_FAULT_ROUNDS says how often (3); the printed seed repeats the choices, though not the schedule of
processes. Where the machine can, the data lies on a file system of its own, and the power is cut behind every
second failure: what was answered on the strength of a sync that failed would be lost then.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import re
import sys
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pytest

from mq_broker import LocalBroker
from mq_broker.process import EXIT_STORAGE_FAILED
from mq_wire.errors import BrokerUnavailable, SendOutcomeUnknown
from pyspark_mq import Consumer, Producer
from spark_tests.faults.tracer import Injection, TracedBroker, Tracer, why_no_tracer
from spark_tests.faults.volume import Volume, why_no_volume
from spark_tests.support.crew.actor import World
from spark_tests.support.crew.load import STRETCHES, Load, eventful_settings, judge, shown
from spark_tests.support.seeds import seeded, session_seed
from spark_tests.support.waiting import wait_until

ROUNDS: Final = int(os.environ.get("MQ_FAULT_ROUNDS", "3"))
#: Rounds on one data directory; then everything is drained and judged, and the next episode begins with an
#: empty one.
_EPISODE_ROUNDS: Final = 10
#: How long a call is waited for that may never come.
_HIT_WITHIN_S: Final = 3.0
_ENDS_WITHIN_S: Final = 20.0
_TICKS_S: Final = 1.5

#: What a sync or a write uses.
_FATAL: Final = (("fdatasync",), ("fsync",), ("pwritev", "pwritev2", "pwrite64"))
_KILL: Final = "signal=SIGKILL"
#: The others are rarer: creating, growing, giving names, taking them away.
_OTHERS: Final = ("fallocate", "rename", "unlink", "ftruncate")

pytestmark = [
    pytest.mark.faults,
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_no_tracer()), reason=why_no_tracer()),
]


def _injection(rng: random.Random) -> Injection:
    calls = rng.choice(_FATAL) if rng.random() < 0.7 else _OTHERS
    fault = rng.choice(["error=EIO", "error=EIO", "error=ENOSPC", _KILL])
    nth = rng.randint(1, 2) if calls in (("fsync",), _OTHERS) else int(2 ** rng.uniform(0, 5.5))
    # As often as not the failure stays: an operating system may also report it once only, and claim success
    # from then on.
    return Injection(calls, fault, f"{nth}{rng.choice(['', '+'])}")


@contextlib.contextmanager
def _disk(folder: pathlib.Path) -> Iterator[tuple[pathlib.Path, Volume | None]]:
    """Yields where the data goes, and the volume that this is where there is one."""
    if why_no_volume():
        yield folder, None
        return
    with Volume(folder) as volume:
        yield volume.path, volume


@pytest.mark.timeout(500 + 30 * _EPISODE_ROUNDS)
@pytest.mark.parametrize("episode", range(-(-ROUNDS // _EPISODE_ROUNDS)))
def test_a_failing_system_call_loses_nothing_and_doubles_nothing(
    episode: int, tmp_path: pathlib.Path
) -> None:
    rng = seeded(f"system-calls/{episode}")
    rounds = min(_EPISODE_ROUNDS, ROUNDS - episode * _EPISODE_ROUNDS)
    settings = {**eventful_settings(rng), "snapshot_interval_s": 1, "run_grace_s": 5}
    title = f"MQ_SEED={session_seed()}, episode {episode}, {rounds} faults, {shown(settings)}"
    with (
        _disk(tmp_path) as (folder, volume),
        contextlib.closing(TracedBroker(folder / "broker", **settings)) as broker,
    ):
        broker.start()
        world = World(broker.address, rng)
        load = Load(world)
        try:
            load.start()
            for _ in range(rounds):
                load.wait_for_progress(rng.choice(STRETCHES))
                _Round(broker, volume, rng).run()
                load.sometimes_wait_for_everybody()
            load.wait_for_everybody()
            load.finish()
        finally:
            world.stopping.set()
        sys.stdout.write(f"{title}\n{judge(world, broker, title)}\n")


@pytest.mark.parametrize("calls", _FATAL[::2], ids=["sync", "write"])
def test_no_receipt_comes_from_a_turn_that_failed(calls: tuple[str, ...], tmp_path: pathlib.Path) -> None:
    """The failure comes once; from then on the operating system claims success. Whoever asks it again would
    give receipts for nothing.
    """
    with (
        _disk(tmp_path) as (folder, volume),
        LocalBroker(folder / "broker", segment_bytes=32 << 20, default_partitions=1) as broker,
    ):
        with Producer(broker.address, queue="turn", send_timeout=60) as producer:
            producer.send(b"0").result(30)
            with Tracer(broker.pid, Injection(calls, "error=EIO", "1")) as tracer:
                receipt = producer.send_batch(pa.record_batch({"value": [b"1"]}))
                wait_until(
                    lambda: not broker.running, _ENDS_WITHIN_S, "the broker goes on after a failed turn"
                )
                assert any("/segment-" in hit for hit in tracer.log.hits)
            assert broker.stop() == EXIT_STORAGE_FAILED
            said = broker.stderr().splitlines()[-1]
            assert "storage failed" in said
            assert "Input/output error: check the disk, then restart the broker" in said
            with pytest.raises(SendOutcomeUnknown):
                receipt.result(0)
            if volume is not None:
                volume.cut_power()
                volume.restart()
            broker.start()
            assert [(base, rows) for _, base, rows, _ in receipt.result(30).ranges] == [(1, 1)]
        with Consumer(broker.address, queue="turn") as consumer:
            assert [message.value for message in consumer.messages(timeout=0.5)] == [b"0", b"1"]


class _Round:
    """One fault in a broker at work, or in one that starts."""

    def __init__(self, broker: TracedBroker, volume: Volume | None, rng: random.Random) -> None:
        self._broker, self._volume, self._rng = broker, volume, rng
        self._injection = _injection(rng)

    def run(self) -> None:
        if self._rng.random() < 0.3:
            self._broker.kill()
            self._start_under_injection()
        else:
            self._inject_at_work()
        if self._volume is not None and self._rng.random() < 0.5:
            self._volume.cut_power()
            self._broker.kill()
            self._volume.restart()
        self._broker.start()

    def _inject_at_work(self) -> None:
        with Tracer(self._broker.pid, self._injection) as tracer:
            with contextlib.suppress(AssertionError):  # some calls do not come every day
                wait_until(lambda: tracer.log.hits or not self._broker.running, _HIT_WITHIN_S)
            # What fails on the side (a snapshot) is noticed with the next tick, and nothing must happen to
            # the same broker before.
            ending = bool(tracer.log.hits) and self._injection.fault != _KILL
            with contextlib.suppress(AssertionError):
                wait_until(lambda: not self._broker.running, _TICKS_S if ending else 0.05)
            self._judge_end(tracer.log.lines(), tracer.log.hits)

    def _start_under_injection(self) -> None:
        self._broker.injection = self._injection
        try:
            self._broker.start()
        except BrokerUnavailable:
            assert self._broker.log is not None
            self._report(self._broker.log.hits)
            if self._injection.fault != _KILL:
                assert self._broker.log.hits, self._broker.stderr()
                said = self._broker.stderr().splitlines()[-1]
                assert said.startswith("mq: ") or "the broker ends" in said, self._broker.stderr()
            assert "Traceback" not in self._broker.stderr(), self._broker.stderr()
        else:
            assert self._broker.log is not None
            self._judge_end(self._broker.log.lines(), self._broker.log.hits)
            self._broker.kill()
        finally:
            self._broker.injection = None

    def _judge_end(self, lines: list[str], hits: list[str]) -> None:
        """Where a call failed for good, the broker has ended, with a word; and has not tried again before."""
        self._report(hits)
        if not hits or self._injection.fault == _KILL:
            return
        if self._injection.fault == "error=EIO":
            wait_until(
                lambda: not self._broker.running, _ENDS_WITHIN_S, f"the broker goes on after {hits[0]}"
            )
        if self._broker.running:
            return  # without room, snapshots and new segments wait
        code = self._broker.stop()
        assert code == EXIT_STORAGE_FAILED, f"exit code {code} after {hits[-1]}: {self._broker.stderr()}"
        assert "Traceback" not in self._broker.stderr(), self._broker.stderr()
        assert "StorageFailed" in self._broker.stderr().splitlines()[-1], self._broker.stderr()
        self._judge_silence(lines, hits[0])

    @staticmethod
    def _judge_silence(lines: list[str], hit: str) -> None:
        """The thread whose write or sync of a segment failed never touches a segment again."""
        thread = hit.split()[0]
        if "/segment-" in hit:
            later = [
                line
                for line in lines[lines.index(hit) + 1 :]
                if line.split()[0] == thread and "/segment-" in line
            ]
            assert not later, f"after {hit}: {later[0]}"

    def _report(self, hits: list[str]) -> None:
        missed = "not called" if self._broker.running else "gone"
        sys.stdout.write(f"{self._injection}: {_shortened(hits[0]) if hits else missed}\n")


def _shortened(call: str) -> str:
    """Without what was written, and without folders."""
    return re.sub(r", \[.*\]", "", re.sub(r"/[^ >\"]*/volume/", "", call))
