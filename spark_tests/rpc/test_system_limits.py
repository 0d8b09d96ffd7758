"""Limits of the system that a broker is started under: those it can live with, and those that refuse the
start.
"""

from __future__ import annotations

import pathlib
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mq_broker import LocalBroker
from spark_tests.support.wire import Wire, batch_of, values_of


@contextmanager
def limited(limit: str, path: pathlib.Path) -> Iterator[subprocess.Popen[str]]:
    """A broker behind `ulimit`."""
    line = shlex.join(
        [sys.executable, "-m", "mq_broker.console", "broker", "--data-dir", str(path), "--port", "0"]
    )
    shell = ["bash", "-c", f"ulimit {limit}; exec {line}"]
    with subprocess.Popen(shell, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def refusal(limit: str, path: pathlib.Path) -> str:
    """What a broker says that does not start, in one line."""
    with limited(limit, path) as process:
        _, stderr = process.communicate(timeout=30)
    lines = [line for line in stderr.splitlines() if "WARNING" not in line]
    assert process.returncode == 1, stderr
    assert len(lines) == 1, stderr
    assert lines[0].startswith("mq: ")
    return lines[0]


def test_files_that_may_not_be_large(tmp_path: pathlib.Path) -> None:
    with limited(f"-f {12 << 10}", tmp_path / "data") as process:
        assert process.stdout is not None
        with Wire(process.stdout.readline().split()[4]) as wire:
            publisher = wire.publisher("q")
            for _ in range(30):
                assert publisher.send(batch_of([b"x" * 100_000] * 10)).receipt.rows == 10
            assert wire.stats("q").ready_rows == 300
        process.terminate()
        assert process.wait(20) == 0
    assert "ulimit -f" in refusal(f"-f {4 << 10}", tmp_path / "other")
    line = refusal(f"-f {4 << 10}", tmp_path / "data")
    assert str(tmp_path / "data" / "journal") in line
    assert "ulimit -f" in line


def test_few_open_files(tmp_path: pathlib.Path) -> None:
    assert "ulimit -n" in refusal("-n 200", tmp_path / "data")
    assert not (tmp_path / "data").exists()
    with limited("-n 300", tmp_path / "data") as process:
        assert process.stderr is not None
        warning = next(line for line in process.stderr if "WARNING" in line and "ulimit -n" in line)
        assert "44 connections" in warning
        assert "300" in warning


def test_enough_open_files_are_not_mentioned(tmp_path: pathlib.Path) -> None:
    with LocalBroker(tmp_path / "data", connections_max=10) as broker, Wire(broker.address) as wire:
        assert wire.publisher("q").send(batch_of(values_of(1))).receipt.rows == 1
        assert "ulimit" not in broker.stderr()


#: A broker that may have so many threads, or whose thread of this name the system refuses.
STARTED = """
    import sys, threading
    from mq_broker import process
    from mq_broker.console.main import main
    from mq_broker.rpc.thread_limits import ThreadLimit

    allowed, refused = {allowed}, {refused!r}
    process.tightest = lambda: ThreadLimit(f"this user may have {{allowed}} threads", allowed, 3)
    start = threading.Thread.start

    def start_unless_refused(thread):
        if thread.name == refused:
            raise RuntimeError("can't start new thread")
        start(thread)

    threading.Thread.start = start_unless_refused
    sys.exit(main(["broker", "--port", "0", "--log-level", "error", "--data-dir", sys.argv[1]]))
"""


def start_with(path: pathlib.Path, allowed: int, refused: str) -> str:
    code = textwrap.dedent(STARTED).format(allowed=allowed, refused=refused)
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return done.stderr


def test_too_few_threads_are_told_before_anything_is_made(tmp_path: pathlib.Path) -> None:
    told = start_with(tmp_path / "data", 5, "")
    assert "mq: a broker needs at least 80 threads, and this user may have 5 threads, of which 3 are" in told
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("name", ["mq-log", "mq-engine", "mq-directory"])
def test_a_thread_that_the_system_refuses_is_one_line(tmp_path: pathlib.Path, name: str) -> None:
    told = start_with(tmp_path / "data", 10_000, name)
    assert "mq: the system gives this process no more threads: raise its limits (ulimit -u" in told
