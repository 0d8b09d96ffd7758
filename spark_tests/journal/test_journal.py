"""The journal in ordinary life: turns, rolls, bodies, pins, segments."""

from __future__ import annotations

import dataclasses
import errno
import os
import random
import threading
import zlib
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from mq_broker.journal import frames, segments
from mq_broker.journal.disk import RealDisk, RealFile
from mq_broker.journal.journal import Journal
from mq_broker.journal.segments import FIRST_POSITION
from mq_broker.journal.settings import TINY, JournalSettings
from mq_broker.testing.memory_disk import MemoryDisk, fail_at
from mq_wire.errors import (
    DataDirectoryUnusable,
    DataLost,
    InternalError,
    InvalidOption,
    JournalDamaged,
    LimitExceeded,
    MqError,
    StorageFailed,
)
from spark_tests.support.journals import UUID_1, Entries, random_entries, recover, size_of, write


def test_many_turns_over_many_segments_come_back(rng: random.Random) -> None:
    disk = MemoryDisk()
    journal = Journal.create(disk, TINY, UUID_1)
    history: list[tuple[int, Entries]] = []
    for _ in range(5):
        for _ in range(30):
            entries = random_entries(rng)
            history.append((write(journal, entries), entries))
        journal, recovered = recover(disk)
        assert recovered == history
    numbers = [number for number, _, _ in journal.space.segments()]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) > 5
    firsts, lasts = (
        [first for _, first, _ in journal.space.segments()],
        [last for _, _, last in journal.space.segments()],
    )
    assert firsts == [1, *(last + 1 for last in lasts[:-1])]
    assert lasts[-1] == journal.position.turn == journal.next_turn - 1


@pytest.mark.parametrize("sector_bytes", [512, 4096])
def test_a_turn_begins_and_ends_on_a_sector(sector_bytes: int, rng: random.Random) -> None:
    disk = MemoryDisk(sector_bytes)
    settings = dataclasses.replace(TINY, sector_bytes=None)
    journal = Journal.create(disk, settings, UUID_1)
    for _ in range(20):
        write(journal, random_entries(rng))
        assert journal.position.position % sector_bytes == 0


def test_a_turn_is_one_write_and_one_sync() -> None:
    disk = MemoryDisk()
    journal = Journal.create(disk, TINY, UUID_1)
    write(journal, [(b"first", None)])
    seen: list[str] = []
    disk.hook = lambda step, name, _: seen.append(f"{step} {name}")
    journal.reserve(4000)
    for _ in range(5):
        journal.add(b"entry", bytes(200))
    assert seen == []
    journal.commit()
    assert seen == ["write segment-0000000001.mqj", "sync segment-0000000001.mqj"]


def test_an_empty_turn_is_not_written() -> None:
    disk = MemoryDisk()
    journal = Journal.create(disk, TINY, UUID_1)
    steps = disk.steps
    assert journal.commit() == journal.position.turn == 1
    assert disk.steps == steps


def test_bodies_are_the_mapped_bytes_and_their_checksums_are_checked() -> None:
    disk = MemoryDisk()
    journal = Journal.create(disk, TINY, UUID_1)
    body = pa.py_buffer(b"record batch" * 20)
    place = journal.add(b"", body)
    known = journal.add(b"", body, zlib.crc32(body))
    assert place is not None
    assert known is not None
    assert place.position % 64 == 0
    assert journal.add(b"state") is None
    journal.commit()
    assert journal.body(place).equals(body)
    assert journal.body(known).equals(body)
    disk.flip("segment-0000000001.mqj", place.position + 100)
    assert not journal.body(place, verify=False).equals(body), "a copy was made"
    with pytest.raises(JournalDamaged, match=f"segment 1, position {place.position}"):
        journal.body(place)


def test_places_come_back_with_recovery() -> None:
    disk = MemoryDisk()
    journal = Journal.create(disk, TINY, UUID_1)
    places = [journal.add(b"a", b"body"), journal.add(b"b"), journal.add(b"c", b"")]
    journal.commit()
    again, turns = Journal.recover(disk, TINY, UUID_1)
    recovered = [entry[2] for turn in turns for entry in turn.entries]
    assert recovered == places
    assert places[0] is not None
    assert again.body(places[0]).to_pybytes() == b"body"


