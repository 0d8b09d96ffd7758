"""A broker that the system lets have 300 threads, as systemd and Kubernetes do, and more consumers than those
are enough for.

Needs root, to run the broker as a user whose threads are counted.
"""

from __future__ import annotations

import os
import pathlib
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

import grpc
import pytest

from mq_wire.v1.consume_pb2 import ConsumeRequest
from mq_wire.v1.subscribe_pb2 import HoldRunRequest
from spark_tests.hostile.siege import SCALE, Attack, Siege, Target, stop_during
from spark_tests.support.waiting import wait_until

#: Nobody else's: the kernel counts the threads of all processes of a user.
_USER: Final = 1 << 30 | os.getpid()
#: The one right that is left is to read what is root's, such as this checkout.
LIMITS: Final = (
    "prlimit", "--nproc=300:300", "setpriv", f"--reuid={_USER}", "--clear-groups", "--inh-caps=+dac_override",
    "--ambient-caps=+dac_override",
)  # fmt: skip


def works() -> bool:
    try:
        return subprocess.run([*LIMITS, "true"], check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


pytestmark = [pytest.mark.slow, pytest.mark.skipif(not works(), reason="needs root, setpriv and prlimit")]

OPEN: Final = ConsumeRequest(
    open={"destination": "idle", "credit": {"rows": 1, "bytes": 1}, "create": True}
).SerializeToString()


def idle_consumers(target: Target) -> None:
    """A connection each, as programs with one consumer have it, and one with many."""
    count = target.times(250)
    each = [target.client() for _ in range(count)]
    streams = [(client, client.call("Consume", OPEN, end=False)) for client in each]
    many = target.client()
    streams += [(many, many.call("Consume", OPEN, end=False)) for _ in range(count)]
    wait_until(
        lambda: all(client.received[stream] or stream in client.ended for client, stream in streams), 30
    )
    refused = sum(1 for client, stream in streams if stream in client.ended)
    assert 2 * count > refused > count, f"{refused} of {2 * count} are refused"


IDLE: Final = Attack("idle consumers", idle_consumers, peak_bytes_max=100 << 20, limits=LIMITS)


@pytest.fixture(scope="module")
def few(module_path: pathlib.Path) -> Iterator[Siege]:
    siege = Siege(module_path / "few", LIMITS)
    yield siege
    siege.end()


def test_consumers_for_which_there_are_no_threads_are_refused_and_others_served(few: Siege) -> None:
    report = few.endure(IDLE)
    report.check()
    assert report.peak.threads < 300, report
    few.endure(IDLE).check()  # and again, with the threads that are there now
    said = few.broker.stderr()
    words = (
        r"WARNING \d+ streams instead of 2000 \(streams_max\), each takes two threads: user \d+ may "
        r"have 300 threads"
    )
    assert re.search(words, said), said


def test_who_is_refused_hears_of_the_limit_and_the_remedy(few: Siege) -> None:
    target = Target(few.broker.address)
    try:
        idle_consumers(target)
        with pytest.raises(grpc.RpcError) as caught:
            few.wire.hold(HoldRunRequest()).next()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert re.search(
            r"user \d+ may have 300 threads \(RLIMIT_NPROC: raise it with `ulimit -u`",
            str(caught.value.details()),
        )
    finally:
        target.close()


def test_a_broker_with_few_threads_is_told_to_stop(tmp_path: pathlib.Path, rng: random.Random) -> None:
    stop_during(IDLE, tmp_path / "broker", rng)


@pytest.mark.skipif(SCALE <= 1, reason="an innocent client may wait for longer than it does: make fuzz")
def test_others_of_the_same_user_take_the_threads(tmp_path: pathlib.Path) -> None:
    """What there was at the start is gone: streams are refused, nothing hangs, and when they come back all is
    well.
    """
    siege = Siege(tmp_path / "broker", LIMITS)
    take = (
        "import threading, time\ntry:\n while True: threading.Thread(target=time.sleep, args=(60,), "
        "daemon=True).start()\n"
    )
    take += "except RuntimeError: print(flush=True)\ntime.sleep(60)"
    with subprocess.Popen([*LIMITS, sys.executable, "-c", take], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        try:
            report = siege.endure(Attack("idle consumers", half_as_many))
            report.check()
        finally:
            other.kill()
    siege.end()


def half_as_many(target: Target) -> None:
    client = target.client()
    streams = [client.call("Consume", OPEN, end=False) for _ in range(60)]
    wait_until(lambda: all(client.received[stream] or stream in client.ended for stream in streams), 30)
    assert client.ended
