"""A data directory with files of another user in it, as after a start as root: one error that names the file,
its owner and what to do.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mq_broker.core.commands import Settings
from mq_broker.engine.opening import open_engine
from mq_broker.journal.directory import DataDirectory
from mq_broker.journal.settings import TINY
from mq_wire.errors import DataDirectoryUnusable, StorageFailed

_NOBODY = 65534


@contextmanager
def another_user() -> Iterator[None]:
    """Until the end of the block this process is no longer root, if it was."""
    was = os.geteuid()
    if was == 0:
        os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(was)


def use(path: Path) -> None:
    with DataDirectory.open(path) as directory:
        engine = open_engine(directory, Settings(), TINY)
        engine.stop()


@pytest.fixture
def data() -> Iterator[Path]:
    """A directory that was used twice; not in pytest's folder, which is its user's alone."""
    folder = Path(tempfile.mkdtemp(prefix="mq-owners-"))
    if os.geteuid() == 0:
        os.chown(folder, _NOBODY, _NOBODY)
    with another_user():
        for _ in range(2):
            use(folder / "data")
    yield folder / "data"
    shutil.rmtree(folder)


def test_each_file_that_cannot_be_opened_is_named(data: Path) -> None:
    owner = "root" if os.geteuid() == 0 else ""
    for path in sorted(data.rglob("*")):
        status = path.stat()
        path.chmod(0o500 if path.is_dir() else 0)
        if os.geteuid() == 0:
            os.chown(path, 0, 0)
        with another_user(), pytest.raises((DataDirectoryUnusable, StorageFailed)) as caught:
            use(data)
        assert str(path) in str(caught.value), path
        assert "chown" in str(caught.value), path
        assert f"belongs to {owner}" in str(caught.value), path
        os.chown(path, status.st_uid, status.st_gid)
        path.chmod(status.st_mode)
    with another_user():
        use(data)
