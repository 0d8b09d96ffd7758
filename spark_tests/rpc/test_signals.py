"""Signals that a broker gets, at any moment of its life."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys

import pytest

from mq_broker import LocalBroker
from spark_tests.support.waiting import wait_until
from spark_tests.support.wire import Wire, batch_of, values_of

#: The signal comes while what a broker is made of is being loaded.
LOADING = (
    "import os, sys; from mq_broker.console import main as m; m._command = lambda path: "
    "os.kill(os.getpid(), {}); sys.exit(m.main())"
)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_a_broker_that_is_loading_ends_cleanly(tmp_path: pathlib.Path, number: signal.Signals) -> None:
    code = LOADING.format(int(number))
    command = [sys.executable, "-c", code, "broker", "--data-dir", str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_signals_that_mean_nothing_are_answered(tmp_path: pathlib.Path) -> None:
    with LocalBroker(tmp_path / "data", segment_bytes=32 << 20) as broker:
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
            os.kill(broker.pid, number)
        wait_until(lambda: broker.stderr().count(" is ignored: ") == 3)
        assert all(name in broker.stderr() for name in ("SIGUSR1 is", "SIGUSR2 is", "SIGHUP is"))
        os.kill(broker.pid, signal.SIGQUIT)
        wait_until(lambda: not broker.running)
        assert broker.stop() == 0
        assert "told to stop" in broker.stderr()


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_a_port_that_is_taken_is_told_for_all_interfaces_too(tmp_path: pathlib.Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        flags = ["--data-dir", str(tmp_path / "data"), "--host", "[::]", "--port", port]
        command = [sys.executable, "-m", "mq_broker.console", "broker", *flags]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert port in done.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_signals_while_a_broker_stops_change_nothing(tmp_path: pathlib.Path, number: signal.Signals) -> None:
    """Until the process is gone: the interpreter, too, takes its time to end."""
    with LocalBroker(tmp_path / "data", segment_bytes=32 << 20) as broker:
        with Wire(broker.address) as wire:
            assert wire.publisher("q").send(batch_of(values_of(10))).receipt.rows == 10

        def is_gone() -> bool:
            with contextlib.suppress(ProcessLookupError):
                os.kill(broker.pid, number)
            return not broker.running

        wait_until(is_gone, 30)
        assert broker.stop() == 0
    with LocalBroker(tmp_path / "data", segment_bytes=32 << 20) as broker, Wire(broker.address) as wire:
        assert wire.stats("q").ready_rows == 10


@pytest.mark.parametrize("number", [signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGXCPU])
def test_timers_of_strangers_do_not_end_a_broker(tmp_path: pathlib.Path, number: signal.Signals) -> None:
    with LocalBroker(tmp_path / "data", segment_bytes=32 << 20) as broker:
        os.kill(broker.pid, number)
        wait_until(lambda: f"{number.name} is ignored" in broker.stderr())
        assert broker.running
