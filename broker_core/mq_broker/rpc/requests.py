"""Turns bytes from the wire into request messages. Their size is checked before they are parsed, on the
thread of their call.

gRPC would parse them on the one thread that serves all connections, would not tell why parsing failed, and
would write a traceback for each failure.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from mq_wire import framing
from mq_wire.errors import InvalidRequest, LimitExceeded
from mq_wire.limits import ID_BYTES_MAX, PARTITIONS_MAX, REQUEST_BYTES_MAX, RPC_BYTES_MAX
from mq_wire.service import Method

#: Methods whose requests may have long lists: ranges of offsets, or tokens of staged sets.
_LISTS: Final = frozenset({"Consume", "CommitStaged", "DiscardStaged"})
#: Unary methods that look at much however small the request is: they are answered one at a time, and the
#: connections that ask take turns. Whoever writes waits for one of them at most.
LISTINGS: Final = frozenset({"ListConsumers", "ListDestinations", "ListMarkers", "ListStaged", "OpenBrowse"})
#: Fields with names, which have a check of their own (`mq_wire.names`).
_CHECKED_NAMES: Final = frozenset({"name", "destination", "consumer"})
#: The fields of longer requests are counted before they are parsed, since two bytes may become an object of a
#: hundred bytes.
_LONG_BYTES: Final = 64 << 10
_FIELDS_MAX: Final = 100_000


def is_long_list(method: Method, message: bytes) -> bool:
    """Whether a request is a long list. Such requests are parsed and answered few at a time."""
    return len(message) > _LONG_BYTES and method.name in _LISTS


def parse(method: Method, message: bytes) -> Any:
    """Returns the request. Requests that are passed as bytes (`Method.parse_request` is None) are returned
    unchanged.

    Raises:
        LimitExceeded: the request has too many bytes, fields or partitions, or too long an id.
        InvalidRequest: the bytes are no such request.
    """
    if method.parse_request is None:
        return message
    limit = RPC_BYTES_MAX if method.name in _LISTS else REQUEST_BYTES_MAX
    if len(message) > limit:
        raise LimitExceeded(
            f"a request of {method.name} has {len(message)} bytes, the limit is {limit}: "
            "ask for less at a time"
        )
    if len(message) > _LONG_BYTES and _count(method.request, memoryview(message), _FIELDS_MAX) < 0:
        raise LimitExceeded(
            f"a request of {method.name} has more than {_FIELDS_MAX} fields: ask for less at a time"
        )
    try:
        request: Message = method.parse_request(message)
    except DecodeError as error:
        raise InvalidRequest(
            f"{len(message)} bytes were sent as a request of {method.name} and cannot be read as one: {error}"
        ) from None
    if len(message) > ID_BYTES_MAX:
        _check_sizes(method.name, request)
    return request


def _count(descriptor: Descriptor, message: memoryview, left: int) -> int:
    """Returns `left` less the number of fields in the message; negative if it has more than `left` fields."""
    for number, value in framing.fields(message):
        left -= 1
        field = descriptor.fields_by_number.get(number)
        if left >= 0 and value and field is not None and field.message_type is not None:
            left = _count(field.message_type, value, left)
        if left < 0:
            break
    return left


def _check_sizes(method: str, message: Message) -> None:
    """Refuses long ids, which would be stored and repeated in errors, and more partitions than a destination
    can have.
    """
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            if not field.is_repeated:
                _check_sizes(method, value)
            elif field.name in ("next", "partitions") and len(value) > PARTITIONS_MAX:
                raise LimitExceeded(
                    f"{field.name!r} of {method} names {len(value)} partitions, "
                    f"a destination has {PARTITIONS_MAX} at most"
                )
        elif field.name in _CHECKED_NAMES:
            continue
        elif field.type == FieldDescriptor.TYPE_STRING or (
            field.type == FieldDescriptor.TYPE_BYTES and field.name != "ranges"
        ):
            for text in value if field.is_repeated else (value,):
                size = len(text.encode() if isinstance(text, str) else text)
                if size > ID_BYTES_MAX:
                    raise LimitExceeded(
                        f"{field.name!r} of {method} has {size} bytes, the limit is {ID_BYTES_MAX}: "
                        "choose a shorter one"
                    )
