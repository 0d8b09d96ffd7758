"""Who holds a data directory: one process at a time, and only as long as it is still the directory that this
process opened.

Held are the folder itself, those in it, and the file `lock`, which 0.1.0 knows alone. A file is easily
removed, and then made anew by the next who comes; a folder goes only together with the data.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

from mq_broker.journal.disk import belong_as
from mq_wire.errors import DataDirectoryInUse, MqError, StorageFailed

LOCK: Final = "lock"
#: It is looked so often whether the directory is still there.
LOOK_S: Final = 1.0


class DirectoryLock:
    """The locks on one data directory, until `close`."""

    def __init__(self, folder: Path, *, is_shared: bool) -> None:
        self._folder = folder
        self._how = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
        #: What is held, with the descriptor that it was opened with.
        self._held: dict[Path, int] = {}

    @classmethod
    def take(cls, folder: Path, like: Path | None, *, read_only: bool = False) -> Self:
        """Locks the folder, then the file.

        Args:
            folder: that exists.
            like: whose owner and mode a new lock file gets.
            read_only: no file is made, and none written; others may look as well.

        Raises:
            DataDirectoryInUse: another process holds one of them.
            OSError: one of them cannot be opened.
        """
        lock = cls(folder, is_shared=read_only)
        try:
            lock.hold_folder(folder)
            lock._hold_file(folder / LOCK, like, read_only=read_only)
        except BaseException:
            lock.close()
            raise
        return lock

    def hold_folder(self, folder: Path) -> None:
        """Locks a folder as well. Where the file system cannot do that with folders (NFS), the file has to
        do.

        Raises: as `take`.
        """
        self._held[folder] = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            self._lock(folder)

    def _hold_file(self, path: Path, like: Path | None, *, read_only: bool) -> None:
        is_new = not path.exists()
        if is_new and read_only:
            return  # no broker was ever here, or somebody removed it: the folder is held
        flags = os.O_RDONLY if read_only else os.O_RDWR | os.O_CREAT
        self._held[path] = descriptor = os.open(path, flags | os.O_CLOEXEC, 0o640)
        if is_new and like is not None:
            belong_as(descriptor, like)
        self._lock(path)
        if not read_only:
            with contextlib.suppress(OSError):  # no room: whoever wants to know the process does without
                os.pwrite(descriptor, f"{os.getpid():<31}\n".encode(), 0)

    def _lock(self, path: Path) -> None:
        try:
            fcntl.flock(self._held[path], self._how | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            raise DataDirectoryInUse(
                f"data directory {self._folder} is in use by process {self._holder()}: stop that broker, "
                f"or choose another directory with "
                "--data-dir"
            ) from None

    def _holder(self) -> str:
        try:
            return (self._folder / LOCK).read_bytes()[:32].decode(errors="replace").strip() or "unknown"
        except OSError:
            return "unknown"

    def check(self) -> None:
        """Looks whether everything that is held is still what stands under its name.

        Raises:
            StorageFailed: it is not: what is written now, no start would find.
        """
        for path, descriptor in list(self._held.items()):
            try:
                is_same = os.path.samestat(path.stat(), os.fstat(descriptor))
                reason = "something else stands in its place"
            except OSError as error:
                is_same, reason = False, f"{error.strerror}"
            if not is_same:
                raise StorageFailed(
                    f"{path} is no longer what this broker opened ({reason}): it was removed, moved or "
                    f"unmounted under the running broker. "
                    f"What was acknowledged is in what it was: put it back at {self._folder}, then start "
                    f"the broker"
                )

    def close(self) -> None:
        """Releases what is held."""
        held, self._held = self._held, {}
        for descriptor in held.values():
            os.close(descriptor)


class DirectoryWatch:
    """Looks every second, on a thread of its own, whether the data directory is still there: writes into
    removed files succeed for ever.

    Args:
        check: raises where it is not.
        on_failure: is told, once.
    """

    def __init__(self, check: Callable[[], None], on_failure: Callable[[BaseException], None]) -> None:
        self._check, self._on_failure = check, on_failure
        self._stopped = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._run, name="mq-directory", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        # Without waiting for the thread: it may be held up by a device that is gone.
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(LOOK_S):
            try:
                self._check()
            except MqError as error:
                if not self._stopped.is_set():
                    self._on_failure(error)
                return
