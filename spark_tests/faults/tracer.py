"""Faults of the operating system, injected by strace into a running process: errors, lies, and signals at the n-th call."""

from __future__ import annotations

import functools
import pathlib
import re
import shutil
import subprocess
import tempfile
from types import TracebackType
from typing import Final

from spark_tests.support.waiting import wait_until

_INJECTED: Final = "(INJECTED)"
_ATTACH_TIMEOUT_S: Final = 30.0


class Tracer:
    """strace on a process and all its threads, from `__enter__` until it or the with block ends.

    Args:
        pid: of the process.
        calls: system calls, such as `fdatasync`.
        fault: what happens instead of the call: `error=EIO`, `retval=0`, or besides it: `signal=SIGKILL`. See strace(1).
        when: which calls: `3`, `2+` (from the second on), `1+5` (every fifth). Each thread counts for itself.
        path: only calls on this file.
    """

    def __init__(self, pid: int, calls: tuple[str, ...], fault: str, when: str = "1+", path: pathlib.Path | None = None) -> None:
        self._pid = pid
        self._log = tempfile.NamedTemporaryFile(prefix="mq-strace-")  # noqa: SIM115 - closed with this
        names = ",".join(calls)
        self._command = ["strace", "-f", "-qq", "-y", "-o", self._log.name]
        self._command += ["-e", f"trace={names}", "-e", f"inject={names}:{fault}:when={when}"]
        self._command += ["-P", str(path)] if path is not None else []
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def hits(self) -> int:
        """How many calls were tampered with so far."""
        return pathlib.Path(self._log.name).read_text(errors="replace").count(_INJECTED)

    @property
    def last_hit(self) -> str:
        """The last call that was tampered with, as strace shows it; empty before."""
        return next((line for line in reversed(self.lines()) if _INJECTED in line), "")

    def lines(self) -> list[str]:
        """The calls so far, with the number of the thread in front."""
        return pathlib.Path(self._log.name).read_text(errors="replace").splitlines()

    def __enter__(self) -> Tracer:
        self._process = subprocess.Popen([*self._command, "-p", str(self._pid)], stdin=subprocess.DEVNULL)
        try:
            wait_until(self._is_attached, _ATTACH_TIMEOUT_S, f"strace did not attach to process {self._pid}")
        except BaseException:
            self.detach()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.detach()
        self._log.close()

    def detach(self) -> None:
        """Lets the process go on by itself."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def _is_attached(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"strace ended with exit code {self._process.returncode}"
        return all(_tracer_of(task) == self._process.pid for task in pathlib.Path(f"/proc/{self._pid}/task").iterdir())


@functools.cache
def why_no_tracer() -> str:
    """Says why this machine has no tracers; empty where it has."""
    if shutil.which("strace") is None:
        return "needs strace"
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        try:
            with Tracer(process.pid, ("fsync",), "error=EIO"):
                return ""
        except AssertionError as error:
            return f"strace may not attach to a process: {error}"
        finally:
            process.kill()


def _tracer_of(task: pathlib.Path) -> int:
    try:
        found = re.search(r"^TracerPid:\s+(\d+)$", (task / "status").read_text(), re.MULTILINE)
    except (FileNotFoundError, ProcessLookupError):
        return -1  # a thread that has just ended; the next look does not find it
    return int(found[1]) if found else 0
