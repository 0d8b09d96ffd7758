"""The data directory of one broker: who it belongs to, and the lock that keeps a second process out.

identity        JSON: format, uuids of cluster and journal, whether creation is finished, checksum
identity.copy   the same again: a broker without its uuids is nobody's
lock            held with flock as long as the broker runs, together with this folder and `journal/`; holds
its process id journal/        segments and their pool
snapshots/      packs and manifests
quarantine/     what `mq repair` took out, a folder with a report for each time
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

#: What is written from now on. A directory of format 1 opens for ever: its identity becomes 2 before anything
#: else is written, since programs that know 1 alone would read the rest and leave out what they do not know.
FORMAT_VERSION: Final = 2
_FORMATS: Final = (1, FORMAT_VERSION)
_IDENTITY: Final = "identity"
_COPY: Final = "identity.copy"
_REMEDY: Final = "`mq repair` puts it right, or restore it from a copy"
#: What may stand in a folder that we make our own: the remains of an unfinished attempt, and what mkfs puts
#: there.
_OURS: Final = frozenset({LOCK, f"{_IDENTITY}.new", "lost+found"})


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a data directory belongs to. `created` is False until its first journal is durable."""

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
    """Of a format that this program does not know."""


class Files(NamedTuple):
    """What the identity file and its copy say; None where one does not read."""

    identity: Identity | None
    copy: Identity | None


def decode_identity(data: bytes, path: Path) -> Identity:
    """Reads an identity file; raises DataDirectoryUnusable when it is damaged or of another version."""
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
        return Identity(UUID(content["cluster"]), UUID(content["journal"]), bool(content["created"]), version)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataDirectoryUnusable(f"{path} is not an identity file ({error!r}): {_REMEDY}") from error


def _checksum(content: dict[str, object]) -> int:
    return crc32(json.dumps(content, sort_keys=True).encode())


class DataDirectory:
    """An opened, locked data directory. A context manager; `close` releases the lock.

    Attributes:
        path: of the folder.
        identity: cluster and journal uuid.
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
        self.journal_disk = RealDisk(path / "journal", path / _IDENTITY, read_only=read_only)
        self.snapshot_disk = RealDisk(path / "snapshots", path / _IDENTITY, read_only=read_only)
        for held in (self.journal_disk, self.snapshot_disk):
            lock.hold_folder(held.path)

    @classmethod
    def open(cls, path: str | os.PathLike[str], new_uuid: Callable[[], UUID] = uuid4) -> DataDirectory:
        """Opens the data directory, making it when the folder is missing or empty.

        `identity.created` tells whether there is a journal: if not, make one and call `finish`.

        Raises:
            DataDirectoryInUse: another process holds it.
            DataDirectoryUnusable: not ours, of another version, damaged, or not to be written.
            StoreFull, StorageFailed: making it failed.
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
                _check_ours(folder)  # again: whoever held the lock a moment ago may have made it
                if (folder / _IDENTITY).exists():
                    identity = decode_identity((folder / _IDENTITY).read_bytes(), folder / _IDENTITY)
                    _check_copy(folder, identity)
                else:
                    identity = Identity(new_uuid(), new_uuid(), created=False)
                directory = cls(folder, identity, disk, lock)
                _check_sizes(directory.journal_disk.path)
                directory.upgrade()
                return directory
        except BaseException:
            lock.close()
            raise

    @classmethod
    def open_damaged(cls, path: str | os.PathLike[str], *, read_only: bool = False) -> DataDirectory:
        """Opens a directory that is there, to look at it or to repair it; one file of the identity is enough.

        Args:
            path: of the folder.
            read_only: nothing is made or changed, not even the lock file; whoever may read the files may
                look.

        Raises:
            DataDirectoryInUse: a broker is running on it: stop it first.
            DataDirectoryUnusable: there is no data directory, nobody can tell whose it is, or it is of a
                newer format.
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
                    f"nothing else can: "
                    "restore one of them from a copy"
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
        """Brings identity and copy to the format that is written from now on; what is right already is left
        alone.

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
        """Notes that the journal is made. From now on a missing journal is damage, never a new beginning."""
        self.journal_disk.sync_directory()
        self.identity = replace(self.identity, created=True, format=FORMAT_VERSION)
        _write_identity(self._disk, self.identity)

    def aside(self) -> RealDisk:
        """Makes the next folder for what a repair takes out; returns it."""
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
        """Looks whether the directory is still the one that was opened, and has the file of the journal whose
        name `in_hand` says.

        Raises:
            StorageFailed: it is not, or has not.
        """
        self._lock.check()
        path = self.journal_disk.path / in_hand()
        if not path.exists() and path.name == in_hand():
            raise StorageFailed(
                f"{path} was removed under the running broker: restore the data directory from a copy"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def identity_files(folder: Path) -> Files:
    """Reads the identity and its copy.

    Raises:
        DataDirectoryUnusable: one of them is of a format that this program does not know, so the other may be
            older than the journal.
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
    """Returns the identity that two files say together: a creation that one of them knows to be finished was,
    and likewise the format.
    """
    known = [identity for identity in files if identity is not None]
    return max(known, key=lambda identity: (identity.created, identity.format), default=None)


def _check_copy(folder: Path, identity: Identity) -> None:
    """Refuses an identity older than its copy: the journal would be made anew over what is there.

    Formats may differ: then an upgrade broke off.
    """
    copy = identity_files(folder).copy
    if copy is not None and (
        copy.created > identity.created
        or (copy.cluster, copy.journal) != (identity.cluster, identity.journal)
    ):
        raise DataDirectoryUnusable(
            f"{folder / _IDENTITY} is older than {_COPY}, or another directory's: {_REMEDY}"
        )


def _check_ours(folder: Path) -> None:
    names = set(os.listdir(folder))
    if _IDENTITY not in names and _COPY in names:
        raise DataDirectoryUnusable(f"{folder / _IDENTITY} is missing: {_REMEDY}")
    if _IDENTITY not in names and names - _OURS:
        example = sorted(names - _OURS)[0]
        raise DataDirectoryUnusable(
            f"{folder} is not empty (it has {example!r}) and has no identity file: it is not a data "
            f"directory; choose an empty folder"
        )


def _check_sizes(journal: Path) -> None:
    """Refuses what a limit on the size of files would have fail in the middle of a turn."""
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    for path in journal.iterdir() if limit != resource.RLIM_INFINITY else ():
        size = path.stat().st_size
        if size > limit:
            raise DataDirectoryUnusable(
                f"{path} has {size} bytes, and this process may write files of {limit} bytes at most: "
                f"raise the limit "
                "(ulimit -f, LimitFSIZE=)"
            )


def _write_identity(disk: RealDisk, identity: Identity) -> None:
    """Writes the identity, then its copy, so that the copy is never ahead."""
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
    """Writes both files where they stand, one after the other: where the disk is full. A sector is written as
    a whole or not at all.
    """
    for name in (_IDENTITY, _COPY):
        file = disk.open(name)
        try:
            # Blanks at the end say nothing: the file never becomes shorter than what stands in it.
            file.write_at([identity.encode().ljust(file.size())], 0)
            file.sync()
        except OSError as error:
            raise StorageFailed(
                f"{disk.path / name} could not be written: {error}: {remedy_of(error)}"
            ) from error
        finally:
            file.close()
