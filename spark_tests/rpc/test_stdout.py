"""A stdout or stderr that is closed, full, or that nobody reads."""

from __future__ import annotations

import pathlib
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from spark_tests.rpc.client import Wire, batch_of, values_of
from spark_tests.support.waiting import wait_until

if TYPE_CHECKING:
    from mq_broker import LocalBroker


def mq(*arguments: str, redirected: str) -> subprocess.CompletedProcess[str]:
    """Runs `mq` as a shell does, with what stands behind the command in its line."""
    line = f"exec {shlex.join([sys.executable, '-m', 'mq_broker.console', *arguments])} {redirected}"
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False)


def is_one_line(done: subprocess.CompletedProcess[str]) -> bool:
    return done.returncode == 1 and len(done.stderr.splitlines()) == 1 and done.stderr.startswith("mq: stdout ")


@pytest.mark.parametrize("redirected", [">&-", "> /dev/full", "| true"])
def test_what_cannot_be_printed_is_not_acknowledged(wire: Wire, module_broker: LocalBroker, queue_name: str, redirected: str) -> None:
    wire.publisher(queue_name).send(batch_of(values_of(10)))
    done = mq("receive", queue_name, "--count", "10", "--broker", module_broker.address, redirected=redirected)
    if redirected.startswith(">"):
        assert is_one_line(done), done
        wait_until(lambda: wire.stats(queue_name).ready_rows == 10)
    else:  # what a pipe has taken counts as written, whether it is read or not
        assert "Traceback" not in done.stderr
        assert len(done.stderr.splitlines()) <= 1


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_what_was_written_before_it_failed_is_acknowledged(
    wire: Wire, module_broker: LocalBroker, queue_name: str, tmp_path: pathlib.Path, unbuffered: str
) -> None:
    wire.publisher(queue_name).send(batch_of([b"x" * 400] * 10))
    arguments = ["receive", queue_name, "--count", "10", "--broker", module_broker.address]
    line = shlex.join([sys.executable, "-m", "mq_broker.console", *arguments])
    limited = f"export PYTHONUNBUFFERED={unbuffered}; ulimit -f 2; exec {line} > {tmp_path / 'received'}"  # blocks of 1024 bytes
    done = subprocess.run(["bash", "-c", limited], capture_output=True, text=True, timeout=60, check=False)
    assert is_one_line(done), done
    whole = [text for text in (tmp_path / "received").read_text().splitlines(True) if len(text) == 401]
    assert 0 < len(whole) < 10
    wait_until(lambda: wire.stats(queue_name).ready_rows == 10 - len(whole))


@pytest.mark.parametrize("redirected", [">&-", "> /dev/full"])
@pytest.mark.parametrize("command", ["queues", "stats", "consumers list", "markers list", "create q-for-nobody", "verify /nowhere"])
def test_no_command_pretends_that_it_said_something(module_broker: LocalBroker, command: str, redirected: str) -> None:
    where = () if command.startswith("verify") else ("--broker", module_broker.address)
    done = mq(*command.split(), *where, redirected=redirected)
    if command.startswith("verify") and "full" in redirected:  # says nothing on stdout
        assert done.returncode == 2
    else:
        assert is_one_line(done), done


def test_closed_files_do_not_become_others(module_broker: LocalBroker, queue_name: str) -> None:
    done = mq("send", queue_name, "--broker", module_broker.address, redirected="<&-")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done
    assert "stdin" in done.stderr
    done = mq("stats", "nobody", "--broker", module_broker.address, redirected="2>&-")
    assert (done.returncode, done.stdout) == (1, ""), "errors are not results"
