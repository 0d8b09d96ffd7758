"""A disk in memory, with the interface of `mq_broker.journal.disk.RealDisk`. In a simulated crash it keeps
only what a real disk promises to keep.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Crash(BaseException):
    """A simulated power cut. Every later call of the disk raises it too. It is no `Exception`, so that
    `except Exception` does not catch it.
    """


class _Content:
    """The bytes of a file: as programs see them, as the medium has them, and the unsynced versions of each
    sector.
    """

    def __init__(self, durable: bytes = b"") -> None:
        self.live = bytearray(durable)
        self.durable = durable
        self.versions: dict[int, list[bytes]] = {}

    def copy(self) -> _Content:
        """Returns a file with the bytes that programs see, all of them durable."""
        return _Content(bytes(self.live))

    def flush(self, sector_bytes: int) -> None:
        """Writes the dirty sectors to the medium. Sectors that count as clean after a failed sync are never
        written again.
        """
        medium = bytearray(self.durable.ljust(len(self.live), b"\0"))
        for sector, versions in self.versions.items():
            start = sector * sector_bytes
            medium[start : start + len(versions[-1])] = versions[-1]
        self.durable = bytes(medium)
        self.versions.clear()


class MemoryDisk:
    """A `Disk` in memory.

    Args:
        sector_bytes: number of bytes that are written as a whole or not at all, 512 or 4096.
        capacity_bytes: a write that makes the files larger than this together raises ENOSPC; None = no limit.
        rng: decides what a failing sync leaves on the medium.

    Attributes:
        hook: called at every step that changes the disk, with the kind of step (create, allocate, write,
            sync, rename, remove, sync_directory), the file's name and the number of steps so far. It may
            raise OSError, which fails the step, or `Crash`, which ends everything. A failing write leaves
            some of its first sectors behind, as an interrupted write does. A failing sync behaves as on
            Linux: each sector may be on the medium or not, and counts as clean from then on.
        beside: another folder of the same device; its files count towards the same capacity.
        steps: number of steps so far.
        syncs: number of file syncs so far.
    """

    def __init__(
        self, sector_bytes: int = 512, capacity_bytes: int | None = None, rng: random.Random | None = None
    ) -> None:
        self.sector_bytes = sector_bytes
        self.capacity_bytes = capacity_bytes
        self.beside: MemoryDisk | None = None
        self.hook: Callable[[str, str, int], None] | None = None
        self.steps = 0
        self.syncs = 0
        self._random = rng or random.Random(0)
        self._crashed = False
        self._names: dict[str, _Content] = {}
        self._durable_names: dict[str, _Content] = {}
        self._changes: list[Callable[[dict[str, _Content]], None]] = []

    def create(self, name: str) -> MemoryFile:
        self._step("create", name)
        if name in self._names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        content = _Content()
        self._change(lambda names: names.__setitem__(name, content))
        return MemoryFile(self, content)

    def open(self, name: str) -> MemoryFile:
        if self._crashed:
            raise Crash(name)
        try:
            return MemoryFile(self, self._names[name])
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name) from None

    def list_names(self) -> list[str]:
        return sorted(self._names)

    def rename(self, old: str, new: str) -> None:
        self._step("rename", old)

        def move(names: dict[str, _Content]) -> None:
            if old in names:  # otherwise its creation was lost
                names[new] = names.pop(old)

        if old not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), old)
        self._change(move)

    def remove(self, name: str) -> None:
        self._step("remove", name)
        if name not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)

        def drop(names: dict[str, _Content]) -> None:
            names.pop(name, None)

        self._change(drop)

    def sync_directory(self) -> None:
        self._step("sync_directory", "")
        self._durable_names = dict(self._names)
        self._changes.clear()

    def used_bytes(self) -> int:
        """Returns the size of all files in bytes."""
        return sum(len(content.live) for content in self._names.values())

    def free_bytes(self) -> int:
        used = self.used_bytes() + (self.beside.used_bytes() if self.beside is not None else 0)
        return max(0, (1 << 40 if self.capacity_bytes is None else self.capacity_bytes) - used)

    def crash(self, rng: random.Random) -> MemoryDisk:
        """Returns a disk as a power cut at this moment might leave it. This disk is not changed.

        Each unsynced sector has its old bytes or those of any write since. Each unsynced change of a name
        happened or not.
        """
        survivor = MemoryDisk(self.sector_bytes, self.capacity_bytes, random.Random(rng.random()))
        names = dict(self._durable_names)
        for change in self._changes:
            if rng.random() < 0.5:
                change(names)
        copies: dict[int, _Content] = {}
        for name, content in names.items():
            survivor._names[name] = copies.setdefault(id(content), self._copy_after_crash(content, rng))
        survivor._durable_names = dict(survivor._names)
        return survivor

    def _copy_after_crash(self, content: _Content, rng: random.Random) -> _Content:
        return _Content(self._settled(content, rng))

    def copy(self) -> MemoryDisk:
        """Returns another disk with the same files, all of them durable, and without a hook."""
        other = MemoryDisk(self.sector_bytes, self.capacity_bytes, random.Random(0))
        other._names = {name: content.copy() for name, content in self._names.items()}
        other._durable_names = dict(other._names)
        return other

    def reopen(self) -> MemoryDisk:
        """Returns the disk as another process sees it after this one died: caches and names are the same, and
        nothing more is durable.
        """
        other = MemoryDisk(self.sector_bytes, self.capacity_bytes, self._random)
        other._names, other._durable_names, other._changes = self._names, self._durable_names, self._changes
        return other

    def flip(self, name: str, position: int, mask: int = 1) -> None:
        """Damages one byte of a file, in cache and on the medium."""
        content = self._names[name]
        content.live[position] ^= mask
        durable = bytearray(content.durable)
        if position < len(durable):
            durable[position] ^= mask
        content.durable = bytes(durable)

    def _settled(self, content: _Content, rng: random.Random) -> bytes:
        """Returns possible bytes of the medium: each unsynced sector was written or not, and the file may
        have grown in part.
        """
        grown = sorted((len(content.durable), len(content.live)))
        size = rng.choice((*grown, rng.randint(*grown)))
        medium = bytearray(content.durable[:size].ljust(size, b"\0"))
        for sector, versions in content.versions.items():
            start = sector * self.sector_bytes
            old = bytes(medium[start : start + self.sector_bytes])
            chosen = rng.choice([old, *versions])
            if start < size:
                medium[start : start + self.sector_bytes] = chosen[: size - start]
        return bytes(medium)

    def _name_of(self, content: _Content) -> str:
        return next((name for name, other in self._names.items() if other is content), "")

    def _change(self, change: Callable[[dict[str, _Content]], None]) -> None:
        change(self._names)
        self._changes.append(change)

    def _step(self, step: str, name: str) -> None:
        if self._crashed:
            raise Crash(f"{step} {name}")
        self.steps += 1
        if self.hook is not None:
            try:
                self.hook(step, name, self.steps)
            except Crash:
                self._crashed = True
                raise


class MemoryFile:
    """A `DiskFile` of a `MemoryDisk`."""

    def __init__(self, disk: MemoryDisk, content: _Content) -> None:
        self._disk = disk
        self._content = content

    def write_at(self, buffers: Sequence[Buffer], position: int) -> None:
        disk, content = self._disk, self._content
        data = b"".join(buffers)
        free = disk.free_bytes()
        if position + len(data) - len(content.live) > free:
            self._put(data[: disk._random.randint(0, max(0, len(content.live) + free - position))], position)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        try:
            disk._step("write", disk._name_of(content))
        except BaseException:
            self._put(
                data[: disk._random.randint(0, -(-len(data) // disk.sector_bytes)) * disk.sector_bytes],
                position,
            )
            raise
        self._put(data, position)

    def _put(self, data: bytes, position: int) -> None:
        if not data:
            return
        content, sector_bytes = self._content, self._disk.sector_bytes
        end = position + len(data)
        growth = end - len(content.live)
        if growth > 0:
            content.live.extend(bytes(growth))
        content.live[position:end] = data
        for sector in range(position // sector_bytes, -(-end // sector_bytes)):
            start = sector * sector_bytes
            content.versions.setdefault(sector, []).append(bytes(content.live[start : start + sector_bytes]))

    def read_at(self, position: int, size: int) -> bytes:
        return bytes(self._content.live[position : position + size])

    def allocate(self, size: int) -> None:
        if size > self._disk.free_bytes():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._content.live.extend(bytes(size - len(self._content.live)))
        self._disk._step("allocate", self._disk._name_of(self._content))

    def map(self) -> memoryview:
        return memoryview(self._content.live).toreadonly()

    def sync(self) -> None:
        content = self._content
        try:
            self._disk._step("sync", self._disk._name_of(content))
        except OSError:
            content.durable = self._disk._settled(content, self._disk._random)
            content.versions.clear()
            raise
        self._disk.syncs += 1
        content.flush(self._disk.sector_bytes)

    def size(self) -> int:
        return len(self._content.live)

    def close(self) -> None:
        """Nothing to do."""


def crash_at(step: int) -> Callable[[str, str, int], None]:
    """Returns a hook that cuts the power at the n-th step."""

    def hook(_: str, name: str, steps: int) -> None:
        if steps >= step:
            raise Crash(f"step {steps}, {name}")

    return hook


def fail_at(
    what: str, count: int, number: int = errno.EIO, within: str = ""
) -> Callable[[str, str, int], None]:
    """Returns a hook that fails the n-th step of one kind (such as "sync").

    Args:
        what: kind of step.
        count: which step of this kind fails, from 1.
        number: errno of the error.
        within: counts only steps on files whose names contain this.
    """
    seen = 0

    def hook(kind: str, name: str, _: int) -> None:
        nonlocal seen
        if kind == what and within in name:
            seen += 1
            if seen == count:
                raise OSError(number, os.strerror(number), name)

    return hook
