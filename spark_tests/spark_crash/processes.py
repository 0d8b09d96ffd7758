"""Which process is at the other end of a connection, and the end of whole process trees. Reads /proc: Linux
only.
"""

from __future__ import annotations

import os
import pathlib
import signal
from collections.abc import Iterator
from contextlib import suppress


def process_of(port: int, server_port: int) -> int | None:
    """Returns the process whose TCP connection goes from `port` to `server_port`, both on this machine; None
    where it is gone.
    """
    inodes = set()
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        for line in pathlib.Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if (
                int(fields[1].rpartition(":")[2], 16) == port
                and int(fields[2].rpartition(":")[2], 16) == server_port
            ):
                inodes.add(f"socket:[{fields[9]}]")
    for pid in _processes():
        with suppress(OSError):
            if any(os.readlink(file) in inodes for file in pathlib.Path(f"/proc/{pid}/fd").iterdir()):
                return pid
    return None


def parent_of(pid: int) -> int:
    """Returns the parent process."""
    return int(_stat(pid)[1])


def in_session(session: int) -> list[int]:
    """Returns the living processes of a session: Spark's Python workers leave the driver's process group, but
    not its session.
    """
    found = []
    for pid in _processes():
        with suppress(OSError):
            state, _, _, of = _stat(pid)[:4]
            if int(of) == session and state not in "ZX":
                found.append(pid)
    return found


def kill(pid: int) -> None:
    """Ends a process with SIGKILL; one that is gone already is no error."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_session(session: int) -> None:
    """Ends all processes of a session, as the end of their machine does."""
    for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first, none of them sees another one die
        for pid in in_session(session):
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def _processes() -> Iterator[int]:
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            yield int(entry.name)


def _stat(pid: int) -> list[str]:
    """Returns the fields behind the program's name: state, parent, process group, session ..."""
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
