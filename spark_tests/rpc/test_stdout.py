"""A stdout or stderr that is closed, full, or that nobody reads."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from spark_tests.support.waiting import wait_until
from spark_tests.support.wire import Wire, batch_of, values_of

if TYPE_CHECKING:
    from mq_broker import LocalBroker


def mq(*arguments: str, redirected: str) -> subprocess.CompletedProcess[str]:
    """Runs `mq` as a shell does, with what stands behind the command in its line."""
    line = f"exec {shlex.join([sys.executable, '-m', 'mq_broker.console', *arguments])} {redirected}"
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False)


def is_one_line(done: subprocess.CompletedProcess[str]) -> bool:
    return (
        done.returncode == 1 and len(done.stderr.splitlines()) == 1 and done.stderr.startswith("mq: stdout ")
    )


@pytest.mark.parametrize("redirected", [">&-", "> /dev/full", "| true"])
def test_what_cannot_be_printed_is_not_acknowledged(
    wire: Wire, module_broker: LocalBroker, queue_name: str, redirected: str
) -> None:
    wire.publisher(queue_name).send(batch_of(values_of(10)))
    done = mq(
        "receive", queue_name, "--count", "10", "--broker", module_broker.address, redirected=redirected
    )
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
    # blocks of 1024 bytes
    limited = f"export PYTHONUNBUFFERED={unbuffered}; ulimit -f 2; exec {line} > {tmp_path / 'received'}"
    done = subprocess.run(["bash", "-c", limited], capture_output=True, text=True, timeout=60, check=False)
    assert is_one_line(done), done
    whole = [text for text in (tmp_path / "received").read_text().splitlines(True) if len(text) == 401]
    assert 0 < len(whole) < 10
    wait_until(lambda: wire.stats(queue_name).ready_rows == 10 - len(whole))


@pytest.mark.parametrize("redirected", [">&-", "> /dev/full"])
@pytest.mark.parametrize(
    "command", ["queues", "stats", "consumers list", "markers list", "create q-for-nobody", "verify /nowhere"]
)
def test_no_command_pretends_that_it_said_something(
    module_broker: LocalBroker, command: str, redirected: str
) -> None:
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


class Pipe:
    """A pipe that is full, and that nobody reads."""

    def __init__(self) -> None:
        self.read, self.write = os.pipe()
        os.set_blocking(self.write, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(self.write, b"x" * 4096)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(self.write, b"x")
        os.set_blocking(self.write, True)

    def close(self) -> None:
        os.close(self.read)
        os.close(self.write)


def broker(path: pathlib.Path, **files: Any) -> subprocess.Popen[bytes]:
    flags = ["--data-dir", str(path / "broker"), "--port", "0", "--segment-bytes", str(32 << 20)]
    return subprocess.Popen([sys.executable, "-m", "mq_broker.console", "broker", *flags], **files)


@pytest.mark.parametrize("ended_by", ["TERM", "TERM twice", "loss"])
def test_a_stderr_that_nobody_reads_does_not_keep_a_broker_from_ending(
    tmp_path: pathlib.Path, ended_by: str
) -> None:
    pipe = Pipe()
    with contextlib.closing(pipe), broker(tmp_path, stdout=subprocess.PIPE, stderr=pipe.write) as process:
        assert process.stdout is not None
        assert b"mq://" in process.stdout.readline()
        if ended_by == "loss":
            (tmp_path / "broker" / "lock").unlink()
        else:
            for _ in ended_by.split():
                process.terminate()
        try:
            assert process.wait(20) == (70 if ended_by == "loss" else 0)
        finally:
            process.kill()


@pytest.mark.parametrize("kind", ["full", "closed", "read by nobody"])
def test_a_broker_serves_without_a_stdout(tmp_path: pathlib.Path, kind: str) -> None:
    pipe = Pipe()
    if kind == "closed":
        os.close(pipe.read)
        pipe.read = os.open("/dev/null", os.O_RDONLY)
    with (
        contextlib.closing(pipe),
        open("/dev/full", "wb") as full,
        broker(tmp_path, stdout=full if kind == "full" else pipe.write, stderr=subprocess.PIPE) as process,
    ):
        assert process.stderr is not None
        try:
            lines = iter(process.stderr.readline, b"")
            seen = []
            for line in lines:
                seen.append(line)
                if b"INFO the broker is ready" in line:
                    break
            assert b"WARNING the readiness line" in b"".join(seen)
            process.terminate()
            assert process.wait(20) == 0
            assert b"Traceback" not in process.stderr.read()
        finally:
            process.kill()


def test_closed_standard_files_are_no_files_of_the_journal(tmp_path: pathlib.Path) -> None:
    """What gRPC says on stderr would stand in the middle of it."""
    line = shlex.join(
        [
            sys.executable,
            "-m",
            "mq_broker.console",
            "broker",
            "--data-dir",
            str(tmp_path / "broker"),
            "--port",
            "0",
        ]
    )
    with subprocess.Popen(["bash", "-c", f"exec {line} <&- >&- 2>&-"]) as process:
        try:
            wait_until(lambda: (tmp_path / "broker" / "identity.copy").exists(), 30)
            assert {os.readlink(f"/proc/{process.pid}/fd/{number}") for number in range(3)} == {os.devnull}
            process.terminate()
            assert process.wait(20) == 0
        finally:
            process.kill()
