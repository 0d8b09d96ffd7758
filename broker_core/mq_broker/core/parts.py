"""How a snapshot's parts are cut: each into pieces that stay small, however much it holds, so that whatever
is written can be read again.

The first piece of a part has the part's key, those behind it `<key>+1`, `<key>+2` ... Each is a message of
the part's kind by itself, with some of the elements of its lists; a part is read by taking over its pieces in
order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

#: A piece is closed when the next element would make it larger. One element takes `ELEMENT_BYTES_MAX` at
#: most.
PIECE_BYTES: Final = 4 << 20
#: The largest element of any part: a plan, whose bitmaps take 4 MiB and whose counts and batches less than
#: another one.
ELEMENT_BYTES_MAX: Final = 8 << 20
_MORE: Final = "+"


def key_of(part: tuple[object, ...]) -> str:
    """Returns the key of a part, as `State.dirty` holds it."""
    return "/".join(item.hex() if isinstance(item, bytes) else str(item) for item in part)


def part_of(key: str) -> str:
    """Returns the key of the part that a piece belongs to."""
    return key.partition(_MORE)[0]


def number_of(key: str) -> int:
    """Returns which piece of its part this is, from 0."""
    return int(key.partition(_MORE)[2] or 0)


def cut(key: str, elements: Iterable[bytes], head: bytes = b"") -> Iterator[tuple[str, bytes]]:
    """Yields the pieces of a part: (key, body). There is one at least.

    Args:
        key: of the part.
        elements: serialized messages of the part's kind, each with some of its fields; put one behind the
            other they are one message.
        head: begins every piece: fields that are not lists.
    """
    number, piece, size = 0, [head], len(head)
    for element in elements:
        if len(piece) > 1 and size + len(element) > PIECE_BYTES:
            yield _key(key, number), b"".join(piece)
            number, piece, size = number + 1, [head], len(head)
        piece.append(element)
        size += len(element)
    yield _key(key, number), b"".join(piece)


def renumbered(key: str, bodies: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
    """Yields bodies as the pieces of a part."""
    return ((_key(key, number), body) for number, body in enumerate(bodies))


def _key(key: str, number: int) -> str:
    return f"{key}{_MORE}{number}" if number else key
