"""Torn tail or damage: what recovery makes of bytes that are wrong."""

from __future__ import annotations

import random
import zlib
from itertools import pairwise

import pytest

from mq_broker.journal.frames import TRAILER_BYTES
from mq_broker.journal.journal import Journal
from mq_broker.journal.recovery import JournalPosition
from mq_broker.journal.segments import FIRST_POSITION, segment_name
from mq_broker.journal.settings import TINY
from mq_broker.testing.memory_disk import MemoryDisk
from mq_wire.errors import DataDirectoryUnusable, JournalDamaged
from spark_tests.support.journals import UUID_1, Entries, random_entries, recover, write


def small_journal(turns: int = 5) -> tuple[MemoryDisk, list[JournalPosition], list[tuple[int, Entries]]]:
    disk = MemoryDisk()
    journal = Journal.create(disk, TINY, UUID_1)
    positions, history = [journal.position], []
    for index in range(turns):
        entries: Entries = [(b"header %d" % index, b"body" * 30), (b"state", None)]
        history.append((write(journal, entries), entries))
        positions.append(journal.position)
    return disk, positions, history


def test_a_flip_in_any_byte_of_an_early_turn_is_damage() -> None:
    disk, positions, _ = small_journal()
    start, end = positions[1].position, positions[2].position
    for position in range(start, end):
        disk.flip("segment-0000000001.mqj", position)
        with pytest.raises(JournalDamaged, match=f"segment 1, position {start}: turn 3 is damaged"):
            recover(disk)
        disk.flip("segment-0000000001.mqj", position)
    recover(disk)


def test_a_flip_in_any_byte_of_the_last_turn_reads_as_a_torn_tail() -> None:
    _, positions, history = small_journal()
    for position in range(positions[-2].position, positions[-1].position, 3):
        disk, _, _ = small_journal()
        disk.flip("segment-0000000001.mqj", position)
        journal, recovered = recover(disk)
        assert recovered == history[:-1]
        assert (journal.position.turn, journal.position.generation) == (history[-1][0], 2)


def test_a_flip_in_any_byte_of_the_first_turn_is_damage() -> None:
    disk, positions, _ = small_journal(1)
    for position in range(FIRST_POSITION, positions[0].position):
        disk.flip("segment-0000000001.mqj", position)
        with pytest.raises(JournalDamaged, match="turn 1 is damaged"):
            recover(disk)
        disk.flip("segment-0000000001.mqj", position)


def test_a_flip_in_the_header_of_a_segment_is_damage() -> None:
    disk, _, _ = small_journal()
    for position in range(64):
        disk.flip("segment-0000000001.mqj", position)
        with pytest.raises(JournalDamaged, match=r"segment-0000000001\.mqj, position 0"):
            recover(disk)
        disk.flip("segment-0000000001.mqj", position)


def test_damage_is_found_when_only_a_piece_of_a_later_turn_is_left() -> None:
    """Turn 4 and what follows are broken too, but for one first frame or one trailer of a turn that could not
    have begun otherwise.
    """
    for keep in ("frame", "trailer"):
        disk, positions, _ = small_journal()
        for before, after in pairwise(positions[1:]):
            broken = after.position - TRAILER_BYTES + 20 if keep == "frame" else before.position + 20
            disk.flip("segment-0000000001.mqj", broken)
        with pytest.raises(JournalDamaged, match="turn 3 is damaged"):
            recover(disk)


def test_after_a_cut_remains_of_the_older_generation_do_not_count(rng: random.Random) -> None:
    disk, positions, history = small_journal()
    disk.flip("segment-0000000001.mqj", positions[-1].position - 1)
    history.pop()
    for generation in range(2, 8):
        journal, recovered = recover(disk)
        assert recovered == history
        assert journal.position.generation == generation
        entries = random_entries(rng)
        history.append((write(journal, entries), entries))
    del history[:]


def test_the_turn_that_opens_a_generation_is_acknowledged_data_too() -> None:
    disk, positions, _ = small_journal()
    journal, _ = recover(disk)
    write(journal, [(b"x", None)])
    disk.flip("segment-0000000001.mqj", positions[-1].position + 512 - TRAILER_BYTES + 8)
    with pytest.raises(JournalDamaged, match="turn 7 is damaged"):
        recover(disk)


def test_damage_changes_nothing_on_the_disk() -> None:
    disk, positions, _ = small_journal()
    disk.flip("segment-0000000001.mqj", positions[1].position)
    steps = disk.steps
    with pytest.raises(JournalDamaged):
        recover(disk)
    assert disk.steps == steps


@pytest.fixture
def rolled(rng: random.Random) -> tuple[MemoryDisk, list[JournalPosition], list[tuple[int, Entries]]]:
    """A journal of at least five segments, with the position behind each turn."""
    disk = MemoryDisk()
    journal = Journal.create(disk, TINY, UUID_1)
    positions, history = [], []
    while journal.position.segment < 5:
        entries = random_entries(rng)
        history.append((write(journal, entries), entries))
        positions.append(journal.position)
    return disk, positions, history