def test_what_does_not_fit_goes_to_the_next_segment() -> None:
    journal = Journal.create(MemoryDisk(), TINY, UUID_1)
    large = journal.space.turn_bytes_max - 512
    assert not journal.space.fits(journal.space.turn_bytes_max - 128), "the segment has a turn already"
    assert journal.space.fits(journal.space.turn_bytes_max - 512 - 128)
    journal.add(b"in hand")
    assert not journal.space.fits(large)
    with pytest.raises(InternalError, match="commit"):
        journal.reserve(large)
    journal.commit()
    write(journal, [(b"", bytes(large))])
    assert journal.position.segment == 2
    with pytest.raises(LimitExceeded, match="segment_bytes"):
        journal.reserve(journal.space.turn_bytes_max - 127)
    journal.reserve(journal.space.turn_bytes_max - 128)
    assert journal.space.fits(journal.space.turn_bytes_max - 128), "a whole segment is one turn"


def test_recovery_from_a_position_reads_what_is_behind_it(rng: random.Random) -> None:
    disk = MemoryDisk()
    journal = Journal.create(disk, TINY, UUID_1)
    history, positions = [], [journal.position]
    for _ in range(40):
        entries = random_entries(rng)
        history.append((write(journal, entries), entries))
        positions.append(journal.position)
    for index in range(0, 41, 5):
        _, recovered = recover(disk.crash(rng), positions[index])
        assert recovered == history[index:]


def test_recovered_journal_opens_when_its_turns_are_read() -> None:
    disk = MemoryDisk()
    write(Journal.create(disk, TINY, UUID_1), [(b"x", None)])
    journal, turns = Journal.recover(disk, TINY, UUID_1)
    with pytest.raises(InternalError, match="not all of its recovered turns were read"):
        journal.add(b"too early")
    assert len(list(turns)) == 2
    assert journal.position.generation == 2
    write(journal, [(b"y", None)])


def test_segments_come_back_through_the_pool_and_old_frames_stay_unseen(rng: random.Random) -> None:
    disk = MemoryDisk()
    journal = Journal.create(disk, TINY, UUID_1)
    history: list[tuple[int, Entries]] = []
    position = journal.position
    for _ in range(12):
        for _ in range(8):
            entries = random_entries(rng)
            history.append((write(journal, entries), entries))
        journal, recovered = recover(disk.crash(rng), position)
        assert recovered == [turn for turn in history if turn[0] > position.turn]
        disk = journal._disk  # type: ignore[assignment]
        position = journal.position
        for number, _, _ in journal.space.segments()[:-1]:
            journal.reclaim(number)
        assert len(journal.space.segments()) == 1
    names = disk.list_names()
    assert len(names) <= 1 + TINY.reserves + 2 * TINY.pool_segments
    assert journal.space.used_bytes() == TINY.segment_bytes


def test_a_segment_that_was_given_back_is_gone(rng: random.Random) -> None:
    journal = Journal.create(MemoryDisk(), TINY, UUID_1)
    place = journal.add(b"", b"kept" * 50)
    assert place is not None
    journal.commit()
    with pytest.raises(InternalError, match="being written"):
        journal.reclaim(1)
    while journal.position.segment == 1:
        write(journal, random_entries(rng))
    assert journal.body(place).to_pybytes() == b"kept" * 50
    journal.reclaim(1)
    with pytest.raises(DataLost, match="segment 1"):
        journal.body(place)
    with pytest.raises(DataLost, match="segment 1"):
        journal.reclaim(1)


def test_a_device_with_larger_sectors_gets_new_segments() -> None:
    disk = MemoryDisk(512)
    journal = Journal.create(disk, TINY, UUID_1)
    write(journal, [(b"before", None)])
    disk.sector_bytes = 4096
    journal, recovered = recover(disk, settings=dataclasses.replace(TINY, sector_bytes=4096))
    assert (journal.position.segment, journal.position.position) == (2, 2 * 4096)
    number = write(journal, [(b"after", None)])
    _, again = recover(disk)
    assert again == [*recovered, (number, [(b"after", None)])]


def test_another_segment_size_holds_for_new_segments(rng: random.Random) -> None:
    disk = MemoryDisk()
    journal = Journal.create(disk, TINY, UUID_1)
    history = [(write(journal, entries), entries) for entries in (random_entries(rng) for _ in range(20))]
    journal, recovered = recover(disk, settings=dataclasses.replace(TINY, segment_bytes=32 << 10))
    assert recovered == history
    write(journal, [(b"", bytes(20 << 10))])
    assert disk.open(f"segment-{journal.position.segment:010d}.mqj").size() == 32 << 10


def test_another_journal_is_refused() -> None:
    disk = MemoryDisk()
    Journal.create(disk, TINY, UUID_1)
    with pytest.raises(DataDirectoryUnusable, match="belongs to journal"):
        Journal.recover(disk, TINY, UUID(int=9))


