"""Files that the user of the broker may not read, or that are none: one line that names them, and verifying
without writing.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from mq_broker import LocalBroker
from mq_broker.journal.directory import DataDirectory
from pyspark_mq import Consumer, Producer
from spark_tests.support.files import contents

#: A user that owns nothing here.
NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it works as another user")
SEGMENT = "segment-0000000001.mqj"


@pytest.fixture(scope="module")
def stopped(module_path: pathlib.Path) -> pathlib.Path:
    """The directory of a broker that was stopped: some rows, and a snapshot."""
    path = module_path / "data"
    with LocalBroker(path) as broker, Producer(broker.address, queue="orders") as producer:
        for number in range(20):
            producer.send(b"value-%04d" % number)
    return path


@pytest.fixture
def directory(stopped: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    return pathlib.Path(shutil.copytree(stopped, tmp_path / "data"))


@pytest.fixture
def elsewhere(stopped: pathlib.Path) -> Iterator[pathlib.Path]:
    """A copy where other users get to: tests' own folders belong to one user."""
    path = pathlib.Path(shutil.copytree(stopped, f"/tmp/mq-unreadable-{os.getpid()}"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def mq(*arguments: object, user: int | None = None) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "mq_broker.console", *map(str, arguments)]
    if user is not None:
        command = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


def as_broker(directory: pathlib.Path, user: int | None = None) -> str:
    """Starts a broker that cannot start; returns the one line that it says."""
    code, out, err = mq("broker", "--data-dir", directory, "--port", "0", user=user)
    assert (code, out) == (1, ""), err
    (line,) = [line for line in err.splitlines() if line.startswith("mq: ")]
    assert "Traceback" not in err
    return line


def owned(directory: pathlib.Path, user: int) -> None:
    for path in (directory, *directory.rglob("*")):
        os.chown(path, user, user)


@needs_root
@pytest.mark.parametrize(
    "name", [f"journal/{SEGMENT}", "snapshots/manifest-*", "snapshots/pack-*", "identity", "identity.copy"]
)
def test_what_the_user_may_not_read_is_named_with_the_remedy(elsewhere: pathlib.Path, name: str) -> None:
    owned(elsewhere, NOBODY)
    (path, *_) = sorted(elsewhere.glob(name))[::-1]
    path.chmod(0)
    line = as_broker(elsewhere, NOBODY)
    assert str(path) in line
    assert "Permission denied" in line
    assert "chown" in line
    code, _, err = mq("verify", elsewhere, user=NOBODY)
    assert (code, str(path) in err, len(err.splitlines())) == (2, True, 1), err
    path.chmod(0o640)
    assert mq("verify", elsewhere, user=NOBODY)[0] == 0


@pytest.mark.parametrize("name", [f"journal/{SEGMENT}", "snapshots/manifest-*", "snapshots/pack-*"])
def test_a_folder_in_the_place_of_a_file_is_named(directory: pathlib.Path, name: str) -> None:
    (path, *_) = sorted(directory.glob(name))[::-1]
    path.unlink()
    path.mkdir()
    line = as_broker(directory)
    assert str(path) in line
    assert "a folder stands in the place of a file" in line
    code, _, err = mq("verify", directory)
    assert (code, str(path) in err, len(err.splitlines())) == (2, True, 1), err


@pytest.mark.skipif(sys.platform != "linux", reason="has no file of the system that gives EIO")
def test_what_the_device_does_not_give_back_is_named(directory: pathlib.Path) -> None:
    """The first byte of a process's memory is never mapped: reading it is EIO, as with a bad sector."""
    path = directory / "journal" / SEGMENT
    path.unlink()
    path.symlink_to("/proc/self/mem")
    line = as_broker(directory)
    assert str(path) in line
    assert "Input/output error" in line
    assert "ddrescue" in line


@needs_root
def test_verify_writes_nothing_and_needs_no_right_to(elsewhere: pathlib.Path) -> None:
    """As another user, in folders that nobody may write to."""
    (elsewhere / "lock").unlink()
    before, times = (
        contents(elsewhere),
        {path: path.stat().st_mtime_ns for path in (elsewhere, *elsewhere.rglob("*"))},
    )
    for path in (elsewhere, *elsewhere.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    code, out, err = mq("verify", elsewhere, user=NOBODY)
    assert (code, err) == (0, ""), err
    assert out.endswith("all whole\n")
    assert contents(elsewhere) == before
    assert {path: path.stat().st_mtime_ns for path in (elsewhere, *elsewhere.rglob("*"))} == times, (
        "not even the lock file is made"
    )
    code, _, err = mq("repair", elsewhere, user=NOBODY)
    assert (code, len(err.splitlines())) == (2, 1), err


@needs_root
def test_verify_on_a_read_only_mount(directory: pathlib.Path, tmp_path: pathlib.Path) -> None:
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    if subprocess.run(["mount", "--bind", directory, mounted], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", mounted], check=True)
        code, out, err = mq("verify", mounted)
        assert (code, err) == (0, ""), err
        assert out.endswith("all whole\n")
    finally:
        subprocess.run(["umount", mounted], check=True)


def test_verify_leaves_a_running_broker_alone_and_keeps_one_away(directory: pathlib.Path) -> None:
    with LocalBroker(directory):
        code, _, err = mq("verify", directory)
        assert (code, "is in use by process" in err) == (2, True)
    with DataDirectory.open_damaged(directory, read_only=True):
        assert "is in use by process" in as_broker(directory)


@needs_root
@pytest.mark.parametrize("hit", ["journal", "identity"])
def test_what_root_repairs_belongs_to_the_user_of_the_broker(elsewhere: pathlib.Path, hit: str) -> None:
    owned(elsewhere, NOBODY)
    modes = {"identity": 0o660, "journal": 0o770}
    for path in elsewhere.rglob("*"):
        path.chmod(modes["journal"] if path.is_dir() else modes["identity"])
    (elsewhere / "lock").unlink()
    if hit == "identity":
        (elsewhere / "identity").write_bytes(b"rot")
    else:
        segment = elsewhere / "journal" / SEGMENT
        body = segment.read_bytes()
        segment.write_bytes(body.replace(b"value-0007", b"value-XXXX"))
    code, out, err = mq("repair", elsewhere)
    assert code == 0, err
    assert "quarantine" in out
    for path in elsewhere.rglob("*"):
        known = path.stat()
        assert (known.st_uid, known.st_gid) == (NOBODY, NOBODY), path
        assert known.st_mode & 0o777 == (modes["journal"] if path.is_dir() else modes["identity"]), path
    assert mq("verify", elsewhere, user=NOBODY)[0] == 0
    with LocalBroker(elsewhere) as broker, Consumer(broker.address, queue="orders") as consumer:
        assert consumer.receive(timeout=5.0) is not None
