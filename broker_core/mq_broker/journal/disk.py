"""The interface between the journal and the operating system. It includes durability, so that tests can
simulate crashes.

The journal relies only on this:

- Bytes are durable once `DiskFile.sync` has returned. Before that, each sector may be lost or kept, in any
  order.
- After a failed `sync`, a later one may succeed although the bytes are not on the disk: Linux marks the pages
  as clean and serves them from its cache.
- A name is durable once `Disk.sync_directory` has returned. `rename` is atomic: the file has the old name or
  the new one.

`RealDisk` is the operating system. Tests use `mq_broker.testing.memory_disk.MemoryDisk`.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import pwd
import resource
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from mq_wire.errors import DataDirectoryUnusable

if TYPE_CHECKING:
    from typing_extensions import Buffer

SECTOR_BYTES_SMALL: Final = 512
SECTOR_BYTES_LARGE: Final = 4096
#: Buffers that one `pwritev` takes: IOV_MAX of Linux and macOS.
BUFFERS_MAX: Final = 1024
#: Advice for `madvise`, in Linux 5.14 and later: reads pages in and returns an error if that fails.
_MADV_POPULATE_READ: Final = 22
#: Error numbers for lack of room: on the disk, in the user's quota, or below the limit on file sizes (`ulimit
#: -f`).
FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: Suffixes of our files: segments and their pool, manifests, packs.
_SUFFIXES: Final = (".mqj", ".mqm", ".mqk")
_GIVE_BACK: Final = "give it to the user that the broker runs as (chown, chmod u+rw)"
_REMEDIES: Final = {
    errno.EACCES: _GIVE_BACK,
    errno.EPERM: _GIVE_BACK,
    errno.EROFS: "mount it so that it can be written",
    errno.EISDIR: "a folder stands in the place of a file: move it away and put the file back, "
    "or let `mq repair` do without it",
}
_RESCUE: Final = (
    "the device cannot read it: copy it to another disk with ddrescue, then `mq verify` shows what is lost"
)
#: `fcntl` command of macOS that syncs to the medium. `fsync` of macOS only reaches the cache of the drive.
_F_FULLFSYNC: Final = 51


class DiskFile(Protocol):
    """One open file."""

    def write_at(self, buffers: Sequence[Buffer], position: int) -> None:
        """Writes all buffers one after the other from `position` (bytes) on, or raises OSError."""

    def read_at(self, position: int, size: int) -> bytes:
        """Returns up to `size` bytes from `position` on; fewer only at the end of the file."""

    def allocate(self, size: int) -> None:
        """Gives an empty file this size in bytes, filled with zeros. Raises OSError (ENOSPC) if the file
        system knows that there is no room.
        """

    def map(self) -> memoryview:
        """Returns the whole file as a read-only memory map, which also shows later writes and stays valid
        after `close`.
        """

    def sync(self) -> None:
        """Makes content and size durable."""

    def size(self) -> int:
        """Returns the size in bytes."""

    def close(self) -> None:
        """Closes the file; maps of it stay valid."""


class Disk(Protocol):
    """One flat folder of files."""

    #: Number of bytes that the device writes as a whole or not at all: 512 or 4096.
    sector_bytes: int

    def create(self, name: str) -> DiskFile:
        """Creates an empty file; raises FileExistsError when there is one."""

    def open(self, name: str) -> DiskFile:
        """Opens a file for reading and writing; raises FileNotFoundError."""

    def list_names(self) -> list[str]:
        """Returns the names of all files, sorted."""

    def rename(self, old: str, new: str) -> None:
        """Gives a file another name. A file that has that name is replaced."""

    def remove(self, name: str) -> None:
        """Removes a name; maps of the file stay valid."""

    def sync_directory(self) -> None:
        """Makes all creations, renames and removals so far durable."""

    def free_bytes(self) -> int:
        """Returns how many bytes can still be allocated."""


class RealFile:
    """A `DiskFile` of the operating system."""

    __slots__ = ("_descriptor", "_path")

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor = descriptor
        self._path = path

    def write_at(self, buffers: Sequence[Buffer], position: int) -> None:
        for start in range(0, len(buffers), BUFFERS_MAX):
            position = self._write_all(buffers[start : start + BUFFERS_MAX], position)

    def _write_all(self, buffers: Sequence[Buffer], position: int) -> int:
        written = os.pwritev(self._descriptor, buffers, position)
        position += written
        rest = sum(memoryview(buffer).nbytes for buffer in buffers) - written
        if rest:  # short write: the disk is nearly full, a signal came, or there are more than 2 GiB
            views = [memoryview(buffer).cast("B") for buffer in buffers]
            while views:
                if written >= views[0].nbytes:
                    written -= views.pop(0).nbytes
                    continue
                views[0] = views[0][written:]
                written = os.pwritev(self._descriptor, views, position)
                position += written
        return position

    def read_at(self, position: int, size: int) -> bytes:
        chunks = []
        while size > 0:
            try:
                chunk = os.pread(self._descriptor, size, position)
            except OSError as error:
                raise self._named(error) from None
            if not chunk:
                break
            chunks.append(chunk)
            position += len(chunk)
            size -= len(chunk)
        return b"".join(chunks)

    def allocate(self, size: int) -> None:
        if sys.platform == "darwin":
            os.ftruncate(self._descriptor, size)
        else:
            os.posix_fallocate(self._descriptor, 0, size)

    def map(self) -> memoryview:
        if not self.size():
            return memoryview(b"")  # the operating system cannot map an empty file
        try:
            return memoryview(mmap.mmap(self._descriptor, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ))
        except OSError as error:
            raise self._named(error) from None

    def _named(self, error: OSError) -> OSError:
        """Returns the error with the name of the file, which the system gives only when a file is opened."""
        return OSError(error.errno, error.strerror, str(self._path))

    def sync(self) -> None:
        if sys.platform == "darwin":
            import fcntl

            fcntl.fcntl(self._descriptor, _F_FULLFSYNC)
        else:
            os.fdatasync(self._descriptor)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class RealDisk:
    """A `Disk` in an existing folder of the operating system.

    Args:
        path: the folder; created with its parents if it is missing.
        like: file whose owner and mode new files get, so that the broker's user can read what root has
            written. If None or missing, new files get the system's defaults.
        read_only: nothing is created or changed; calls that would do so raise OSError.
    """

    def __init__(
        self, path: str | os.PathLike[str], like: Path | None = None, *, read_only: bool = False
    ) -> None:
        self.path = Path(path)
        self._like, self._read_only = like, read_only
        if not read_only:
            self.path.mkdir(parents=True, exist_ok=True)
        self.sector_bytes = sector_bytes_of(self.path)

    def create(self, name: str) -> RealFile:
        self._check_writable(name)
        descriptor = os.open(self.path / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        if self._like is not None:
            belong_as(descriptor, self._like)
        return RealFile(descriptor, self.path / name)

    def open(self, name: str) -> RealFile:
        mode = os.O_RDONLY if self._read_only else os.O_RDWR
        return RealFile(os.open(self.path / name, mode | os.O_CLOEXEC), self.path / name)

    def list_names(self) -> list[str]:
        # A folder with the name of a file is listed too: opening it is an error, while a file that is not
        # listed would count as missing.
        return sorted(
            entry.name for entry in os.scandir(self.path) if entry.is_file() or entry.name.endswith(_SUFFIXES)
        )

    def rename(self, old: str, new: str) -> None:
        self._check_writable(old)
        os.rename(self.path / old, self.path / new)

    def remove(self, name: str) -> None:
        self._check_writable(name)
        os.unlink(self.path / name)

    def _check_writable(self, name: str) -> None:
        if self._read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self.path / name))

    def sync_directory(self) -> None:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def free_bytes(self) -> int:
        status = os.statvfs(self.path)
        return status.f_bavail * status.f_frsize

    def free_files(self) -> int:
        """Returns how many files can still be made, or 1 if the file system does not count them."""
        status = os.statvfs(self.path)
        return status.f_favail if status.f_files else 1


def why_full(error: OSError, disk: Disk) -> str:
    """Returns the cause and the remedy for the message of a StoreFull, or "" if the disk lacks bytes. ENOSPC
    may also mean that there are no inodes.
    """
    if error.errno == errno.EFBIG:
        limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        size = "" if limit == resource.RLIM_INFINITY else f" of {limit} bytes"
        return (
            f"a file would be larger than this process or file system allows: raise the limit{size} "
            "(ulimit -f, LimitFSIZE=)"
        )
    if error.errno == errno.EDQUOT:
        return "the disk quota of this user is used up: consume and acknowledge, or raise the quota"
    if isinstance(disk, RealDisk) and not disk.free_files():
        return (
            "the file system has no inodes left: remove files, "
            "or give the data directory a file system of its own"
        )
    return ""


def belong_as(made: int | Path, like: Path) -> None:
    """Gives a new file (by descriptor) or folder (by path) the mode of the file `like`, and also its owner if
    this process is root.
    """
    try:
        known = like.stat()
    except FileNotFoundError:
        return
    now, mode = os.stat(made), stat.S_IMODE(known.st_mode) | stat.S_IRUSR | stat.S_IWUSR
    if os.geteuid() == 0 and (now.st_uid, now.st_gid) != (known.st_uid, known.st_gid):
        os.chown(made, known.st_uid, known.st_gid)
    if stat.S_IMODE(now.st_mode) != mode:
        os.chmod(made, mode)


@contextlib.contextmanager
def told_if_unreadable() -> Iterator[None]:
    """Context for code that reads a data directory: turns OSError into an error with the file and the remedy.

    Raises:
        DataDirectoryUnusable: instead of OSError.
    """
    try:
        yield
    except OSError as error:
        remedy = remedy_of(error, "check the disk, or restore the file from a copy", is_reading=True)
        raise DataDirectoryUnusable(
            f"{error.filename or 'data directory'} cannot be read ({error.strerror}): {remedy}"
        ) from error


def remedy_of(error: OSError, otherwise: str = "check the disk", *, is_reading: bool = False) -> str:
    """Returns the remedy for a file that could not be read or written, or `otherwise` for an error without a
    known remedy.
    """
    if is_reading and error.errno == errno.EIO:
        return _RESCUE
    remedy = _REMEDIES.get(error.errno or 0, otherwise)
    if remedy is not _GIVE_BACK or not isinstance(error.filename, str):
        return remedy
    path = Path(error.filename)
    with contextlib.suppress(OSError, KeyError):  # a user without a name
        while not path.exists():
            path = path.parent  # the folder in which it could not be made
        return (
            f"{path} belongs to {path.owner()}, and the broker runs as "
            f"{pwd.getpwuid(os.geteuid()).pw_name}: {remedy}"
        )
    return remedy


def read_in(view: memoryview, start: int, size: int) -> None:
    """Lets the operating system read `size` bytes of a map from the device now, if it supports that.

    Bytes that cannot be read are an error here. Otherwise the process would be killed (SIGBUS) on the first
    access to them.

    Raises:
        OSError: the device could not read the bytes, or the file has become shorter.
    """
    mapped = view.obj
    if sys.platform != "linux" or not isinstance(mapped, mmap.mmap):
        return
    first, end = start - start % mmap.PAGESIZE, min(start + size, len(mapped))
    if end <= first:
        return
    try:
        mapped.madvise(_MADV_POPULATE_READ, first, end - first)
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise  # out of memory; the bytes are readable
        if error.errno != errno.EINVAL:  # before Linux 5.14
            raise OSError(errno.EIO, "it cannot be read from the device") from error


def sector_bytes_of(path: Path) -> int:
    """Returns the number of bytes that the device below `path` writes atomically: 512 or 4096, and 4096 if
    unknown.

    It is the physical size, not the logical one: a drive with emulated 512-byte sectors rewrites 4096 bytes
    at a time.
    """
    device = path.stat().st_dev
    block = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    for folder in (block, block.parent):  # the folder `queue` of a partition is that of its disk
        size_file = folder / "queue" / "physical_block_size"
        if size_file.is_file():
            return (
                SECTOR_BYTES_SMALL if int(size_file.read_text()) <= SECTOR_BYTES_SMALL else SECTOR_BYTES_LARGE
            )
    return SECTOR_BYTES_LARGE