@pytest.mark.parametrize("what", ["write", "sync"])
def test_a_failed_write_or_sync_is_final(what: str) -> None:
    disk = MemoryDisk()
    journal = Journal.create(disk, TINY, UUID_1)
    disk.hook = fail_at(what, 1)
    journal.add(b"x")
    with pytest.raises(StorageFailed, match="Input/output error"):
        journal.commit()
    for call in (
        journal.commit,
        lambda: journal.add(b"y"),
        lambda: journal.reserve(1),
        lambda: journal.reclaim(1),
    ):
        with pytest.raises(StorageFailed, match="failed earlier"):
            call()


@pytest.mark.parametrize(
    "change",
    [
        {"segment_bytes": 5000},
        {"segment_bytes": 4096},
        {"pool_segments": 1},
        {"sector_bytes": 1024},
        {"maps_max": 1},
    ],
)
def test_settings_are_checked(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match=next(iter(change))):
        dataclasses.replace(TINY, **change)


def test_real_files_and_the_background_pool(tmp_path: Path, rng: random.Random) -> None:
    disk = RealDisk(tmp_path / "journal")
    settings = JournalSettings(segment_bytes=1 << 20, maps_max=2)
    journal = Journal.create(disk, settings, UUID_1)
    history = []
    for _ in range(60):
        entries: Entries = [
            (rng.randbytes(50), rng.randbytes(rng.choice([10, 100_000]))) for _ in range(rng.randint(1, 3))
        ]
        history.append((write(journal, entries), entries))
    assert len(journal.space.segments()) > 3
    journal.close()
    journal, turns = Journal.recover(disk, settings, UUID_1)
    kept = [(turn.number, turn.entries) for turn in turns if turn.entries]
    assert [
        (number, [(bytes(h), bytes(b or b"")) for h, b, _ in entries]) for number, entries in kept
    ] == history
    places = [place for _, entries in kept for _, _, place in entries if place is not None]
    read: list[bytes] = []

    def reader() -> None:
        read.extend(journal.body(place).to_pybytes() for place in places)

    threads = [threading.Thread(target=reader) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(read) == sorted([body or b"" for _, entries in history for _, body in entries] * 3)
    journal.close()
    with pytest.raises(InternalError, match="closed"):
        journal.add(b"x")


def test_real_writes_of_more_buffers_than_one_call_takes(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    file: RealFile = disk.create("file")
    buffers = [bytes([index % 256]) * (index % 7) for index in range(5000)]
    file.write_at(buffers, 10)
    assert file.read_at(10, 1 << 20) == b"".join(buffers)
    view = file.map()
    file.write_at([b"later"], 0)
    assert bytes(view[:5]) == b"later"
    assert view.readonly
    file.close()


def test_many_large_and_small_entries_in_one_turn(tmp_path: Path, rng: random.Random) -> None:
    disk = RealDisk(tmp_path)
    settings = JournalSettings(segment_bytes=64 << 20, fill_in_background=False)
    journal = Journal.create(disk, settings, UUID_1)
    large = rng.randbytes(40_000)
    entries: Entries = [
        (b"%d" % index, large[index % 100 :] if index % 2 else large[:10]) for index in range(2400)
    ]
    assert size_of(entries) < journal.space.turn_bytes_max - FIRST_POSITION
    number = write(journal, entries)
    journal.close()
    journal, recovered = recover(disk, settings=settings)
    assert recovered == [(number, entries)]
    journal.close()


def test_frame_bytes_is_what_add_takes() -> None:
    journal = Journal.create(MemoryDisk(), TINY, UUID_1)
    assert frames.frame_bytes(0, None) == 64
    assert frames.frame_bytes(1, None) == 128
    assert frames.frame_bytes(64, 0) == 128
    first = journal.add(b"x" * 64, b"y" * 65)
    second = journal.add(b"", b"z")
    assert first is not None
    assert second is not None
    assert second.position - first.position == 128 + 64


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.ENOMEM, "memory limit"), (errno.EMFILE, "ulimit -n"), (errno.EIO, "check the disk")],
)
@pytest.mark.parametrize("where", ["map", "read_in"])
def test_no_memory_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str, where: str
) -> None:
    journal = Journal.create(RealDisk(tmp_path), TINY, UUID_1)
    place = journal.add(b"header", b"body")
    assert place is not None
    journal.commit()

    def refuse(*_: object) -> memoryview:
        raise OSError(number, os.strerror(number), "segment")

    monkeypatch.setattr(RealFile if where == "map" else segments, where, refuse)
    if where == "read_in" and number != errno.ENOMEM:
        remedy = "these rows are lost here"
    with pytest.raises(MqError, match=remedy) as caught:
        journal.body(place)
    assert isinstance(caught.value, JournalDamaged) is (remedy == "these rows are lost here")
    journal.close()
