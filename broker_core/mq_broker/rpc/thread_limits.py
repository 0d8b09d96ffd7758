"""How many threads the system lets this process have: the limits that are in force, and which of them is the
tightest.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: Who has one of these may have more threads than `ulimit -u` says.
_EXEMPT_CAPABILITIES: Final = 1 << 21 | 1 << 24  # CAP_SYS_ADMIN, CAP_SYS_RESOURCE
_STATUS: Final = re.compile(r"^(Uid|Threads|CapEff):\s+(\w+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ThreadLimit:
    """One limit.

    Attributes:
        words: which it is, its value and how it is raised, for people.
        limit: threads (the kernel counts processes as threads) that it allows.
        used: how many of them there are now, those of others that it counts too among them.
    """

    words: str
    limit: int
    used: int

    @property
    def left(self) -> int:
        """How many more there may be."""
        return max(0, self.limit - self.used)


def tightest(root: Path = Path("/")) -> ThreadLimit | None:
    """Returns the limit that leaves least; None where the system has none, or does not say.

    Args:
        root: where the file system with /proc and /sys begins.
    """
    return min(_limits(root), key=lambda found: found.left, default=None)


def _limits(root: Path) -> Iterator[ThreadLimit]:
    proc = root / "proc"
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    uid = os.getuid()
    if soft != resource.RLIM_INFINITY and not _is_exempt(proc, uid):
        words = (
            f"user {uid} may have {soft} threads (RLIMIT_NPROC: raise it with `ulimit -u`, or "
            f"LimitNPROC= of the systemd unit)"
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
    """Of this process's control group and of all above it, in either version. systemd's TasksMax= and
    Kubernetes' limits are these.
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
            # In a container the path may be the host's, and only the mount's own top is ours.
            group = mount / path.strip("/")
            for folder in (
                group,
                *(above for above in group.parents if above == mount or mount in above.parents),
            ):
                limit, used = _number(folder / "pids.max"), _number(folder / "pids.current")
                if limit is not None and used is not None:
                    words = (
                        f"its control group may have {limit} threads (pids.max: raise TasksMax= of the "
                        f"systemd unit or the pod's limit)"
                    )
                    yield ThreadLimit(words, limit, used)


def _is_exempt(proc: Path, uid: int) -> bool:
    """Whether `ulimit -u` does not hold for this process: for root, and who may do as much, outside of user
    namespaces.
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
    """What a file says; nothing where it cannot be read, since what the system does not say limits nothing
    here.
    """
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
