"""The pool of empty segment files. They are filled in advance, so that the sync of a turn allocates no
blocks.

A file is written under the name `pool-<k>.new`, synced, and renamed to `pool-<k>.mqj`. Recycled segments get
such a name too and keep their old bytes: a frame from an earlier use has another place in its header, so it
does not count.

The two smallest files are the *reserves*. Rows do not use them, so that state can be written when the disk is
full. State fills the first reserve, and then the second one while snapshots cover the first, which then
returns to the pool. Files for rows start with the size of a reserve; the size doubles with each file that is
taken, up to `segment_bytes`. If the disk has no room for the next size, a smaller file is made.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from typing import Final, NamedTuple

from mq_broker.journal.disk import FULL, Disk, DiskFile, remedy_of, why_full
from mq_broker.journal.settings import JournalSettings
from mq_wire.errors import StorageFailed, StoreFull

_CHUNK: Final = bytes(1 << 20)
#: Number of chunks between two syncs. One sync of a whole file would delay the turns that are written
#: meanwhile.
_STEP_CHUNKS: Final = 8


def pool_name(number: int) -> str:
    """Name of the pool file with this number."""
    return f"pool-{number:010d}.mqj"


class PoolFile(NamedTuple):
    """An empty file of the pool; `size` in bytes."""

    name: str
    size: int


class SegmentPool:
    """Empty files that can become segments. Any thread may call.

    Args:
        disk: the journal's folder.
        settings: `segment_bytes`, `first_bytes`, `pool_segments`, `spare_bytes`, `fill_in_background`.

    Attributes:
        reserve_bytes: size of a reserve, and of the first files for rows.
        spare_bytes: bytes that new files leave free on the disk.
    """

    def __init__(self, disk: Disk, settings: JournalSettings) -> None:
        self._disk = disk
        self._settings = settings
        self.reserve_bytes = min(settings.first_bytes, settings.segment_bytes)
        self.spare_bytes = settings.spare_bytes
        self._reserves = settings.reserves
        self._changed = threading.Condition()
        #: In the order in which they were added.
        self._files: list[PoolFile] = []
        self._next = 0
        #: Size of the next file that is filled for rows.
        self._due_bytes = self.reserve_bytes
        #: Size of the file that `ensure` waits for.
        self._asked_bytes = 0
        #: Number of fills that failed because the disk is full. After one, the filler pauses until `ensure`
        #: asks.
        self._refusals = 0
        self._resting = False
        #: Why the last fill failed, if it was not for lack of bytes.
        self._refused_for = ""
        self._closed = False
        self._failure: OSError | None = None
        self._filler: threading.Thread | None = None

    def start(self) -> None:
        """Takes over the files that an earlier process left, and starts to fill files. The folder is not
        touched before.
        """
        self._find()
        if self._settings.fill_in_background:
            self._filler = threading.Thread(target=self._fill_ahead, name="segment-pool", daemon=True)
            self._filler.start()

    def _find(self) -> None:
        """Takes over the files that an earlier process left: complete ones stay, the smallest first, up to
        the number that is kept ready. All others are removed.
        """
        found = []
        for name in self._disk.list_names():
            if not name.startswith("pool-"):
                continue
            stem, _, suffix = name.removeprefix("pool-").partition(".")
            size = 0
            if suffix == "mqj" and stem.isdecimal():
                self._next = max(self._next, int(stem) + 1)
                content = self._disk.open(name)
                size = content.size()
                content.close()
            found.append(PoolFile(name, size))
        for number, file in enumerate(
            sorted(found, key=lambda file: (file.size < self.reserve_bytes, file.size))
        ):
            if file.size >= self.reserve_bytes and (
                number < self._reserves or (number < self._files_max and file.size == self._due_bytes)
            ):
                self._files.append(file)
            else:
                self._disk.remove(file.name)
        self._files.sort()

    @property
    def _files_max(self) -> int:
        return self._reserves + 2 * self._settings.pool_segments

    def __len__(self) -> int:
        return len(self._files)

    @property
    def is_short(self) -> bool:
        """Whether a reserve is missing and the disk has no room for it."""
        return len(self._files) < self._reserves and (self._resting or self._filler is None)

    def ensure(self, size_bytes: int, left: int) -> bool:
        """Whether a file of at least this size can be taken while `left` files remain. Waits until the file
        is filled, if the disk has room for it. Size 0 only asks whether there are `left` files.

        Raises:
            StorageFailed: a file could not be written, for another reason than a full disk.
        """
        if not size_bytes and len(self._files) >= left:
            return True
        with self._changed:
            refusals = self._refusals
            self._asked_bytes = size_bytes
            if not self._can_take(size_bytes, left):
                self._resting = False
                self._changed.notify_all()
            while not self._can_take(size_bytes, left):
                if self._failure is not None:
                    why = f"{self._failure}: {remedy_of(self._failure)}"
                    raise StorageFailed(f"a segment file could not be filled: {why}") from self._failure
                if self._refusals > refusals or self._closed:
                    if self._closed or not size_bytes or not self._shrink_reserve(left):
                        return False
                    refusals, self._resting = self._refusals, False
                    self._changed.notify_all()
                    continue
                if self._filler is None:
                    self._fill_one()
                else:
                    self._changed.wait()
            self._asked_bytes = 0
            return True

    def _shrink_reserve(self, left: int) -> bool:
        """Removes a large file from the reserves, so that rows get its room. A recycled segment may be a
        reserve that is larger than necessary.

        Returns whether a file was removed. The filler then makes a small reserve in its place. Nothing is
        removed unless there is room for the small reserve and one more file.
        """
        reserves = sorted(self._files, key=lambda file: file.size)[: self._reserves]
        if left < self._reserves or not reserves or reserves[-1].size <= self.reserve_bytes:
            return False
        large = reserves[-1]
        if self._disk.free_bytes() + large.size - self.spare_bytes < 2 * self.reserve_bytes:
            return False
        self._files.remove(large)
        try:
            self._disk.remove(large.name)
        except OSError as error:
            self._failure = error
        return True

    def _can_take(self, size_bytes: int, left: int) -> bool:
        return len(self._files) >= left if not size_bytes else self._choice(size_bytes, left) is not None

    def _choice(self, size_bytes: int, left: int) -> PoolFile | None:
        """Returns the file to take: a file that is no reserve if possible, else the smaller reserve."""
        if len(self._files) <= left:
            return None
        reserves = sorted(self._files, key=lambda file: file.size)[: self._reserves]
        others = [file for file in self._files if file not in reserves]
        candidates = others if left >= self._reserves else [*others, *reserves]
        return next((file for file in candidates if file.size >= size_bytes), None)

    def refusal(self, size_bytes: int) -> StoreFull:
        """Returns the error for a caller whose `ensure` returned False."""
        if self._refused_for:
            return StoreFull(f"no room for another journal segment: {self._refused_for}")
        return StoreFull(
            f"the disk has {self._disk.free_bytes()} bytes free, a journal segment takes "
            f"{max(size_bytes, self.reserve_bytes)} and {self.spare_bytes} stay free for snapshots: "
            "consume and acknowledge, or give the data directory more space"
        )

    def take(self, size_bytes: int, left: int) -> tuple[PoolFile, DiskFile]:
        """Takes a file out of the pool; it keeps its pool name. Call `ensure` with the same arguments
        before.
        """
        with self._changed:
            file = self._choice(size_bytes, left)
            assert file is not None, "no file was ensured"
            self._files.remove(file)
            if left >= self._reserves:
                self._due_bytes = min(2 * self._due_bytes, self._settings.segment_bytes)
            self._resting = False
            self._changed.notify_all()
        return file, self._disk.open(file.name)

    def give(self, name: str, size: int) -> None:
        """Adds a file of this size in bytes to the pool under a new name, or removes it if the pool does not
        need it. The directory is not synced.
        """
        with self._changed:
            is_reserve = size >= self.reserve_bytes and len(self._files) < self._reserves
            if not is_reserve and (size != self._due_bytes or len(self._files) >= self._files_max):
                self._disk.remove(name)
                self._resting = False
                self._changed.notify_all()
                return
            self._next += 1
            new = pool_name(self._next - 1)
        self._disk.rename(name, new)

        with self._changed:
            self._files.append(PoolFile(new, size))
            self._changed.notify_all()

    def give_way(self, wanted: tuple[int, ...], left: int) -> bool:
        """Removes files so that more bytes of the disk are free. The directory is not synced.

        Args:
            wanted: numbers of free bytes; the first one that can be reached is the goal. A number that is
                free already is skipped, since it was not enough. If no number can be reached, one file is
                removed.
            left: number of files that stay.

        Returns:
            Whether any file was removed.
        """
        with self._changed:
            ordered = sorted(self._files, key=lambda file: file.size)[left:]
            free = self._disk.free_bytes()
            most = free + sum(size for _, size in ordered)
            target = next((size for size in (*wanted, free + 1) if free < size <= most), 0)
            if not target:
                return False
            self._resting = True
            while ordered and free < target:
                file = ordered.pop()
                self._files.remove(file)
                self._disk.remove(file.name)
                free += file.size
            return True

    def close(self) -> None:
        """Stops the filler. The next start removes its unfinished file."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._filler is not None:
            self._filler.join()

    def _fill_ahead(self) -> None:
        while True:
            with self._changed:
                while not self._closed and (self._resting or not self._wanted()):
                    self._changed.wait()
                if self._closed or self._failure is not None:
                    return
            self._fill_one()

    def _wanted(self) -> list[int]:
        """Returns the possible sizes of the next file to fill, the best first; empty if no file is needed."""
        ordered = sorted(size for _, size in self._files)
        if len(ordered) < self._reserves:
            return [self.reserve_bytes]
        if self._asked_bytes > max(ordered[self._reserves :], default=0):
            return self._sizes(max(self._asked_bytes, self.reserve_bytes))
        if len(ordered) < self._reserves + self._settings.pool_segments - 1:
            return self._sizes(self.reserve_bytes)
        if ordered[self._reserves - 1] > self.reserve_bytes:
            return [self.reserve_bytes]  # a large file is a reserve, because there was no small one
        return []

    def _sizes(self, least: int) -> list[int]:
        """Returns the next size and its halves, rounded up to pages, down to `least`."""
        size, most, sizes = max(self._due_bytes, least), self._settings.segment_bytes, []
        while size >= least:
            sizes.append(min(-(-size // 4096) * 4096, most))
            size //= 2
        return sizes

    def _fill_one(self) -> None:
        """Fills one file and adds it. Notes a full disk or a failure for `ensure`."""
        with self._changed:
            number = self._next
            self._next += 1
            sizes = self._wanted() or [self._due_bytes]
        aside = pool_name(number).replace(".mqj", ".new")
        try:
            size = self._fill(aside, sizes)
            if size:
                self._disk.rename(aside, pool_name(number))
                self._disk.sync_directory()
        except OSError as error:
            self._give_up(aside, error)
            return
        if size:
            with self._changed:
                self._files.append(PoolFile(pool_name(number), size))
                self._changed.notify_all()

    def _give_up(self, aside: str, error: OSError) -> None:
        """Tells `ensure`, which may be waiting, that the disk is full or has failed."""
        failure: OSError | None = error
        if error.errno in FULL:
            self._refused_for = why_full(error, self._disk)
            try:
                with contextlib.suppress(FileNotFoundError):
                    self._disk.remove(aside)
                failure = None
            except OSError as another:
                failure = another
        with self._changed:
            if failure is None:
                self._refusals += 1
                self._resting = True
            else:
                self._failure = failure
            self._changed.notify_all()

    def _fill(self, name: str, sizes: list[int]) -> int:
        """Writes a file of zeros and syncs it. Returns its size, the first one that there is room for, or 0
        if the pool was closed meanwhile.
        """
        # The free space is checked first: each failing attempt would take the last free bytes from others
        # while it lasts.
        free = self._disk.free_bytes() - self.spare_bytes
        size = next((size for size in sizes if size <= free), 0)
        if not size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
        file = self._disk.create(name)
        try:
            # All blocks are allocated at once: syncs of a growing file take two to four times as long. Then
            # zeros are written: the sync of a turn takes longer when its blocks were never written.
            size = _allocate(file, sizes[sizes.index(size) :])
            step = _STEP_CHUNKS * len(_CHUNK)
            for position in range(0, size, step):
                if self._closed:
                    return 0
                whole, rest = divmod(min(step, size - position), len(_CHUNK))
                file.write_at([_CHUNK] * whole + [_CHUNK[:rest]], position)
                file.sync()
        finally:
            file.close()
        return size


def _allocate(file: DiskFile, sizes: list[int]) -> int:
    """Gives the file the first of these sizes that the system allows; returns that size."""
    for size in sizes:
        try:
            file.allocate(size)
        except OSError as error:
            if error.errno != errno.EFBIG or size == sizes[-1]:
                raise
        else:
            return size
    raise AssertionError("no size was asked for")
