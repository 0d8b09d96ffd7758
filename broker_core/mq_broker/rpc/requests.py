"""From bytes of the wire to request messages: bounded before they are parsed, and parsed on the thread of
their call.

gRPC would parse on the one thread that serves all connections, say nothing of why it failed, and write a
traceback for each failure.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from mq_wire import framing
from mq_wire.errors import InvalidRequest, LimitExceeded
from mq_wire.limits import ID_BYTES_MAX, PARTITIONS_MAX, REQUEST_BYTES_MAX, RPC_BYTES_MAX
from mq_wire.service import Method

#: Requests that hold long lists: ranges of offsets, tokens of staged sets.
_LISTS: Final = frozenset({"Consume", "CommitStaged", "DiscardStaged"})
#: Names have a rule and an error of their own.
_CHECKED_NAMES: Final = frozenset({"name", "destination", "consumer"})
#: Above this the fields of a request are counted before it is parsed, since two bytes may become an object of
#: a hundred.
_LONG_BYTES: Final = 64 << 10
_FIELDS_MAX: Final = 100_000


def is_long_list(method: Method, message: bytes) -> bool:
    """Whether a request is a list that takes long: such ones are parsed and answered few at a time."""
    return len(message) > _LONG_BYTES and method.name in _LISTS


def parse(method: Method, message: bytes) -> Any:
    """Returns the request. Those that are handled as bytes (`Method.parse_request` is None) pass.

    Raises:
        LimitExceeded: more bytes or fields than a request of this method may have, a longer name or id, or
            more partitions.
        InvalidRequest: the bytes are no such request.
    """
    if method.parse_request is None:
        return message
    limit = RPC_BYTES_MAX if method.name in _LISTS else REQUEST_BYTES_MAX
    if len(message) > limit:
        raise LimitExceeded(
            f"a request of {method.name} has {len(message)} bytes, the limit is {limit}: ask for less at a "
            f"time"
        )
    if len(message) > _LONG_BYTES and _count(method.request, memoryview(message), _FIELDS_MAX) < 0:
        raise LimitExceeded(
            f"a request of {method.name} has more than {_FIELDS_MAX} fields: ask for less at a time"
        )
    try:
        request: Message = method.parse_request(message)
    except DecodeError as error:
        raise InvalidRequest(
            f"the {len(message)} bytes of a request of {method.name} are not one: {error}"
        ) from None
    if len(message) > ID_BYTES_MAX:
        _check_sizes(method.name, request)
    return request


def _count(descriptor: Descriptor, message: memoryview, left: int) -> int:
    """Returns how many of `left` fields the message leaves, negative where it has more."""
    for number, value in framing.fields(message):
        left -= 1
        field = descriptor.fields_by_number.get(number)
        if left >= 0 and value and field is not None and field.message_type is not None:
            left = _count(field.message_type, value, left)
        if left < 0:
            break
    return left


def _check_sizes(method: str, message: Message) -> None:
    """Refuses texts that would be kept, journalled and repeated in errors, and more partitions than there can
    be.
    """
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            if not field.is_repeated:
                _check_sizes(method, value)
            elif field.name in ("next", "partitions") and len(value) > PARTITIONS_MAX:
                raise LimitExceeded(
                    f"{field.name!r} of {method} names {len(value)} partitions, a destination has "
                    f"{PARTITIONS_MAX} at most"
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
                        f"{field.name!r} of {method} has {size} bytes, the limit is {ID_BYTES_MAX}: choose "
                        f"a shorter one"
                    )
