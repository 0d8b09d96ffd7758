"""Damage: to bytes, to protobuf messages as such, and to Arrow messages. Everything follows from the random
numbers that are passed in.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from typing import Final

from mq_wire.errors import InvalidRequest
from mq_wire.framing import join, split

#: Where arithmetic goes wrong.
NUMBERS: Final = (
    0,
    1,
    2,
    7,
    10,
    127,
    128,
    255,
    256,
    1023,
    1024,
    65_535,
    1 << 17,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**53,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 2,
    2**64 - 1,
)
_GROWN_BYTES_MAX: Final = 64 << 10
_TEXTS: Final = (
    b"",
    b"\x00",
    b"..",
    b"/",
    b"*",
    b">",
    b"a" * 256,
    b"\xff\xfe",
    "é\u2028\U0001f600".encode() * 200,
    b"name/billing",
    b"x" * 5000,
)


def mutated(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Returns `data` with one to four kinds of damage to its bytes; `other` is what it may be spliced
    with.
    """
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        rng.choice(_BYTE_MUTATORS)(rng, out, other)
        if len(out) > _GROWN_BYTES_MAX:
            del out[_GROWN_BYTES_MAX:]
    return bytes(out)


def _flip(rng: random.Random, out: bytearray, other: bytes) -> None:
    for _ in range(rng.choice((1, 1, 2, 8))):
        if out:
            out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)


