"""The real disk and its twin behave alike, and the twin forgets what was not synced."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mq_broker.journal.disk import Disk, RealDisk, sector_bytes_of
from mq_broker.testing.memory_disk import Crash, MemoryDisk, crash_at, fail_at


@pytest.fixture(params=["real", "memory"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return RealDisk(tmp_path / "disk") if request.param == "real" else MemoryDisk()


def test_files_hold_what_is_written(disk: Disk) -> None:
    file = disk.create("a")
    file.write_at([b"one", bytearray(b"two"), memoryview(b"three")], 5)
    assert file.size() == 16
    assert file.read_at(0, 100) == bytes(5) + b"onetwothree"
    assert file.read_at(8, 3) == b"two"
    assert file.read_at(100, 3) == b""
    file.sync()
    file.close()
    again = disk.open("a")
    assert again.read_at(5, 3) == b"one"
    again.close()


def test_maps_show_later_writes_and_outlive_file_and_name(disk: Disk) -> None:
    file = disk.create("a")
    file.allocate(8192)
    assert file.size() == 8192
    view = file.map()
    assert view.readonly
    file.write_at([b"later"], 4096)
    file.close()
    disk.remove("a")
    assert bytes(view[4096:4101]) == b"later"
    assert bytes(view[:10]) == bytes(10)
    assert disk.list_names() == []


def test_names(disk: Disk) -> None:
    for name in ("b", "a", "c"):
        disk.create(name).close()
    disk.rename("c", "a")
    assert disk.list_names() == ["a", "b"]
    with pytest.raises(FileExistsError):
        disk.create("a")
    for call in (lambda: disk.open("c"), lambda: disk.remove("c"), lambda: disk.rename("c", "d")):
        with pytest.raises(FileNotFoundError):
            call()
    disk.sync_directory()
    assert disk.free_bytes() > 1 << 20
    assert disk.sector_bytes in (512, 4096)


def test_a_short_write_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: random.Random
) -> None:
    """The operating system may take less than it was given; nobody can make it do so on demand."""
    real = os.pwritev

    def short(descriptor: int, buffers: Sequence[Any], position: int) -> int:
        data = b"".join(buffers)
        return real(descriptor, [data[: rng.randint(1, len(data))]], position)

    monkeypatch.setattr(os, "pwritev", short)
    file = RealDisk(tmp_path).create("a")
    data = [rng.randbytes(rng.randrange(300)) for _ in range(50)]
    file.write_at(data, 7)
    assert file.read_at(7, 1 << 20) == b"".join(data)
    file.close()


def test_the_sector_size_of_this_machine(tmp_path: Path) -> None:
    assert sector_bytes_of(tmp_path) in (512, 4096)
    assert sector_bytes_of(Path("/proc")) == 4096, "no block device: the larger"


def test_what_was_not_synced_may_be_lost_in_any_part(rng: random.Random) -> None:
    seen = set()
    for _ in range(200):
        disk = MemoryDisk(512)
        file = disk.create("a")
        disk.sync_directory()
        file.write_at([b"0" * 1024], 0)
        file.sync()
        file.write_at([b"1" * 1024], 0)
        file.write_at([b"2" * 512], 0)
        left = disk.crash(rng).open("a").read_at(0, 2048)
        assert len(left) == 1024
        assert left == left[:1] * 512 + left[512:513] * 512, "a sector is never torn"
        seen.add((chr(left[0]), chr(left[512])))
    assert seen == {(first, second) for first in "012" for second in "01"}


def test_names_that_were_not_synced_may_be_lost(rng: random.Random) -> None:
    seen = set()
    for _ in range(100):
        disk = MemoryDisk()
        disk.create("old").sync()
        disk.sync_directory()
        disk.rename("old", "new")
        disk.create("other").sync()
        seen.add(tuple(disk.crash(rng).list_names()))
    assert seen == {("old",), ("new",), ("old", "other"), ("new", "other")}


def test_what_was_synced_stays(rng: random.Random) -> None:
    disk = MemoryDisk()
    file = disk.create("a")
    file.write_at([b"kept"], 0)
    file.sync()
    disk.rename("a", "b")
    disk.sync_directory()
    for _ in range(20):
        disk = disk.crash(rng)
        assert disk.open("b").read_at(0, 10) == b"kept"


def test_a_failed_sync_counts_as_clean(rng: random.Random) -> None:
    seen = set()
    for _ in range(50):
        disk = MemoryDisk(rng=rng)
        file = disk.create("a")
        file.write_at([b"old"], 0)
        file.sync()
        disk.sync_directory()
        file.write_at([b"new"], 0)
        disk.hook = fail_at("sync", 1)
        with pytest.raises(OSError, match="Input/output error"):
            file.sync()
        file.sync()  # succeeds, and writes nothing
        assert file.read_at(0, 3) == b"new"
        seen.add(disk.crash(rng).open("a").read_at(0, 3))
    assert seen == {b"old", b"new"}


def test_after_a_crash_nothing_works() -> None:
    disk = MemoryDisk()
    file = disk.create("a")
    disk.hook = crash_at(2)
    for call in (file.sync, file.sync, lambda: disk.open("a"), lambda: disk.remove("a")):
        with pytest.raises(Crash):
            call()
