"""The pool of empty segment files: filled ahead of the writer, so that no sync of a turn has to allocate blocks.

A file grows under the name `pool-<k>.new`, is synced, and becomes `pool-<k>.mqj`. Recycled segments come back under such a name too, with
their old bytes: nothing that was written in an earlier use reads as a frame in its place.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from typing import Final

from mq_broker.journal.disk import Disk, DiskFile
from mq_broker.journal.settings import JournalSettings
from mq_wire.errors import StorageFailed, StoreFull

_CHUNK: Final = bytes(1 << 20)
#: Written and synced in steps of so many chunks: one sync of a whole file would hold up the turns of that moment.
_STEP_CHUNKS: Final = 8
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


def pool_name(number: int) -> str:
    """Name of the pool file with this number."""
    return f"pool-{number:010d}.mqj"


class SegmentPool:
    """Empty files of one size, ready to become segments. Any thread may call.

    Args:
        disk: the journal's folder.
        settings: `segment_bytes`, `pool_segments`, `fill_in_background`.
    """

    def __init__(self, disk: Disk, settings: JournalSettings) -> None:
        self._disk = disk
        self._settings = settings
        self._changed = threading.Condition()
        self._names: list[str] = []
        self._next = 0
        #: Fills that failed because the disk is full; the filler rests until `ensure` asks again.
        self._refusals = 0
        self._resting = False
        self._closed = False
        self._failure: OSError | None = None
        self._filler: threading.Thread | None = None

    def start(self) -> None:
        """Takes over the files that an earlier process left, and begins to fill ahead. Until then the folder is not touched."""
        self._find()
        if self._settings.fill_in_background:
            self._filler = threading.Thread(target=self._fill_ahead, name="segment-pool", daemon=True)
            self._filler.start()

    def _find(self) -> None:
        """Takes over what an earlier process left: whole files of the right size stay, the rest goes."""
        for name in self._disk.list_names():
            if not name.startswith("pool-"):
                continue
            stem, _, suffix = name.removeprefix("pool-").partition(".")
            whole = suffix == "mqj" and stem.isdecimal()
            if whole:
                self._next = max(self._next, int(stem) + 1)
                file = self._disk.open(name)
                whole = file.size() == self._settings.segment_bytes
                file.close()
            if whole and len(self._names) < 2 * self._settings.pool_segments:
                self._names.append(name)
            else:
                self._disk.remove(name)

    def __len__(self) -> int:
        return len(self._names)

    def ensure(self, count: int) -> bool:
        """Says whether `count` files are ready; waits for them where the disk has room.

        Raises:
            StorageFailed: a file could not be written for another reason than a full disk.
        """
        if len(self._names) >= count:
            return True
        with self._changed:
            refusals = self._refusals
            self._resting = False
            self._changed.notify_all()
            while len(self._names) < count:
                if self._failure is not None:
                    raise StorageFailed(f"a segment file could not be filled: {self._failure}: check the disk") from self._failure
                if self._refusals > refusals or self._closed:
                    return False
                if self._filler is None:
                    self._fill_one()
                else:
                    self._changed.wait()
            return True

    def refusal(self) -> StoreFull:
        """Returns the error for whoever wanted a file when `ensure` said no."""
        return StoreFull(
            f"the disk has {self._disk.free_bytes()} bytes free, a journal segment takes {self._settings.segment_bytes} "
            f"and {self._settings.spare_bytes} stay free for snapshots: consume and acknowledge, or give the data directory more space"
        )

    def take(self) -> tuple[str, DiskFile]:
        """Takes a file out of the pool, under its pool name; call `ensure(1)` first."""
        with self._changed:
            name = self._names.pop(0)
            self._resting = False
            self._changed.notify_all()
        return name, self._disk.open(name)

    def give(self, name: str, size: int) -> None:
        """Puts a file of this size (bytes) under a pool name, or removes it when it is not needed; the directory is not synced."""
        with self._changed:
            if size != self._settings.segment_bytes or len(self._names) >= 2 * self._settings.pool_segments:
                self._disk.remove(name)
                return
            self._next += 1
            new = pool_name(self._next - 1)
        self._disk.rename(name, new)

        with self._changed:
            self._names.append(new)
            self._changed.notify_all()

    def close(self) -> None:
        """Stops the filler; what it has begun is removed at the next start."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._filler is not None:
            self._filler.join()

    def _fill_ahead(self) -> None:
        while True:
            with self._changed:
                while not self._closed and (self._resting or len(self._names) >= self._settings.pool_segments):
                    self._changed.wait()
                if self._closed or self._failure is not None:
                    return
            self._fill_one()

    def _fill_one(self) -> None:
        """Fills one file and adds it; notes a full disk or a failure for `ensure`."""
        with self._changed:
            number = self._next
            self._next += 1
        aside = pool_name(number).replace(".mqj", ".new")
        try:
            finished = self._fill(aside)
            if finished:
                self._disk.rename(aside, pool_name(number))
                self._disk.sync_directory()
        except OSError as error:
            self._give_up(aside, error)
            return
        if finished:
            with self._changed:
                self._names.append(pool_name(number))
                self._changed.notify_all()

    def _give_up(self, aside: str, error: OSError) -> None:
        """Whoever waits in `ensure` learns that there is no room now, or that the disk has failed."""
        failure: OSError | None = error
        if error.errno in _FULL:
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

    def _fill(self, name: str) -> bool:
        """Writes zeros and syncs; returns False when the pool was closed meanwhile."""
        size = self._settings.segment_bytes
        # Asked first: an attempt that fails would take the last of the room from others as long as it lasts, again and again.
        if self._disk.free_bytes() < size + self._settings.spare_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
        file = self._disk.create(name)
        try:
            # The blocks first, in one go: the syncs of a file that grows are two to four times slower. Then zeros: into blocks that were
            # never written, the sync of a turn is slower.
            file.allocate(size)
            step = _STEP_CHUNKS * len(_CHUNK)
            for position in range(0, size, step):
                if self._closed:
                    return False
                whole, rest = divmod(min(step, size - position), len(_CHUNK))
                file.write_at([_CHUNK] * whole + [_CHUNK[:rest]], position)
                file.sync()
        finally:
            file.close()
        return True