def _set(rng: random.Random, out: bytearray, other: bytes) -> None:
    if out:
        out[rng.randrange(len(out))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def _insert(rng: random.Random, out: bytearray, other: bytes) -> None:
    at = rng.randrange(len(out) + 1)
    out[at:at] = rng.randbytes(rng.choice((1, 4, 8, 64)))


def _delete(rng: random.Random, out: bytearray, other: bytes) -> None:
    if out:
        at = rng.randrange(len(out))
        del out[at : at + rng.choice((1, 4, 8, 64))]


def _duplicate(rng: random.Random, out: bytearray, other: bytes) -> None:
    if out:
        at = rng.randrange(len(out))
        piece = out[at : at + rng.randrange(1, 65)]
        out[at:at] = piece * rng.choice((1, 2, 100))


def _truncate(rng: random.Random, out: bytearray, other: bytes) -> None:
    if out:
        del out[rng.randrange(len(out)) :]


def _splice(rng: random.Random, out: bytearray, other: bytes) -> None:
    out[rng.randrange(len(out) + 1) :] = other[rng.randrange(len(other) + 1) :]


def _number(rng: random.Random, out: bytearray, other: bytes) -> None:
    size = rng.choice((1, 2, 4, 4, 8, 8))
    if len(out) >= size:
        at = rng.randrange(len(out) - size + 1)
        if rng.random() < 0.75:
            at -= at % min(size, 4)
        out[at : at + size] = (rng.choice(NUMBERS) & (1 << 8 * size) - 1).to_bytes(size, "little")


def _nudge(rng: random.Random, out: bytearray, other: bytes) -> None:
    if len(out) >= 4:
        at = rng.randrange(len(out) - 3) & ~3
        (value,) = struct.unpack_from("<I", out, at)
        struct.pack_into("<I", out, at, (value + rng.choice((-8, -4, -1, 1, 4, 8, 64))) & 0xFFFFFFFF)


_BYTE_MUTATORS: Final[Sequence[Callable[[random.Random, bytearray, bytes], None]]] = (
    _flip, _set, _insert, _delete, _duplicate, _truncate, _splice, _number, _number, _nudge)  # fmt: skip

# ---- Protobuf, read without a schema: a list of (field number, wire type, value).

Field = tuple[int, int, int | bytes]


def fields_of(message: bytes) -> list[Field] | None:
    """Returns the fields of a protobuf message; None where it is none."""
    fields: list[Field] = []
    at = 0
    while at < len(message):
        tag, at = _varint_at(message, at)
        kind = tag & 7
        if at < 0 or not tag >> 3:
            return None
        if kind == 0:
            value, at = _varint_at(message, at)
            if at < 0:
                return None
            fields.append((tag >> 3, 0, value))
        elif kind in (1, 2, 5):
            size = 8 if kind == 1 else 4
            if kind == 2:
                size, at = _varint_at(message, at)
            if at < 0 or at + size > len(message):
                return None
            fields.append((tag >> 3, kind, message[at : at + size]))
            at += size
        else:
            return None
    return fields


def _varint_at(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
    return 0, -1


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def message_of(fields: Sequence[Field]) -> bytes:
    """Returns the message of these fields."""
    parts = []
    for number, kind, value in fields:
        parts.append(varint(number << 3 | kind))
        if isinstance(value, int):
            parts.append(varint(value))
        else:
            parts += [varint(len(value)), value] if kind == 2 else [value]
    return b"".join(parts)


def restructured(rng: random.Random, message: bytes, other: bytes, depth: int = 0) -> bytes:
    """Returns a well-formed message whose fields are wrong: other numbers, types, counts, nested and unknown
    ones.
    """
    fields = fields_of(message)
    if not fields:
        return mutated(rng, message, other)
    at = rng.randrange(len(fields))
    number, kind, value = fields[at]
    choice = rng.randrange(10)
    if choice < 4:
        fields[at] = number, kind, _other_value(rng, kind, value, other, depth)
    elif choice == 4:
        del fields[at]
    elif choice == 5:
        fields[at:at] = [fields[at]] * rng.choice((1, 2, 50, 500))
    elif choice == 6:
        kind = rng.choice((0, 1, 2, 5))
        fields[at] = (
            number,
            kind,
            rng.choice(NUMBERS) if kind == 0 else rng.randbytes({1: 8, 5: 4}.get(kind, rng.randrange(20))),
        )
    elif choice == 7:
        fields[at] = rng.choice((1, 2, 3, 4, 15, 16, 100, 2**29 - 1)), kind, value
    elif choice == 8:
        rng.shuffle(fields)
    else:
        fields += fields_of(other) or []
    return message_of(fields)


def _other_value(rng: random.Random, kind: int, value: int | bytes, other: bytes, depth: int) -> int | bytes:
    if isinstance(value, int):
        return rng.choice((*NUMBERS, value + 1, max(value - 1, 0), value ^ 1, rng.getrandbits(64)))
    if kind != 2:
        return rng.randbytes(len(value))
    if depth < 3 and rng.random() < 0.6 and fields_of(value):
        return restructured(rng, value, other, depth + 1)
    return rng.choice((mutated(rng, value, other), rng.choice(_TEXTS), value * rng.choice((2, 40)), other))


# ---- Arrow.


def damaged_records(rng: random.Random, records: bytes, other: bytes) -> bytes:
    """Returns an IPC message with wrong numbers in its flatbuffer, or wrong offsets in its body, or damaged
    bytes anywhere.
    """
    if len(records) < 16 or rng.random() < 0.3:
        return mutated(rng, records, other)
    out = bytearray(records)
    (length,) = struct.unpack_from("<I", out, 4)
    metadata = 8, min(8 + length, len(out))
    body = metadata[1], len(out)
    for _ in range(rng.choice((1, 1, 2, 3))):
        low, high = metadata if rng.random() < 0.5 or body[0] >= body[1] else body
        size = rng.choice((2, 4, 4, 8, 8))
        if high - low < size:
            continue
        at = low + (rng.randrange(high - low - size + 1) & ~(min(size, 4) - 1))
        if at + size > len(out):
            continue
        old = int.from_bytes(out[at : at + size], "little")
        new = rng.choice((*NUMBERS, old + 1, old - 1, old + 8, old * 2, ~old, rng.randrange(64), len(out)))
        out[at : at + size] = (new & (1 << 8 * size) - 1).to_bytes(size, "little")
    return bytes(out)


def damaged_publish(
    rng: random.Random, message: bytes, other: bytes, others_records: bytes, producer: str
) -> bytes:
    """Returns a PublishRequest with damage to the records, to the header, to both or to the frame around
    them.
    """
    if rng.random() < 0.1:
        return mutated(rng, message, other)
    try:
        head, tail = split(message)
    except InvalidRequest:
        return mutated(rng, message, other)
    header, records = bytes(head), bytes(tail)
    choice = rng.random()
    if choice < 0.35:
        header = restructured(rng, header, other)
    if choice > 0.25:
        records = damaged_records(rng, records, others_records)
    fields = fields_of(header)
    if fields is not None and choice > 0.3 and rng.random() < 0.8:
        # As somebody new, so that what is accepted is stored, and not an old sequence.
        header = (
            message_of([field for field in fields if field[0] not in (4, 5, 6)])
            + b"\x22"
            + varint(len(producer))
            + producer.encode()
        )
    return join(header, records)
