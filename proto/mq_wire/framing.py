"""Reads and writes protobuf messages of a small header and large records, with fewer copies of the records.

Every data message of `mq.v1` is `{Header header = 1; bytes records = 2;}`. Generated code copies the records
twice to write a message: once to set the field and once to serialise it. `join` copies them once; `split`
does not copy. Any protobuf implementation reads what `join` writes, and `split` reads what any implementation
writes, with the fields in any order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mq_wire.errors import InvalidRequest

Buffer = bytes | bytearray | memoryview

_HEADER_TAG: Final = 0x0A
_RECORDS_TAG: Final = 0x12
_EMPTY: Final = memoryview(b"")
#: Most fields of one message: header, records, and fields that later versions may add. Without a bound, a
#: message of millions of empty fields would take seconds to skip.
_FIELDS_MAX: Final = 64


def join(header: bytes, records: Buffer = b"") -> bytes:
    """Returns the protobuf message with the serialised `header` as field 1 and `records` as field 2. Empty
    records are left out.
    """
    parts: list[Buffer] = [b"\x0a", _varint(len(header)), header]
    if len(records):
        parts += (b"\x12", _varint(len(records)), records)
    return b"".join(parts)


def split(message: Buffer) -> tuple[memoryview, memoryview]:
    """Returns header and records as views of `message`. A missing field is empty; unknown fields are skipped.

    Raises:
        InvalidRequest: the bytes are no protobuf message, or have more than 64 fields.
    """
    view = memoryview(message)
    header = records = _EMPTY
    at, end = 0, len(view)
    fields = 0
    while at < end:
        fields += 1
        if fields > _FIELDS_MAX:
            raise InvalidRequest(
                f"a message of {end} bytes has more than {_FIELDS_MAX} fields: send a header and records"
            )
        tag, at = _read_varint(view, at)
        kind = tag & 7
        if kind == 2:
            length, at = _read_varint(view, at)
            if length > end - at:
                raise InvalidRequest(
                    f"a field of {length} bytes reaches beyond the end of a message of {end} bytes"
                )
            if tag == _HEADER_TAG:
                header = view[at : at + length]
            elif tag == _RECORDS_TAG:
                records = view[at : at + length]
            at += length
        elif kind == 0:
            _, at = _read_varint(view, at)
        elif kind == 1 or kind == 5:
            at += 8 if kind == 1 else 4
        else:
            raise InvalidRequest(f"protobuf wire type {kind} at byte {at} is not in use")
    if at != end:
        raise InvalidRequest(f"the message ends inside a field, at byte {end}")
    return header, records


def fields(message: Buffer) -> Iterator[tuple[int, memoryview]]:
    """Yields (field number, bytes) of each field of any protobuf message. The bytes of varints and of
    fixed-size fields are empty.

    Raises:
        InvalidRequest: the bytes are no protobuf message.
    """
    view = memoryview(message)
    at, end = 0, len(view)
    while at < end:
        tag, at = _read_varint(view, at)
        length = 0
        if tag & 7 == 0:
            _, at = _read_varint(view, at)
        elif tag & 7 == 2:
            length, at = _read_varint(view, at)
        elif tag & 7 in (1, 5):
            at += 8 if tag & 7 == 1 else 4
        else:
            raise InvalidRequest(f"protobuf wire type {tag & 7} at byte {at} is not in use")
        if at + length > end:
            raise InvalidRequest(f"the message ends inside a field, at byte {end}")
        yield tag >> 3, view[at : at + length]
        at += length


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(view: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    for at in range(at, min(at + 10, len(view))):  # noqa: B020 - the cursor itself moves
        byte = view[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7
    raise InvalidRequest(f"a number at byte {at} does not end")
