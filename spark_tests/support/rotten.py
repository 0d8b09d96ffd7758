"""A queue of which the bytes of one frame are rotten."""

from __future__ import annotations

import pathlib

#: Frames of one queue; the second one rots.
FRAMES, ROWS = 4, 50
BROKEN = range(ROWS, 2 * ROWS)
LOST = rf"offsets {BROKEN[0]}-{BROKEN[-1]} of partition 0 of 'q' \({ROWS} rows\) are lost"


def value(offset: int) -> bytes:
    return b"value-%06d" % offset


WHOLE = [value(offset) for offset in range(FRAMES * ROWS) if offset not in BROKEN]


def rot(data_dir: pathlib.Path, text: bytes) -> None:
    """Flips a bit of the one place in the journal where `text` is."""
    found = [path for path in sorted((data_dir / "journal").glob("segment-*")) if text in path.read_bytes()]
    assert len(found) == 1
    data = found[0].read_bytes()
    with found[0].open("r+b") as file:
        file.seek(data.index(text))
        file.write(bytes([text[0] ^ 1]))
