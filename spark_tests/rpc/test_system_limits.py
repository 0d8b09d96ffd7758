"""Limits of the system that a broker is started under: those it can live with, and those that refuse the
start.
"""

from __future__ import annotations

import pathlib
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

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
