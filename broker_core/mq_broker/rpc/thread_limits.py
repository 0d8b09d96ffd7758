"""The limits of the system on the number of threads of this process, and the tightest of them."""

from __future__ import annotations

import contextlib
import os
import re
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: A process with one of these capabilities is not bound by `ulimit -u`.
_EXEMPT_CAPABILITIES: Final = 1 << 21 | 1 << 24  # CAP_SYS_ADMIN, CAP_SYS_RESOURCE
_STATUS: Final = re.compile(r"^(Uid|Threads|CapEff):\s+(\w+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ThreadLimit:
    """One limit.

    Attributes:
        words: name and value of the limit and how to raise it, for messages.
        limit: most threads; processes count as threads.
        used: current number of threads, including those of other processes that the limit counts.
    """

    words: str
    limit: int
    used: int

    @property
    def left(self) -> int:
        """Number of threads that can still be made."""
        return max(0, self.limit - self.used)


def tightest(root: Path = Path("/")) -> ThreadLimit | None:
    """Returns the limit that leaves the fewest threads; None if the system has no limit, or does not tell.

    Args:
        root: folder that has /proc and /sys.
    """
    return min(_limits(root), key=lambda found: found.left, default=None)


def _limits(root: Path) -> Iterator[ThreadLimit]:
    proc = root / "proc"
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    uid = os.getuid()
    if soft != resource.RLIM_INFINITY and not _is_exempt(proc, uid):
        words = (
            f"user {uid} may have {soft} threads (RLIMIT_NPROC: raise it with `ulimit -u`, "
            "or LimitNPROC= of the systemd unit)"
        )
        yield ThreadLimit(words, soft, _threads_of_user(proc, uid))
    yield from _cgroup_limits(root)
    words = "the system may have {} threads (kernel.threads-max and kernel.pid_max: raise them with `sysctl`)"
    running = _text(proc / "loadavg").split()
    for name in ("threads-max", "pid_max"):
        limit = _number(proc / "sys" / "kernel" / name)
        if limit is not None and len(running) > 3:
            yield ThreadLimit(words.format(limit), limit, int(running[3].rpartition("/")[2]))


def _cgroup_limits(root: Path) -> Iterator[ThreadLimit]:
    """Yields the limits of this process's control group and of all groups above it, in version 1 and 2.
    TasksMax= of systemd and the limits of Kubernetes are such limits.
    """
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "pids"):
            continue
        mounts = (
            [root / "sys/fs/cgroup/pids"]
            if controllers
            else [root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified"]
        )
        for mount in mounts:
            # In a container the path may be that of the host; then only the top of the mount is ours.
            group = mount / path.strip("/")
            for folder in (
                group,
                *(above for above in group.parents if above == mount or mount in above.parents),
            ):
                limit, used = _number(folder / "pids.max"), _number(folder / "pids.current")
                if limit is not None and used is not None:
                    words = (
                        f"its control group may have {limit} threads "
                        "(pids.max: raise TasksMax= of the systemd unit or the pod's limit)"
                    )
                    yield ThreadLimit(words, limit, used)


def _is_exempt(proc: Path, uid: int) -> bool:
    """Whether `ulimit -u` does not bind this process. It does not bind root and processes with certain
    capabilities, unless they are in a user namespace.
    """
    if _text(proc / "self/uid_map").split() != ["0", "0", "4294967295"]:
        return False
    effective = dict(_STATUS.findall(_text(proc / "self/status"))).get("CapEff", "0")
    return uid == 0 or bool(int(effective, 16) & _EXEMPT_CAPABILITIES)


def _threads_of_user(proc: Path, uid: int) -> int:
    count = 0
    with contextlib.suppress(OSError):
        for process in proc.iterdir():
            if process.name.isdecimal():
                status = dict(_STATUS.findall(_text(process / "status")))
                count += int(status.get("Threads", 0)) if status.get("Uid") == str(uid) else 0
    return count


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _text(path: Path) -> str:
    """Returns the content of a file, or "" if it cannot be read: then its limit is not known."""
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
