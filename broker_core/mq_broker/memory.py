"""The memory of this process: its size, and returning free memory to the system."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
#: Options of `mallopt` in the GNU C library: the size from which freed blocks return to the system, and the
#: free bytes that may stay at the end of a heap. By default the library raises the first limit to the largest
#: block that was ever freed, up to 32 MiB, and the second one to twice that. Requests of 8 MB on ten threads
#: then leave hundreds of megabytes behind. With limits of 2 MiB, consumers were slower by a third.
_MMAP_THRESHOLD: Final = (-3, 4 << 20)
_TRIM_THRESHOLD: Final = (-1, 8 << 20)
#: Most heaps of all threads; each keeps its free end. The default is eight for each core.
_ARENAS_MAX: Final = (-8, 4)


def anonymous_bytes() -> int:
    """Returns the memory of this process without mapped files, in bytes; 0 if the system does not tell it."""
    try:
        _, resident, shared, *_ = Path("/proc/self/statm").read_bytes().split()
    except OSError:
        return 0
    return (int(resident) - int(shared)) * _PAGE


def keep_little() -> None:
    """Makes the C library keep little freed memory, if it supports that, and Arrow take its memory from
    there. Call it at the start of a process, before Arrow is used.

    Arrow's own pool, mimalloc, has a heap for each thread. What it holds stays when the thread ends: 100
    consumers that connect, get large deliveries and leave cost 300 MiB for ever. The C library's pool needs
    no more processor time.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    mallopt = _of_c("mallopt")
    if mallopt is not None:
        for what, size in (_MMAP_THRESHOLD, _TRIM_THRESHOLD, _ARENAS_MAX):
            mallopt(what, size)


def give_back() -> None:
    """Returns free memory between used blocks to the system, if the C library supports that."""
    trim = _of_c("malloc_trim")
    if trim is not None:
        trim(0)


def _of_c(name: str) -> Any:
    return getattr(ctypes.CDLL(None), name, None)
