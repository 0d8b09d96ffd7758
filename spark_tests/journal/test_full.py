"""A full disk: publishes are refused before anything changes, state goes on, and space that comes back is
used.
"""

from __future__ import annotations

import dataclasses
import errno
import random

import pytest

from mq_broker.journal.journal import Journal
from mq_broker.journal.settings import TINY
from mq_broker.testing.memory_disk import MemoryDisk, fail_at
from mq_wire.errors import StorageFailed, StoreFull
from spark_tests.support.journals import UUID_1, random_entries, recover, write


def fill(journal: Journal, rng: random.Random, *, for_state: bool = False) -> None:
    """Writes until it is refused."""
    for _ in range(1000):
        write(journal, random_entries(rng), for_state=for_state)
    raise AssertionError("the disk never became full")


def test_publishes_are_refused_and_state_goes_on(rng: random.Random) -> None:
    disk = MemoryDisk(capacity_bytes=6 * TINY.segment_bytes)
    journal = Journal.create(disk, TINY, UUID_1)
    with pytest.raises(StoreFull, match="consume and acknowledge"):
        fill(journal, rng)
    assert len(journal.space.segments()) == 4, "two segments are kept back"
    turn = journal.position.turn
    for _ in range(20):
        journal.reserve(128, for_state=True)
        journal.add(b"acknowledged")
        assert journal.commit() == turn + 1
        turn += 1
    with pytest.raises(StoreFull):
        journal.reserve(128)
    _, recovered = recover(disk.crash(rng))
    assert recovered[-1] == (turn, [(b"acknowledged", None)])


def test_reclaimed_segments_end_the_refusal(rng: random.Random) -> None:
    disk = MemoryDisk(capacity_bytes=6 * TINY.segment_bytes)
    journal = Journal.create(disk, TINY, UUID_1)
    for _ in range(5):
        with pytest.raises(StoreFull):
            fill(journal, rng)
        for number, _, _ in journal.space.segments()[:-1]:
            journal.reclaim(number)
        write(journal, random_entries(rng))


def test_state_is_refused_only_when_the_segments_that_are_kept_back_are_full_too(rng: random.Random) -> None:
    disk = MemoryDisk(capacity_bytes=4 * TINY.segment_bytes)
    journal = Journal.create(disk, TINY, UUID_1)
    with pytest.raises(StoreFull):
        fill(journal, rng)
    segment = journal.position.segment
    with pytest.raises(StoreFull):
        fill(journal, rng, for_state=True)
    assert journal.position.segment == segment + 2


def test_space_given_by_the_operator_ends_the_refusal(rng: random.Random) -> None:
    disk = MemoryDisk(capacity_bytes=4 * TINY.segment_bytes)
    settings = dataclasses.replace(TINY, fill_in_background=True)
    journal = Journal.create(disk, settings, UUID_1)
    with pytest.raises(StoreFull):
        fill(journal, rng)
    disk.capacity_bytes = 8 * TINY.segment_bytes
    write(journal, random_entries(rng))
    with pytest.raises(StoreFull):
        fill(journal, rng)
    journal.close()


def test_no_room_for_the_first_segment() -> None:
    disk = MemoryDisk(capacity_bytes=TINY.segment_bytes - 1)
    with pytest.raises(StoreFull, match=f"{TINY.segment_bytes - 1} bytes free"):
        Journal.create(disk, TINY, UUID_1)
    assert disk.list_names() == []


@pytest.mark.parametrize("background", [False, True])
def test_a_pool_that_fails_otherwise_is_final(background: bool, rng: random.Random) -> None:
    disk = MemoryDisk()
    disk.hook = fail_at("sync", 2, errno.EIO, within=".new")
    journal = Journal.create(disk, dataclasses.replace(TINY, fill_in_background=background), UUID_1)
    with pytest.raises(StorageFailed, match="could not be filled"):
        fill(journal, rng)
    with pytest.raises(StorageFailed):
        journal.commit()
    journal.close()


def test_new_segments_leave_room_for_snapshots() -> None:
    disk = MemoryDisk(capacity_bytes=4 * TINY.segment_bytes - 1)
    settings = dataclasses.replace(TINY, spare_bytes=TINY.segment_bytes)
    journal = Journal.create(disk, settings, UUID_1)
    with pytest.raises(StoreFull, match=f"{settings.spare_bytes} stay free for snapshots"):
        fill(journal, random.Random(0), for_state=True)
    assert settings.spare_bytes <= disk.free_bytes()
