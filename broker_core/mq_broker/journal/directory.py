"""The data directory of one broker: its identity, its folders, and the lock against a second process.

identity        JSON: format, uuids of cluster and journal, whether creation is finished, checksum
identity.copy   a copy of it: without the uuids no other file can be read
lock            locked with flock while the broker runs, as are the folders; contains the process id
journal/        segments and their pool
snapshots/      packs and manifests
quarantine/     files that `mq repair` took out: one folder for each repair, with a report
"""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self
from uuid import UUID, uuid4

from mq_broker.journal.disk import FULL, RealDisk, belong_as, remedy_of, told_if_unreadable, why_full
from mq_broker.journal.lock import LOCK, DirectoryLock
from mq_wire.checksum import crc32
from mq_wire.errors import DataDirectoryUnusable, StorageFailed, StoreFull

#: The format that is written. Directories of older formats open for ever. Their identity is changed to the
#: newest before anything else is written: a program that knows only an older one would read the rest and skip
#: what it does not know.
FORMAT_VERSION: Final = 3
_FORMATS: Final = tuple(range(1, FORMAT_VERSION + 1))
_KEYS: Final = frozenset(("cluster", "created", "format", "journal"))
_IDENTITY: Final = "identity"
_COPY: Final = "identity.copy"
_REMEDY: Final = "`mq repair` puts it right, or restore it from a copy"
#: Files that a new data directory may contain: remains of an unfinished attempt, and what mkfs makes.
_OURS: Final = frozenset({LOCK, f"{_IDENTITY}.new", "lost+found"})


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a data directory. `created` is False until its first journal is durable."""

    cluster: UUID
    journal: UUID
    created: bool
    format: int = FORMAT_VERSION

    def encode(self) -> bytes:
        """Returns the content of the identity file."""
        content = {
            "cluster": str(self.cluster),
            "created": self.created,
            "format": self.format,
            "journal": str(self.journal),
        }
        return (json.dumps(content | {"checksum": _checksum(content)}, sort_keys=True) + "\n").encode()


class _Unknown(DataDirectoryUnusable):
    """The identity has a format that this program does not know."""


class Files(NamedTuple):
    """The contents of the identity file and of its copy; None for a file that cannot be read."""

    identity: Identity | None
    copy: Identity | None


def decode_identity(data: bytes, path: Path) -> Identity:
    """Reads an identity file. Raises DataDirectoryUnusable if it is damaged or has an unknown format."""
    try:
        content = json.loads(data)
        version = content["format"]
        if version not in _FORMATS:
            raise _Unknown(
                f"{path} has format {version!r}, this program knows {_FORMATS[0]} to {FORMAT_VERSION}: "
                "start the version of mq broker that wrote it, or a newer one"
            )
        checksum = content.pop("checksum")
        if checksum != _checksum(content):
            raise DataDirectoryUnusable(f"{path}: the checksum is wrong: {_REMEDY}")
        if content.keys() - _KEYS:
            raise _Unknown(
                f"{path} has {', '.join(sorted(content.keys() - _KEYS))}, which this program does not know: "
                "start the version of mq broker that wrote it, or a newer one"
            )
        return Identity(UUID(content["cluster"]), UUID(content["journal"]), bool(content["created"]), version)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataDirectoryUnusable(f"{path} is not an identity file ({error!r}): {_REMEDY}") from error


def _checksum(content: dict[str, object]) -> int:
    return crc32(json.dumps(content, sort_keys=True).encode())


class DataDirectory:
    """An opened, locked data directory. A context manager; `close` releases the lock.

    Attributes:
        path: the folder.
        identity: uuids of cluster and journal.
        journal_disk: folder for the journal.
        snapshot_disk: folder for the snapshots.
    """

    def __init__(
        self, path: Path, identity: Identity, disk: RealDisk, lock: DirectoryLock, *, read_only: bool = False
    ) -> None:
        self.path = path
        self.identity = identity
        self._disk = disk
        self._lock = lock
        #: The journal file that `check` saw last, and its size.
        self._seen = ("", 0)
        self.journal_disk = RealDisk(path / "journal", path / _IDENTITY, read_only=read_only)
        self.snapshot_disk = RealDisk(path / "snapshots", path / _IDENTITY, read_only=read_only)
        for held in (self.journal_disk, self.snapshot_disk):
            lock.hold_folder(held.path)

    @classmethod
    def open(cls, path: str | os.PathLike[str], new_uuid: Callable[[], UUID] = uuid4) -> DataDirectory:
        """Opens the data directory. Makes it if the folder is missing or empty.

        If `identity.created` is False, there is no journal: make one and call `finish`. Otherwise call
        `upgrade` once everything was read, and before anything new is written: a start that is refused leaves
        the directory to the version that it is of.

        Raises:
            DataDirectoryInUse: another process uses it.
            DataDirectoryUnusable: it is no data directory, has an unknown format, is damaged, or cannot be
                written.
            StoreFull, StorageFailed: it could not be made.
        """
        folder = Path(path).absolute()
        try:
            disk = RealDisk(folder, folder / _IDENTITY)
            _check_ours(folder)
            lock = DirectoryLock.take(folder, folder / _IDENTITY)
        except OSError as error:
            raise DataDirectoryUnusable(
                f"data directory {folder} cannot be used: {error.filename}: {error.strerror}: "
                f"{remedy_of(error, 'check the path and its owner')}, or choose another with --data-dir"
            ) from error
        try:
            with told_if_unreadable():
                _check_ours(folder)  # again: the last holder of the lock may have made the directory
                if (folder / _IDENTITY).exists():
                    identity = decode_identity((folder / _IDENTITY).read_bytes(), folder / _IDENTITY)
                    _check_copy(folder, identity)
                else:
                    identity = Identity(new_uuid(), new_uuid(), created=False)
                directory = cls(folder, identity, disk, lock)
                _check_sizes(directory.journal_disk.path)
                if not identity.created:
                    directory.upgrade()
                return directory
        except BaseException:
            lock.close()
            raise

    @classmethod
    def open_damaged(cls, path: str | os.PathLike[str], *, read_only: bool = False) -> DataDirectory:
        """Opens an existing directory, to inspect or repair it. Either the identity file or its copy is
        enough.

        Args:
            path: the folder.
            read_only: nothing is made or changed, not even the lock file. Read permission is enough.

        Raises:
            DataDirectoryInUse: a broker is running on it: stop it first.
            DataDirectoryUnusable: it is no data directory, its identity cannot be read, or it has a newer
                format.
        """
        folder = Path(path).absolute()
        if not (folder / "journal").is_dir() or not (folder / "snapshots").is_dir():
            raise DataDirectoryUnusable(
                f"{folder} is no data directory: it has no folders 'journal' and 'snapshots'"
            )
        try:
            lock = DirectoryLock.take(folder, folder / _IDENTITY, read_only=read_only)
        except OSError as error:
            why = (
                f"{error.filename}: {error.strerror}: {remedy_of(error, 'check its owner', is_reading=True)}"
            )
            raise DataDirectoryUnusable(f"data directory {folder} cannot be used: {why}") from error
        try:
            with told_if_unreadable():
                known = whose(identity_files(folder))
            if known is None:
                raise DataDirectoryUnusable(
                    f"{folder}: neither {_IDENTITY} nor {_COPY} can be read, and without the uuids in them "
                    "nothing else can: restore one of them from a copy"
                )
            return cls(
                folder,
                known,
                RealDisk(folder, folder / _IDENTITY, read_only=read_only),
                lock,
                read_only=read_only,
            )
        except BaseException:
            lock.close()
            raise

    def upgrade(self) -> None:
        """Writes identity and copy in the current format, if they are not in it already.

        Raises:
            StoreFull, StorageFailed: a write failed; the next start tries again.
        """
        self.identity = replace(self.identity, format=FORMAT_VERSION)
        files = identity_files(self.path)
        if files == (self.identity, self.identity):
            return
        try:
            _write_identity(self._disk, self.identity)
        except StoreFull:
            if None in files:
                raise
            _overwrite_identity(self._disk, self.identity)

    def finish(self) -> None:
        """Records that the journal is made. From now on a missing journal is damage, and no new one is
        made.
        """
        self.journal_disk.sync_directory()
        self.identity = replace(self.identity, created=True, format=FORMAT_VERSION)
        _write_identity(self._disk, self.identity)

    def aside(self) -> RealDisk:
        """Makes the next folder in `quarantine/`, for the files that a repair takes out. Returns it."""
        quarantine = self.path / "quarantine"
        new = [] if quarantine.is_dir() else [quarantine]
        quarantine.mkdir(exist_ok=True)
        taken = [int(entry.name) for entry in os.scandir(quarantine) if entry.name.isdecimal()]
        made = RealDisk(quarantine / str(max(taken, default=0) + 1), self.path / _IDENTITY)
        for path in (*new, made.path):
            belong_as(path, self.journal_disk.path)
        for folder in (RealDisk(quarantine), self._disk):
            folder.sync_directory()
        return made

    def close(self) -> None:
        """Releases the lock."""
        self._lock.close()

    def check(self, in_hand: Callable[[], str]) -> None:
        """Checks that the directory is still the one that was opened, and that the journal file named by
        `in_hand` exists and has not become shorter. `in_hand` is called again if the file is missing, since
        the journal may have begun a new file.

        Raises:
            StorageFailed: the directory or the file was removed or replaced, or the file was cut.
        """
        self._lock.check()
        path = self.journal_disk.path / in_hand()
        try:
            size = path.stat().st_size
        except OSError:
            if path.name != in_hand():
                return
            raise StorageFailed(
                f"{path} was removed while the broker was running: restore the data directory from a copy"
            ) from None
        name, before = self._seen
        if path.name == name and size < before:
            raise StorageFailed(
                f"{path} was cut from {before} to {size} bytes while the broker was running: "
                "`mq verify` tells what is lost; restore the data directory from a copy, or use `mq repair`"
            )
        self._seen = path.name, size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def identity_files(folder: Path) -> Files:
    """Reads the identity and its copy.

    Raises:
        DataDirectoryUnusable: one of them has a format that this program does not know. The other one may
            then be older than the journal.
    """
    found: list[Identity | None] = []
    for name in (_IDENTITY, _COPY):
        try:
            found.append(decode_identity((folder / name).read_bytes(), folder / name))
        except _Unknown:
            raise
        except (FileNotFoundError, DataDirectoryUnusable):
            found.append(None)
    return Files(*found)


def whose(files: Files) -> Identity | None:
    """Returns the newer identity of the two files: the one whose creation is finished, or with the higher
    format. None if neither file can be read.
    """
    known = [identity for identity in files if identity is not None]
    return max(known, key=lambda identity: (identity.created, identity.format), default=None)


def _check_copy(folder: Path, identity: Identity) -> None:
    """Refuses an identity that is older than its copy. With an old identity, a new journal would replace the
    existing one.

    The formats may differ: then an upgrade was interrupted.
    """
    copy = identity_files(folder).copy
    if copy is not None and (
        copy.created > identity.created
        or (copy.cluster, copy.journal) != (identity.cluster, identity.journal)
    ):
        raise DataDirectoryUnusable(
            f"{folder / _IDENTITY} is older than {_COPY}, or belongs to another directory: {_REMEDY}"
        )


def _check_ours(folder: Path) -> None:
    names = set(os.listdir(folder))
    if _IDENTITY not in names and _COPY in names:
        raise DataDirectoryUnusable(f"{folder / _IDENTITY} is missing: {_REMEDY}")
    if _IDENTITY not in names and names - _OURS:
        example = sorted(names - _OURS)[0]
        raise DataDirectoryUnusable(
            f"{folder} is not empty (it has {example!r}) and has no identity file: "
            "it is not a data directory; choose an empty folder"
        )


def _check_sizes(journal: Path) -> None:
    """Refuses a journal with files above the process's limit on file sizes: writes would fail within a
    turn.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    for path in journal.iterdir() if limit != resource.RLIM_INFINITY else ():
        size = path.stat().st_size
        if size > limit:
            raise DataDirectoryUnusable(
                f"{path} has {size} bytes, and this process may write files of {limit} bytes at most: "
                "raise the limit (ulimit -f, LimitFSIZE=)"
            )


