"""Formats of the data directory: an older one becomes the newest before anything else is written, a newer one
is refused.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from mq_broker.core.commands import Settings
from mq_broker.engine.opening import open_engine
from mq_broker.journal.directory import FORMAT_VERSION, DataDirectory, Identity, decode_identity
from mq_broker.journal.disk import RealDisk, RealFile
from mq_broker.journal.journal import Journal
from mq_broker.journal.settings import TINY
from mq_broker.repair.directory import repair_directory, verify_directory
from mq_wire.errors import DataDirectoryUnusable, JournalDamaged, StoreFull

NAMES = ("identity", "identity.copy")
OLD = Identity(UUID(int=1), UUID(int=2), created=True, format=1)


class Stopped(BaseException):
    """The process dies here."""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A directory of format 1."""
    folder = tmp_path / "data"
    with DataDirectory.open(folder) as directory:
        Journal.create(directory.journal_disk, TINY, OLD.journal).close()
    put(folder, OLD, OLD)
    return folder


def put(folder: Path, *identities: Identity) -> None:
    for name, identity in zip(NAMES, identities, strict=True):
        (folder / name).write_bytes(identity.encode())


def start(folder: Path) -> None:
    """Opens the directory as a broker does."""
    with DataDirectory.open(folder) as directory:
        open_engine(directory, Settings(), TINY).stop()
        assert directory.identity == Identity(OLD.cluster, OLD.journal, created=True)


def upgrade(folder: Path) -> None:
    with DataDirectory.open(folder) as directory:
        directory.upgrade()


def formats(folder: Path) -> list[int]:
    return [decode_identity((folder / name).read_bytes(), folder / name).format for name in NAMES]


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name != "lock"
    }


def test_format_1_as_it_was_written_reads() -> None:
    text = (
        '{"checksum": 3651577088, "cluster": "00000000-0000-0000-0000-000000000001", "created": true, '
        '"format": 1, '
        '"journal": "00000000-0000-0000-0000-000000000002"}\n'
    )
    assert OLD.encode().decode() == text
    assert decode_identity(text.encode(), Path("identity")) == OLD


def test_an_older_format_becomes_the_newest(old: Path) -> None:
    for _ in range(2):
        start(old)
        assert formats(old) == [FORMAT_VERSION] * 2


def test_a_start_that_is_refused_leaves_the_format_alone(old: Path) -> None:
    """The version that the directory is of can still open it."""
    path = old / "journal" / "segment-0000000001.mqj"
    path.write_bytes(
        path.read_bytes()[:4096] + bytes([path.read_bytes()[4096] ^ 1]) + path.read_bytes()[4097:]
    )
    before = contents(old)
    with pytest.raises(JournalDamaged, match="nothing was changed"):
        start(old)
    assert contents(old) == before


@pytest.mark.parametrize("mixed", [(1, 2), (2, 1)])
def test_both_formats_together_are_one_directory(old: Path, mixed: tuple[int, int]) -> None:
    put(old, *(Identity(OLD.cluster, OLD.journal, created=True, format=version) for version in mixed))
    start(old)
    assert formats(old) == [FORMAT_VERSION] * 2


@pytest.mark.parametrize("name", NAMES)
def test_a_newer_format_is_refused_and_left_alone(old: Path, name: str) -> None:
    content = json.loads((old / name).read_text())
    (old / name).write_text(json.dumps(content | {"format": FORMAT_VERSION + 1}))
    before = contents(old)
    for look in (DataDirectory.open, verify_directory, repair_directory):
        newer, newest = FORMAT_VERSION + 1, FORMAT_VERSION
        told = f"{name} has format {newer}, this program knows 1 to {newest}: start the version"
        with pytest.raises(DataDirectoryUnusable, match=told):
            look(old)
    assert contents(old) == before


def stopping_at(patch: pytest.MonkeyPatch, stop: int) -> None:
    """The process dies before the n-th step that changes the disk."""
    steps = itertools.count(1)
    of_disk = [(RealDisk, name) for name in ("create", "remove", "rename", "sync_directory")]
    for kind, name in [*of_disk, (RealFile, "write_at"), (RealFile, "sync")]:
        patch.setattr(kind, name, _stopping(getattr(kind, name), steps, stop))


def _stopping(step: Callable[..., Any], steps: Any, stop: int) -> Callable[..., Any]:
    def stepped(*arguments: Any) -> Any:
        if next(steps) >= stop:
            raise Stopped
        return step(*arguments)

    return stepped


@pytest.mark.parametrize("stop", range(1, 12))
def test_a_crash_at_any_step_of_the_upgrade_is_made_good(
    old: Path, stop: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        stopping_at(patch, stop)
        try:
            upgrade(old)
            assert stop > 10, "all steps were tried"
        except Stopped:
            pass
    before = contents(old)
    # What is half done is no damage, and nothing but a start goes on with it.
    assert not [finding for finding in verify_directory(old).findings if finding.file in NAMES]
    assert contents(old) == before
    start(old)
    assert formats(old) == [FORMAT_VERSION] * 2


@pytest.mark.parametrize("stop", range(1, 5))
def test_a_full_disk_does_not_keep_it_from_the_newest_format(
    old: Path, stop: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(disk: RealDisk, name: str) -> RealFile:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)

    with monkeypatch.context() as patch:
        stopping_at(patch, stop)
        patch.setattr(RealDisk, "create", refuse)
        with pytest.raises(Stopped):
            upgrade(old)
    with monkeypatch.context() as patch:
        patch.setattr(RealDisk, "create", refuse)
        upgrade(old)
        assert formats(old) == [FORMAT_VERSION] * 2
        (old / "identity.copy").unlink()
        with pytest.raises(StoreFull, match="no room for"):
            upgrade(old)


@pytest.mark.parametrize("name", NAMES)
def test_repair_brings_the_newest_format(old: Path, name: str) -> None:
    (old / name).unlink()
    assert [finding.file for finding in verify_directory(old).findings if finding.file in NAMES] == [name]
    repair_directory(old)
    assert formats(old) == [FORMAT_VERSION] * 2


def test_nothing_of_the_newest_format_is_written_before_the_identity_says_so(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a repair, whatever it does first."""
    (old / "identity.copy").unlink()
    write = RealFile.write_at

    def checked(file: RealFile, buffers: Sequence[bytes], position: int) -> None:
        if os.readlink(f"/proc/self/fd/{file._descriptor}").endswith(".mqj"):
            assert formats(old) == [FORMAT_VERSION] * 2
        write(file, buffers, position)

    monkeypatch.setattr(RealFile, "write_at", checked)
    repair_directory(old)
