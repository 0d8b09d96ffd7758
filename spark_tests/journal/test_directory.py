"""The data directory: ours or refused, and one process at a time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mq_broker.journal.directory import FORMAT_VERSION, DataDirectory
from mq_wire.errors import DataDirectoryInUse, DataDirectoryUnusable, StorageFailed


def test_a_new_directory_gets_an_identity_and_keeps_it(tmp_path: Path) -> None:
    with DataDirectory.open(tmp_path / "deep" / "data") as first:
        identity = first.identity
        assert not identity.created
        assert identity.cluster != identity.journal
    with DataDirectory.open(tmp_path / "deep" / "data") as second:
        assert second.identity == identity, "creation was not finished: the same begins anew"
        second.finish()
    with DataDirectory.open(tmp_path / "deep" / "data") as third:
        assert third.identity.created
        assert (third.identity.cluster, third.identity.journal) == (identity.cluster, identity.journal)
        assert third.journal_disk.list_names() == third.snapshot_disk.list_names() == []


def test_the_lock_keeps_others_out(tmp_path: Path) -> None:
    with (
        DataDirectory.open(tmp_path),
        pytest.raises(DataDirectoryInUse, match=r"in use by process \d+.*--data-dir"),
    ):
        DataDirectory.open(tmp_path)
    DataDirectory.open(tmp_path).close()


def test_the_lock_keeps_other_processes_out_and_dies_with_its_holder(tmp_path: Path) -> None:
    code = (
        "import sys; from mq_broker.journal.directory import DataDirectory; "
        f"d = DataDirectory.open({str(tmp_path)!r}); print('held', flush=True); sys.stdin.read()"
    )
    environment = {"PYTHONPATH": ":".join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(DataDirectoryInUse, match=f"process {process.pid}"):
            DataDirectory.open(tmp_path)
        process.kill()
        process.wait()
    DataDirectory.open(tmp_path).close()


def test_a_foreign_folder_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(DataDirectoryUnusable, match=r"thesis\.txt"):
        DataDirectory.open(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_an_unfinished_first_start_and_a_mount_point_are_no_foreign_folders(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "identity.new").write_text("torn")
    (tmp_path / "lock").write_text("")
    with DataDirectory.open(tmp_path) as directory:
        assert not directory.identity.created


def rewrite(path: Path, **changes: object) -> None:
    content = json.loads((path / "identity").read_text())
    (path / "identity").write_text(json.dumps(content | changes))


def test_an_identity_of_another_version_or_damaged_is_refused(tmp_path: Path) -> None:
    DataDirectory.open(tmp_path).close()
    rewrite(tmp_path, created=True)
    with pytest.raises(DataDirectoryUnusable, match="checksum is wrong"):
        DataDirectory.open(tmp_path)
    rewrite(tmp_path, format=FORMAT_VERSION + 1)
    with pytest.raises(
        DataDirectoryUnusable,
        match=f"has format {FORMAT_VERSION + 1}, this program knows 1 to {FORMAT_VERSION}: start",
    ):
        DataDirectory.open(tmp_path)
    for text in ("", "{", "[]", "{}"):
        (tmp_path / "identity").write_text(text)
        with pytest.raises(DataDirectoryUnusable, match="not an identity file"):
            DataDirectory.open(tmp_path)


def test_a_path_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataDirectoryUnusable, match="cannot be used"):
        DataDirectory.open(tmp_path / "file")


def test_a_lock_file_that_was_removed_lets_nobody_in(tmp_path: Path) -> None:
    """Also not who looks or repairs, and a folder that was moved is held still."""
    with DataDirectory.open(tmp_path / "data") as directory:
        (tmp_path / "data" / "lock").unlink()
        with pytest.raises(DataDirectoryInUse):
            DataDirectory.open(tmp_path / "data")
        for read_only in (True, False):
            with pytest.raises(DataDirectoryInUse):
                DataDirectory.open_damaged(tmp_path / "data", read_only=read_only)
        assert not (tmp_path / "data" / "lock").exists(), "who is refused leaves nothing behind"
        (tmp_path / "data").rename(tmp_path / "moved")
        with pytest.raises(DataDirectoryInUse):
            DataDirectory.open(tmp_path / "moved")
        (tmp_path / "other").mkdir()
        for name in ("journal", "snapshots", "identity", "identity.copy"):
            (tmp_path / "moved" / name).rename(tmp_path / "other" / name)
        with pytest.raises(DataDirectoryInUse):
            DataDirectory.open(tmp_path / "other")
        with pytest.raises(StorageFailed, match="removed, moved or unmounted"):
            directory.check(lambda: "none")
    DataDirectory.open(tmp_path / "other").close()


@pytest.mark.parametrize("name", ["lock", "journal", "snapshots", ".", "journal/segment"])
@pytest.mark.parametrize("is_replaced", [False, True])
def test_what_was_removed_is_noticed(tmp_path: Path, name: str, is_replaced: bool) -> None:
    with DataDirectory.open(tmp_path / "data") as directory:
        (tmp_path / "data" / "journal" / "segment").touch()
        directory.check(lambda: "segment")
        path = tmp_path / "data" / name
        path.rename(tmp_path / "moved")
        if is_replaced and name != "journal/segment":
            path.touch() if name == "lock" else path.mkdir()
        with pytest.raises(StorageFailed, match=str(path)):
            directory.check(lambda: "segment")
