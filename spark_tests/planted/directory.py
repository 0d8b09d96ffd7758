"""A data directory that is opened, and something happens to it: nobody else comes in, and who is in
notices.
"""

from __future__ import annotations

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
        (path / "journal" / _FILE).touch()
        directory.check(lambda: _FILE)
        lost = path / rng.choice([".", "lock", "journal", "snapshots", f"journal/{_FILE}"])
        is_folder = lost.is_dir()
        lost.rename(moved)
        if lost.name != _FILE and rng.random() < 0.5:
            lost.mkdir() if is_folder else lost.touch()
        where = moved if lost == path else path
        if (where / "identity").exists() and _opens(where):
            return f"without {lost.name} a second process comes in"
        try:
            directory.check(lambda: _FILE)
        except StorageFailed:
            return ""
        return f"that {lost.name} is gone goes unnoticed"


def _opens(path: Path) -> bool:
    try:
        DataDirectory.open(path).close()
    except DataDirectoryInUse:
        return False
    return True
