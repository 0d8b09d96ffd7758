"""Memory of this process: how much it has, and how it is given back to the system."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any, Final

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
#: `mallopt` of the GNU C library: freed blocks from this size on go back to the system, and so much may stay
#: free at the end of a heap. Left alone it raises the first limit to the largest block that was ever freed,
#: up to 32 MiB, and the second to twice that: requests of 8 MB on ten threads then leave hundreds of
#: megabytes behind. Limits of 2 MiB cost a third of the speed of consumers.
_MMAP_THRESHOLD: Final = (-3, 4 << 20)
_TRIM_THRESHOLD: Final = (-1, 8 << 20)
#: Heaps that threads share: each keeps its end. By itself the library makes eight for each core.
_ARENAS_MAX: Final = (-8, 4)


def anonymous_bytes() -> int:
    """Memory of this process without mapped files, in bytes; 0 where the system does not say."""
    try:
        _, resident, shared, *_ = Path("/proc/self/statm").read_bytes().split()
    except OSError:
        return 0
    return (int(resident) - int(shared)) * _PAGE


def keep_little() -> None:
    """Has the C library keep little of what is freed; where it can. For the start of a process."""
    mallopt = _of_c("mallopt")
    if mallopt is not None:
        for what, size in (_MMAP_THRESHOLD, _TRIM_THRESHOLD, _ARENAS_MAX):
            mallopt(what, size)


def give_back() -> None:
    """Gives back what is free between blocks that are in use; where the C library can."""
    trim = _of_c("malloc_trim")
    if trim is not None:
        trim(0)


def _of_c(name: str) -> Any:
    return getattr(ctypes.CDLL(None), name, None)
