"""Frames: what is written reads back, in its place and nowhere else."""

from __future__ import annotations

import zlib
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq_broker.journal import frames
from mq_broker.journal.frames import Frame, FrameKind, Reading
from mq_broker.journal.journal import Journal
from mq_broker.journal.settings import TINY
from mq_broker.testing.memory_disk import MemoryDisk
from mq_wire.errors import DataDirectoryUnusable
from spark_tests.support.journals import UUID_1, Entries, recover, write

GOLDEN = Path(__file__).with_name("golden_v1.bin")
GOLDEN_TURNS: list[Entries] = [
    [(b"created", None), (b"published", bytes(range(200)))],
    [(b"", b"")],
    [(b"x" * 64, b"y" * 64), (b"acknowledged" * 9, None), (b"", None)],
]
SEED = frames.seed_of(UUID_1)
u64 = st.integers(0, 2**64 - 1)
u32 = st.integers(0, 2**32 - 1)


def encode(
    kind: FrameKind, header: bytes, body: bytes | None, segment: int, turn: tuple[int, int, int]
) -> bytes:
    crc = zlib.crc32(body or b"")
    head, _ = frames.encode_head(
        SEED, kind, header, None if body is None else len(body), crc, (segment, 0), turn
    )
    return head + (body or b"") + bytes(-len(body or b"") % 64)


def golden_journal() -> tuple[MemoryDisk, bytes]:
    """The history of the golden file, and the bytes that were used of its segment."""
    disk = MemoryDisk()
    journal = Journal.create(disk, TINY, UUID_1)
    for entries in GOLDEN_TURNS:
        write(journal, entries)
    return disk, disk.open("segment-0000000001.mqj").read_at(0, journal.position.position)


def test_version_1_is_written_as_ever() -> None:
    _, written = golden_journal()
    assert written == GOLDEN.read_bytes()


def test_version_1_is_read_for_ever() -> None:
    disk = MemoryDisk()
    file = disk.create("segment-0000000001.mqj")
    file.write_at([GOLDEN.read_bytes().ljust(TINY.segment_bytes, b"\0")], 0)
    _, turns = recover(disk)
    assert turns == [(2, GOLDEN_TURNS[0]), (3, GOLDEN_TURNS[1]), (4, GOLDEN_TURNS[2])]


@given(
    kind=st.sampled_from(FrameKind),
    header=st.binary(max_size=200),
    body=st.none() | st.binary(max_size=300),
    segment=u64,
    turn=st.tuples(u64, u32, u32),
)
def test_a_frame_reads_back(
    kind: FrameKind, header: bytes, body: bytes | None, segment: int, turn: tuple[int, int, int]
) -> None:
    data = encode(kind, header, body, segment, turn)
    frame = frames.decode(memoryview(data), segment, 0, SEED)
    assert isinstance(frame, Frame)
    assert (frame.kind, bytes(frame.header), frame.has_body) == (kind, header, body is not None)
    assert (frame.turn, frame.generation, frame.index) == turn
    assert frame.end == len(data) == frames.frame_bytes(len(header), None if body is None else len(body))
    found = frames.body_of(memoryview(data), frame)
    assert found is not None
    assert bytes(found) == (body or b"")


@given(header=st.binary(max_size=80), body=st.binary(max_size=80), data=st.data())
def test_no_bit_flips_unseen(header: bytes, body: bytes, data: st.DataObject) -> None:
    whole = bytearray(encode(FrameKind.ENTRY, header, body, 3, (7, 1, 0)))
    at = data.draw(st.integers(0, len(whole) * 8 - 1))
    whole[at // 8] ^= 1 << at % 8
    frame = frames.decode(memoryview(whole), 3, 0, SEED)
    assert isinstance(frame, Reading) or frames.body_of(memoryview(whole), frame) is None


def test_what_bytes_mean() -> None:
    data = memoryview(encode(FrameKind.ENTRY, b"h", b"b", 3, (7, 1, 0)))
    assert frames.decode(data, 4, 0, SEED) is Reading.STALE
    assert frames.decode(memoryview(bytes(64) + bytes(data)), 3, 64, SEED) is Reading.STALE
    assert frames.decode(memoryview(bytes(64)), 3, 0, SEED) is Reading.UNWRITTEN
    assert frames.decode(data, 3, 0, frames.seed_of(UUID(int=1))) is Reading.BROKEN
    assert frames.decode(data[:-64], 3, 0, SEED) is Reading.BROKEN
    assert frames.decode(data, 3, 8, SEED) is Reading.BROKEN
    assert frames.decode(data, 3, len(data), SEED) is Reading.BROKEN


@pytest.mark.parametrize(("position", "value"), [(4, 2), (5, 9), (6, 2)], ids=["version", "kind", "flag"])
def test_a_right_frame_of_a_newer_program_is_refused(position: int, value: int) -> None:
    data = bytearray(encode(FrameKind.ENTRY, b"", None, 3, (7, 1, 0)))
    data[position] = value
    data[60:64] = zlib.crc32(data[:60], SEED).to_bytes(4, "little")
    with pytest.raises(DataDirectoryUnusable, match="segment 3, position 0"):
        frames.decode(memoryview(data), 3, 0, SEED)
