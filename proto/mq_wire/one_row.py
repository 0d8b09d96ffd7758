"""Record batches of one row with a value, perhaps a key, and nothing else: what is sent by those who wait for
each receipt. Arrow takes 50 us to write one, and as long to read and validate one.

Two of them with the same lengths differ in the bytes of key and value alone. So Arrow writes the rest once
for each pair of lengths, and bytes that are exactly those are valid.
"""

from __future__ import annotations

import functools
import struct
from typing import Final

import pyarrow as pa

from mq_wire import envelope

#: Longer keys and values gain nothing.
BYTES_MAX: Final = 64 << 10
_LENGTHS_KEPT: Final = 2048
_NO_KEY: Final = -1
#: Arrow pads each buffer to a multiple of this; the offsets of one row take as much.
_ALIGNMENT: Final = 8
_OFFSETS: Final = struct.Struct("<ii")


def encode(value: bytes, key: bytes | None) -> bytes | None:
    """Returns what `envelope.encode` makes of a row; None where it is to be asked itself."""
    length = _NO_KEY if key is None else len(key)
    if len(value) > BYTES_MAX or length > BYTES_MAX:
        return None
    around = _around(length, len(value))
    if around is None:
        return None
    before, between, behind = around
    return before + value + behind if key is None else b"".join((before, key, between, value, behind))


def is_one_row(records: memoryview, columns: int) -> bool:
    """Whether these are bytes of `encode`; False says nothing."""
    if columns == envelope.VALUE:
        key_bytes, at = _NO_KEY, _start(_NO_KEY)
    elif columns == envelope.VALUE | envelope.KEY:
        at = _start(0)
        if not at or len(records) < at:
            return False
        key_bytes = _OFFSETS.unpack_from(records, at - _ALIGNMENT)[1]
        if not 0 <= key_bytes <= BYTES_MAX:
            return False
        at += key_bytes + -key_bytes % _ALIGNMENT + _ALIGNMENT
    else:
        return False
    if not at or len(records) < at:
        return False
    value_bytes = _OFFSETS.unpack_from(records, at - _ALIGNMENT)[1]
    if not 0 <= value_bytes <= BYTES_MAX or len(records) != at + value_bytes + -value_bytes % _ALIGNMENT:
        return False
    around = _around(key_bytes, value_bytes)
    if around is None:
        return False
    before, between, _ = around
    return records[: len(before)] == before and (
        key_bytes == _NO_KEY or records[len(before) + key_bytes : at] == between
    )


@functools.cache
def _start(key_bytes: int) -> int:
    """Where the first buffer of bytes begins; 0 where Arrow writes in another way than we know."""
    around = _around(key_bytes, 0)
    return 0 if around is None else len(around[0])


@functools.lru_cache(_LENGTHS_KEPT)
def _around(key_bytes: int, value_bytes: int) -> tuple[bytes, bytes, bytes] | None:
    """Returns what stands before the key (before the value, where there is no key), between the two, and
    behind; None where Arrow writes in another way than we know.
    """
    key, value = b"k" * max(key_bytes, 0), b"v" * value_bytes
    columns = {"key": key, "value": value} if key_bytes != _NO_KEY else {"value": value}
    schema = envelope.schema_of(sum(envelope.BIT[name] for name in columns))
    arrays = [pa.array([content], pa.binary()) for content in columns.values()]
    whole = bytes(memoryview(envelope.encode(pa.RecordBatch.from_arrays(arrays, schema=schema))))
    behind = bytes(-value_bytes % _ALIGNMENT)
    at = len(whole) - value_bytes - len(behind)
    if key_bytes == _NO_KEY:
        parts = whole[:at], b"", behind
        again = parts[0] + value + behind
    else:
        between = bytes(-key_bytes % _ALIGNMENT) + _OFFSETS.pack(0, value_bytes)
        parts = whole[: at - len(between) - key_bytes], between, behind
        again = b"".join((parts[0], key, between, value, behind))
    lengths = max(key_bytes, 0) if key_bytes != _NO_KEY else value_bytes
    return parts if again == whole and parts[0].endswith(_OFFSETS.pack(0, lengths)) else None
