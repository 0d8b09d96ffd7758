"""A disk of one's own that can lose its power: an ext4 file system in a file, mounted by loop. Needs root."""

from __future__ import annotations

import fcntl
import functools
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
from types import TracebackType
from typing import Final

#: ioctl EXT4_IOC_SHUTDOWN, and its mode that does not even flush the file system's own journal: as if the
#: power were cut.
_SHUTDOWN: Final = 0x8004587D
_WITHOUT_LOG_FLUSH: Final = struct.pack("I", 2)
#: The file system commits its journal when it is asked to, not behind our back every five seconds.
_OPTIONS: Final = "loop,noatime,commit=300"


class Volume:
    """A mounted ext4 file system. Use in a with block: it is unmounted whatever happens.

    Args:
        folder: where the image and the mount point are made.
        size_bytes: of the image, which is sparse.
    """

    def __init__(self, folder: pathlib.Path, size_bytes: int = 1 << 30) -> None:
        self._image = folder / "volume.img"
        #: Where it is mounted.
        self.path: Final = folder / "volume"
        self.path.mkdir(parents=True)
        with self._image.open("wb") as image:
            image.truncate(size_bytes)
        # Nothing initialised later in the background, nothing kept for root.
        _run(
            "mkfs.ext4",
            "-q",
            "-F",
            "-m",
            "0",
            "-E",
            "lazy_itable_init=0,lazy_journal_init=0",
            str(self._image),
        )

    def mount(self) -> None:
        """Attaches it again, as after a start of the machine: the file system recovers by its own journal."""
        _run("mount", "-o", _OPTIONS, str(self._image), str(self.path))

    def unmount(self) -> None:
        """Detaches it; does nothing where it is not mounted. Nobody may use it any more."""
        if self.path.is_mount():
            _run("umount", str(self.path))

    def cut_power(self) -> None:
        """What was not synced never reaches the disk from here on, and everything that uses it fails. Unmount
        and mount it again.
        """
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, _WITHOUT_LOG_FLUSH)
        finally:
            os.close(descriptor)

    def restart(self) -> None:
        """Unmounts and mounts."""
        self.unmount()
        self.mount()

    def __enter__(self) -> Volume:
        self.mount()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unmount()
        self._image.unlink()


@functools.cache
def why_no_volume() -> str:
    """Says why this machine has no volumes; empty where it has."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs root on Linux, to mount a file system"
    if shutil.which("mkfs.ext4") is None:
        return "needs mkfs.ext4 (e2fsprogs)"
    with tempfile.TemporaryDirectory(prefix="mq-volume-") as folder:
        try:
            with Volume(pathlib.Path(folder), 16 << 20) as volume:
                volume.cut_power()
        except (OSError, RuntimeError) as error:
            return f"needs loop devices and an ext4 with the shutdown ioctl: {error}"
    return ""


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr.strip()}")
