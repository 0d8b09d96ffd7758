"""The lock on a data directory: one process at a time, and only while the directory is the one it opened.

Locked are the folder, its subfolders, and the file `lock`, the only one that version 0.1.0 locks. The file
alone would not do: somebody may remove it, and the next process makes and locks a new one. A folder is
removed only with the data.
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
#: Seconds between two checks that the directory is still there.
LOOK_S: Final = 1.0


class DirectoryLock:
    """The locks on one data directory, until `close`."""

    def __init__(self, folder: Path, *, is_shared: bool) -> None:
        self._folder = folder
        self._how = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
        #: Locked folders and files, with their open descriptors.
        self._held: dict[Path, int] = {}

    @classmethod
    def take(cls, folder: Path, like: Path | None, *, read_only: bool = False) -> Self:
        """Locks the folder, then the file.

        Args:
            folder: the data directory; it exists.
            like: file whose owner and mode a new lock file gets.
            read_only: the lock is shared with other readers; no file is made or written.

        Raises:
            DataDirectoryInUse: another process has locked the folder or the file.
            OSError: the folder or the file cannot be opened.
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
        """Locks another folder. On a file system that cannot lock folders (NFS), only the lock file protects.

        Raises:
            DataDirectoryInUse: another process has locked the folder.
            OSError: the folder cannot be opened.
        """
        self._held[folder] = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            self._lock(folder)

    def _hold_file(self, path: Path, like: Path | None, *, read_only: bool) -> None:
        is_new = not path.exists()
        if is_new and read_only:
            return  # no broker was ever here, or somebody removed the file; the folder is locked
        flags = os.O_RDONLY if read_only else os.O_RDWR | os.O_CREAT
        self._held[path] = descriptor = os.open(path, flags | os.O_CLOEXEC, 0o640)
        if is_new and like is not None:
            belong_as(descriptor, like)
        self._lock(path)
        if not read_only:
            with contextlib.suppress(OSError):  # on a full disk the file has no process id
                os.pwrite(descriptor, f"{os.getpid():<31}\n".encode(), 0)

    def _lock(self, path: Path) -> None:
        try:
            fcntl.flock(self._held[path], self._how | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            raise DataDirectoryInUse(
                f"data directory {self._folder} is in use by process {self._holder()}: stop that broker, "
                "or choose another directory with --data-dir"
            ) from None

    def _holder(self) -> str:
        try:
            return (self._folder / LOCK).read_bytes()[:32].decode(errors="replace").strip() or "unknown"
        except OSError:
            return "unknown"

    def check(self) -> None:
        """Checks that each locked folder and file is still the one under its name.

        Raises:
            StorageFailed: one was removed or replaced. No later start would find what is written from now on.
        """
        for path, descriptor in list(self._held.items()):
            try:
                is_same = os.path.samestat(path.stat(), os.fstat(descriptor))
                reason = "something else stands in its place"
            except OSError as error:
                is_same, reason = False, f"{error.strerror}"
            if not is_same and path.name == LOCK:  # its folder was looked at before
                raise StorageFailed(
                    f"{path} was removed or replaced while the broker was running ({reason}), so another "
                    "broker could open the directory too. Nothing else is missing: start the broker again"
                )
            if not is_same:
                raise StorageFailed(
                    f"{path} is no longer what this broker opened ({reason}): it was removed, moved or "
                    "unmounted while the broker was running. Everything acknowledged is in the directory "
                    f"that was there before: put it back at {self._folder}, then start the broker"
                )

    def close(self) -> None:
        """Releases all locks."""
        held, self._held = self._held, {}
        for descriptor in held.values():
            os.close(descriptor)


class DirectoryWatch:
    """A thread that checks every second that the data directory is still there. Writes into removed files
    succeed, so nothing else would notice.

    Args:
        check: raises MqError if the directory is gone.
        on_failure: called once with that error.
    """

    def __init__(self, check: Callable[[], None], on_failure: Callable[[BaseException], None]) -> None:
        self._check, self._on_failure = check, on_failure
        self._stopped = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._run, name="mq-directory", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        # The thread is not joined: it may hang on a device that is gone.
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._check()
            except MqError as error:
                if not self._stopped.is_set():
                    self._on_failure(error)
                return
            self._stopped.wait(LOOK_S)
