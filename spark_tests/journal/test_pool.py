"""The pool of empty segments."""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import resource
from pathlib import Path

import pytest

from mq_broker.journal.disk import RealDisk, why_full
from mq_broker.journal.pool import SegmentPool, pool_name
from mq_broker.journal.settings import TINY, JournalSettings
from mq_broker.testing.memory_disk import MemoryDisk
from mq_wire.errors import StorageFailed
from spark_tests.support.waiting import wait_until


def test_files_of_an_earlier_process_are_taken_over() -> None:
    disk = MemoryDisk()
    for number, size in enumerate([TINY.segment_bytes, TINY.segment_bytes - 4096, *[TINY.segment_bytes] * 6]):
        disk.create(pool_name(number)).allocate(size)
    disk.create("pool-0000000099.new").allocate(TINY.segment_bytes)
    disk.create("segment-0000000001.mqj")
    pool = SegmentPool(disk, TINY)
    pool.start()
    assert disk.list_names() == [
        *(pool_name(number) for number in (0, 2, 3, 4, 5, 6)),
        "segment-0000000001.mqj",
    ]
    assert len(pool) == 6
    assert pool.take(TINY.segment_bytes, 2)[0].name == pool_name(3), "the first two are reserves"


def test_a_recycled_file_gets_a_name_that_is_not_taken() -> None:
    disk = MemoryDisk()
    pool = SegmentPool(disk, TINY)
    pool.start()
    assert pool.ensure(0, 2)
    for number in range(6):
        disk.create(f"used {number}").allocate(TINY.segment_bytes)
        pool.give(f"used {number}", TINY.segment_bytes)
    assert len(pool) == 6, "the reserves, and twice as many as are kept ready"
    assert disk.list_names() == [pool_name(number) for number in range(6)]


def test_a_recycled_file_of_another_size_is_removed() -> None:
    disk = MemoryDisk()
    pool = SegmentPool(disk, TINY)
    pool.start()
    disk.create("used").allocate(4096)
    pool.give("used", 4096)
    assert disk.list_names() == []


def test_the_background_thread_keeps_ahead(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    settings = JournalSettings(segment_bytes=9 << 20, first_bytes=2 << 20, pool_segments=2)
    pool = SegmentPool(disk, settings)
    pool.start()
    for size in (2, 4, 8, 9, 9):
        wait_until(lambda: len(pool) == 3, message="two reserves and a file for rows")
        (name, taken), file = pool.take(1 << 20, 2)
        assert taken == file.size() == size << 20
        assert not any(file.map()[:: 1 << 12])
        file.close()
        disk.remove(name)
    pool.close()
    assert pool._filler is not None
    assert not pool._filler.is_alive()


def test_closing_does_not_wait_for_a_whole_file(tmp_path: Path) -> None:
    pool = SegmentPool(RealDisk(tmp_path), JournalSettings(segment_bytes=1 << 30))
    pool.start()
    pool.close()
    pool = SegmentPool(RealDisk(tmp_path), dataclasses.replace(TINY))
    pool.start()
    assert all(name.endswith(".mqj") for name in RealDisk(tmp_path).list_names()), "nothing that is half done"


@pytest.mark.parametrize("in_background", [False, True])
def test_a_disk_that_is_full_and_then_fails_is_told_to_whoever_waits(in_background: bool) -> None:
    def full_then_broken(kind: str, name: str, _: int) -> None:
        if kind in ("allocate", "remove"):
            raise OSError(errno.ENOSPC if kind == "allocate" else errno.EIO, os.strerror(errno.EIO), name)

    disk = MemoryDisk()
    disk.hook = full_then_broken
    pool = SegmentPool(disk, dataclasses.replace(TINY, fill_in_background=in_background))
    pool.start()
    with pytest.raises(StorageFailed, match="could not be filled"):
        pool.ensure(0, 1)
    pool.close()


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EFBIG, "ulimit -f"),
        (errno.EDQUOT, "quota"),
        (errno.ENOSPC, r"bytes free, a journal segment takes"),
    ],
)
def test_what_there_is_too_little_of_is_named(number: int, words: str) -> None:
    def full(kind: str, name: str, _: int) -> None:
        if kind == "allocate":
            raise OSError(number, os.strerror(number), name)

    disk = MemoryDisk()
    disk.hook = full
    pool = SegmentPool(disk, TINY)
    pool.start()
    assert not pool.ensure(4096, 0)
    assert re.search(words, str(pool.refusal(4096)))


def test_out_of_inodes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RealDisk, "free_files", lambda self: 0)
    assert "no inodes left" in why_full(OSError(errno.ENOSPC, ""), RealDisk(tmp_path))
    monkeypatch.undo()
    assert why_full(OSError(errno.ENOSPC, ""), RealDisk(tmp_path)) == ""


def test_where_files_may_not_be_as_large_smaller_ones_do(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    pool = SegmentPool(
        disk, JournalSettings(segment_bytes=8 << 20, first_bytes=1 << 20, fill_in_background=False)
    )
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, before[1]))
    try:
        pool.start()
        for size in (1, 2, 2, 2):
            assert pool.ensure(4096, 2)
            (name, taken), file = pool.take(4096, 2)
            file.close()
            disk.remove(name)
            assert taken == size << 20
        assert not pool.ensure(4 << 20, 2)
        assert "of 3145728 bytes (ulimit -f" in str(pool.refusal(4 << 20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
