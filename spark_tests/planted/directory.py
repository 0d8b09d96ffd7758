"""A data directory that is opened, and something happens to it: nobody else comes in, and who is in
notices.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from pathlib import Path

from mq_broker.journal.directory import DataDirectory
from mq_wire.errors import DataDirectoryInUse, StorageFailed

_FILE = "segment"


def directory_life(seed: int) -> str:
    """One history. Returns what is wrong, "" where nothing is."""
    rng = random.Random(seed)
    folder = Path(tempfile.mkdtemp(prefix="mq-directory-"))
    try:
        return _life(rng, folder / "data", folder / "moved")
    finally:
        shutil.rmtree(folder)


def _life(rng: random.Random, path: Path, moved: Path) -> str:
    with DataDirectory.open(path) as directory:
        file = path / "journal" / _FILE
        file.write_bytes(b"turns")
        directory.check(lambda: _FILE)
        if rng.random() < 0.2:
            os.truncate(file, 3)
            return "" if _is_noticed(directory) else "that a file was cut goes unnoticed"
        lost = path / rng.choice([".", "lock", "journal", "snapshots", f"journal/{_FILE}"])
        is_folder = lost.is_dir()
        lost.rename(moved)
        if lost.name != _FILE and rng.random() < 0.5:
            lost.mkdir() if is_folder else lost.touch()
        where = moved if lost == path else path
        if (where / "identity").exists() and _opens(where):
            return f"without {lost.name} a second process comes in"
        return "" if _is_noticed(directory) else f"that {lost.name} is gone goes unnoticed"


def _is_noticed(directory: DataDirectory) -> bool:
    try:
        directory.check(lambda: _FILE)
    except StorageFailed:
        return True
    return False


def _opens(path: Path) -> bool:
    try:
        DataDirectory.open(path).close()
    except DataDirectoryInUse:
        return False
    return True
