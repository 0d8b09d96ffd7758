"""Entries and parts of snapshots as they were stored: read, or refused where a newer version wrote them.

What this version does not know it would drop: it would apply half of a decision, and its next snapshot would
make that final. So everything unknown is refused, wherever it stands: an entry or a part of another kind, a
field within a known one, a subscription where a destination can only have one, records of another schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeVar

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from mq_wire import envelope
from mq_wire.errors import DataDirectoryUnusable
from mq_wire.limits import PRIORITIES
from mq_wire.store.v1 import store_pb2 as store

#: Kinds of parts, and how many names their keys have behind the kind.
_PARTS: Final = {"broker": 0, "queries": 1, "markers": 1, "log": 2, "rows": 3, "consumers": 1, "staged": 1}
#: The one subscription of a queue.
_QUEUE: Final = 0
#: Keys that a refusal shows.
_SHOWN: Final = 5

_Stored = TypeVar("_Stored", bound=Message)


def newer(what: str) -> DataDirectoryUnusable:
    """Returns the error for something that a newer version wrote."""
    return DataDirectoryUnusable(
        f"{what}, which this version does not know: start the newer mq broker that wrote it, and use the "
        "`mq verify` and `mq repair` of that version. This one would lose it; nothing was changed"
    )


def entry_of(header: bytes | memoryview) -> store.Entry:
    """Returns the entry that was stored as these bytes.

    Raises:
        DataDirectoryUnusable: a newer version wrote it.
    """
    entry = _read(store.Entry, bytes(header), "an entry")
    kind = entry.WhichOneof("what")
    if kind is None:
        raise newer("the journal has an entry without content")
    _check(getattr(entry, kind), f"the journal has an entry {kind!r}")
    return entry


def part_of(kind: type[_Stored], key: str, body: bytes) -> _Stored:
    """Returns the part, or the piece of one, that was stored as these bytes.

    Raises:
        DataDirectoryUnusable: a newer version wrote it.
    """
    part = _read(kind, body, f"part {key!r}")
    for what in _elements(part):
        _check(what, f"the snapshot has a part {key!r}")
    return part


def check_keys(keys: Iterable[str]) -> None:
    """Refuses parts of other kinds, before any part is taken over.

    Raises:
        DataDirectoryUnusable: there are some.
    """
    unknown = sorted(key for key in keys if _PARTS.get(key.partition("/")[0]) != key.count("/"))
    if unknown:
        more = f" and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""
        raise newer(f"the snapshot has parts {', '.join(map(repr, unknown[:_SHOWN]))}{more}")


def _read(kind: type[_Stored], data: bytes, what: str) -> _Stored:
    where = "the journal" if kind is store.Entry else "the snapshot"
    try:
        message = kind.FromString(data)
    except DecodeError as error:
        raise newer(f"{where} has {what} in another form ({error})") from error
    message.DiscardUnknownFields()
    if message.ByteSize() != len(data):
        # Something is missing now; or the bytes were put together from several messages.
        unknown = sorted(_unknown_fields(kind.FromString(data), ""))
        if unknown:
            raise newer(f"{where} has {what} with {', '.join(unknown[:_SHOWN])}")
    return message


def _unknown_fields(message: Any, path: str) -> set[str]:
    """Returns the fields that are not known, at whatever depth: by number, and in which field they are."""
    unknown, place = UnknownFieldSet(message), f" in {path!r}" if path else ""
    found = {f"field {unknown[at].field_number}{place}" for at in range(len(unknown))}
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        inside = f"{path}.{field.name}" if path else field.name
        for inner in (value,) if isinstance(value, Message) else value:
            found |= _unknown_fields(inner, inside)
    return found


def _elements(part: Message) -> Iterator[Any]:
    """Yields what is in a part that belongs to a subscription or describes records."""
    if isinstance(part, store.RowsPart):
        yield from part.ready
        yield from part.count_bits
    elif isinstance(part, store.ConsumersPart):
        yield from part.consumers
        yield from part.ended
    elif isinstance(part, store.StagedPart):
        yield from (frame.staged for frame in part.frames)


def _check(what: Any, said: str) -> None:
    """Refuses values that only a newer version can have written."""
    if getattr(what, "subscription", _QUEUE) != _QUEUE:
        raise newer(f"{said} of subscription {what.subscription}")
    records = getattr(what, "records", None)
    if records is None:
        return
    if records.schema_id:
        raise newer(f"{said} with records of schema {records.schema_id}")
    if records.columns & ~envelope.ALL_COLUMNS:
        raise newer(f"{said} with records of columns {records.columns:#x}")
    if records.priority_plus_one > PRIORITIES:
        raise newer(f"{said} with records of priority {records.priority_plus_one - 1}")