def _write_identity(disk: RealDisk, identity: Identity) -> None:
    """Writes the identity, then its copy, so that the copy is never newer."""
    aside = f"{_IDENTITY}.new"
    try:
        for name in (_IDENTITY, _COPY):
            if aside in disk.list_names():
                disk.remove(aside)
            file = disk.create(aside)
            try:
                file.write_at([identity.encode()], 0)
                file.sync()
            finally:
                file.close()
            disk.rename(aside, name)
            disk.sync_directory()
    except OSError as error:
        if error.errno in FULL:
            reason = why_full(error, disk) or "give the data directory more space"
            raise StoreFull(f"no room for {disk.path / _IDENTITY}: {reason}") from error
        raise StorageFailed(
            f"{disk.path / _IDENTITY} could not be written: {error}: {remedy_of(error)}"
        ) from error


def _overwrite_identity(disk: RealDisk, identity: Identity) -> None:
    """Overwrites both files in place, one after the other, when the disk is full. This is safe because each
    file is smaller than a sector, which is written as a whole or not at all.
    """
    for name in (_IDENTITY, _COPY):
        file = disk.open(name)
        try:
            # The new content may be shorter than the old one: blanks at the end overwrite the rest.
            file.write_at([identity.encode().ljust(file.size())], 0)
            file.sync()
        except OSError as error:
            raise StorageFailed(
                f"{disk.path / name} could not be written: {error}: {remedy_of(error)}"
            ) from error
        finally:
            file.close()