Rolled = tuple[MemoryDisk, list[JournalPosition], list[tuple[int, Entries]]]


@pytest.mark.parametrize("number", [1, 2, 4])
def test_a_missing_segment_is_damage(rolled: Rolled, number: int) -> None:
    disk, _, _ = rolled
    disk.remove(segment_name(number))
    with pytest.raises(JournalDamaged, match=f"{segment_name(number)} is missing"):
        recover(disk)


def test_a_missing_last_segment_is_damage(rolled: Rolled) -> None:
    """Nothing stands behind it: only the mark in the segment before tells that there was one."""
    disk, positions, history = rolled
    start = next(position for position in positions if position.segment == 3)
    recovered = recover(disk.crash(random.Random(0)), start)[1]
    assert recovered == [turn for turn in history if turn[0] > start.turn]
    disk.remove(segment_name(5))
    for known in (None, start):
        with pytest.raises(JournalDamaged, match=f"{segment_name(5)} is missing"):
            recover(disk, known)


def test_a_segment_that_was_begun_and_given_back_is_not_missed(rng: random.Random) -> None:
    """The first turn of a new segment is torn: recovery gives the segment back, and what follows goes on in
    the one before.
    """
    for _ in range(30):
        disk = MemoryDisk(rng=rng)
        journal = Journal.create(disk, TINY, UUID_1)
        history = []
        while journal.position.segment < 2:
            entries = random_entries(rng)
            history.append((write(journal, entries), entries))
        disk.flip(segment_name(2), FIRST_POSITION + 70)
        history.pop()
        for _ in range(3):
            journal, recovered = recover(disk)
            assert recovered == history
            entries = random_entries(rng, count_max=1)
            history.append((write(journal, entries), entries))
            disk = disk.crash(rng)


def test_a_missing_segment_before_the_start_is_space_reclaimed(rolled: Rolled) -> None:
    disk, positions, history = rolled
    start = next(position for position in positions if position.segment == 3)
    disk.remove(segment_name(1))
    journal, recovered = recover(disk, start)
    assert recovered == [turn for turn in history if turn[0] > start.turn]
    assert [number for number, _, _ in journal.space.segments()][:3] == [2, 3, 4]


def test_a_damaged_header_before_the_start_keeps_the_rest_readable(rolled: Rolled) -> None:
    disk, positions, _ = rolled
    before, _ = recover(disk)
    start = next(position for position in positions if position.segment == 3)
    disk.flip(segment_name(2), 9)
    journal, _ = recover(disk, start)
    first, second, third = journal.space.segments()[:3]
    assert second[1] == third[1]
    assert first[2] >= before.space.segments()[0][2], "never reclaimed too early"


def test_a_journal_that_ends_before_the_snapshot_is_damage() -> None:
    disk, positions, history = small_journal()
    older, _, _ = small_journal(3)
    with pytest.raises(JournalDamaged, match="ends before turn 6"):
        recover(older, positions[-1])
    _, recovered = recover(disk, positions[-1])
    assert recovered == []
    assert history


def test_rot_in_the_snapshots_own_turn_is_no_damage_while_the_chain_goes_on() -> None:
    disk, positions, history = small_journal()
    disk.flip("segment-0000000001.mqj", positions[2].position - TRAILER_BYTES)
    _, recovered = recover(disk, positions[2])
    assert recovered == history[2:]


def test_a_segment_of_another_number_is_damage(rolled: Rolled) -> None:
    disk, _, _ = rolled
    disk.remove(segment_name(2))
    disk.rename(segment_name(3), segment_name(2))
    with pytest.raises(JournalDamaged, match="header of segment 3"):
        recover(disk)


def test_an_unknown_version_is_refused() -> None:
    disk, _, _ = small_journal()
    file = disk.open("segment-0000000001.mqj")
    header = bytearray(file.read_at(0, 64))
    header[4] = 2
    header[60:] = zlib.crc32(header[:60]).to_bytes(4, "little")
    file.write_at([header], 0)
    with pytest.raises(DataDirectoryUnusable, match="version 2"):
        recover(disk)


def test_an_empty_folder_is_no_journal() -> None:
    with pytest.raises(JournalDamaged, match="missing"):
        recover(MemoryDisk())


@pytest.mark.parametrize("torn", [False, True])
def test_a_payload_made_of_journal_bytes_changes_nothing(torn: bool) -> None:
    disk, positions, _ = small_journal()
    stolen = disk.open("segment-0000000001.mqj").read_at(
        FIRST_POSITION, positions[-1].position - FIRST_POSITION
    )
    other = MemoryDisk()
    journal = Journal.create(other, TINY, UUID_1)
    number = write(journal, [(b"", stolen)])
    if torn:
        file = other.open("segment-0000000001.mqj")
        file.write_at([bytes(64)], FIRST_POSITION + 512)  # its turn never became whole
    _, recovered = recover(other)
    assert recovered == ([] if torn else [(number, [(b"", stolen)])])
