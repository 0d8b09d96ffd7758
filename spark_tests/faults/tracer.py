"""Faults of the operating system, injected by strace into a process: errors, lies, and signals at the n-th
call.
"""

from __future__ import annotations

import functools
import pathlib
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from mq_broker import LocalBroker
from spark_tests.support.waiting import wait_until

_INJECTED: Final = "(INJECTED)"
_ATTACH_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True)
class Injection:
    """What strace does to a process.

    Args:
        calls: system calls, such as `fdatasync`.
        fault: what happens instead of the call: `error=EIO`, `retval=0`, or besides it: `signal=SIGKILL`. See
            strace(1).
        when: which calls: `3`, `2+` (from the second on), `1+5` (every fifth). Each thread counts for itself.
    """

    calls: tuple[str, ...]
    fault: str
    when: str = "1+"

    def __str__(self) -> str:
        return f"{self.fault} at {','.join(self.calls)} {self.when}"

    def flags(self, log: str) -> list[str]:
        names = ",".join(self.calls)
        # -y shows the path of each descriptor. Threads of processes that the traced one starts are traced,
        # too.
        return [
            "-f",
            "-qq",
            "-y",
            "-o",
            log,
            "-e",
            f"trace={names}",
            "-e",
            f"inject={names}:{self.fault}:when={self.when}",
        ]


class CallLog:
    """What strace saw. Closed with its with block."""

    def __init__(self) -> None:
        self._file = tempfile.NamedTemporaryFile(prefix="mq-strace-")  # noqa: SIM115 - closed with this
        self.name: Final = self._file.name

    def lines(self) -> list[str]:
        """The calls so far, with the number of the thread in front."""
        return pathlib.Path(self.name).read_text(errors="replace").splitlines()

    @property
    def hits(self) -> list[str]:
        """Those that were tampered with."""
        return [line for line in self.lines() if _INJECTED in line]

    def close(self) -> None:
        self._file.close()


class Tracer:
    """strace on a running process and all its threads, from `__enter__` until either ends."""

    def __init__(self, pid: int, injection: Injection) -> None:
        self._pid, self._injection = pid, injection
        self.log: Final = CallLog()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Tracer:
        command = ["strace", *self._injection.flags(self.log.name), "-p", str(self._pid)]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_until(self._is_attached, _ATTACH_TIMEOUT_S, f"strace did not attach to process {self._pid}")
        except BaseException:
            self.detach()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()
        self.log.close()

    def detach(self) -> None:
        """Lets the process go on by itself."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def _is_attached(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            # It ends with the process, which may have been at the very first call.
            assert _has_ended(self._pid), (
                f"strace ended with exit code {self._process.returncode}, and process {self._pid} did not"
            )
            return True
        return all(
            _tracer_of(task) == self._process.pid
            for task in pathlib.Path(f"/proc/{self._pid}/task").iterdir()
        )


class TracedBroker(LocalBroker):
    """A local broker whose next starts happen under an injection, where one is set."""

    injection: Injection | None = None
    log: CallLog | None = None

    def _command(self) -> list[str]:
        if self.injection is None:
            return super()._command()
        if self.log is not None:
            self.log.close()
        self.log = CallLog()
        # -D: strace is the grandchild, the broker the child, whose process id, pipes and exit code are ours.
        return ["strace", "-D", *self.injection.flags(self.log.name), *super()._command()]


@functools.cache
def why_no_tracer() -> str:
    """Says why this machine has no tracers; empty where it has."""
    if shutil.which("strace") is None:
        return "needs strace"
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        try:
            with Tracer(process.pid, Injection(("fsync",), "error=EIO")):
                return ""
        except AssertionError as error:
            return f"strace may not attach to a process: {error}"
        finally:
            process.kill()


def _has_ended(pid: int) -> bool:
    """Also where nobody has asked for its exit code yet."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def _tracer_of(task: pathlib.Path) -> int:
    try:
        found = re.search(r"^TracerPid:\s+(\d+)$", (task / "status").read_text(), re.MULTILINE)
    except (FileNotFoundError, ProcessLookupError):
        return -1  # a thread that has just ended; the next look does not find it
    return int(found[1]) if found else 0
