"""From bytes of the wire to request messages: bounded before they are parsed, and parsed on the thread of their call.

gRPC would parse on the one thread that serves all connections, say nothing of why it failed, and write a traceback for each failure.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.message import DecodeError

from mq_broker.rpc.bounds import Budget
from mq_wire.errors import InvalidRequest, LimitExceeded
from mq_wire.limits import REQUEST_BYTES_MAX, RPC_BYTES_MAX
from mq_wire.service import Method

#: Requests that hold long lists: ranges of offsets, tokens of staged sets.
_LISTS: Final = frozenset({"Consume", "CommitStaged", "DiscardStaged"})
#: Above this a request is parsed alone: two bytes may become an object of fifty.
_LARGE_BYTES: Final = 64 << 10


class Requests:
    """Parses requests. Those that are handled as bytes (`Method.parse_request` is None) pass."""

    def __init__(self) -> None:
        self._large = Budget(RPC_BYTES_MAX)

    def parse(self, method: Method, message: bytes) -> Any:
        """Returns the request.

        Raises:
            LimitExceeded: more bytes than a request of this method may have.
            InvalidRequest: the bytes are no such request.
        """
        if method.parse_request is None:
            return message
        limit = RPC_BYTES_MAX if method.name in _LISTS else REQUEST_BYTES_MAX
        if len(message) > limit:
            raise LimitExceeded(f"a request of {method.name} has {len(message)} bytes, the limit is {limit}: ask for less at a time")
        if len(message) <= _LARGE_BYTES:
            return _parsed(method, message)
        self._large.take(len(message))
        try:
            return _parsed(method, message)
        finally:
            self._large.give(len(message))


def _parsed(method: Method, message: bytes) -> Any:
    assert method.parse_request is not None
    try:
        return method.parse_request(message)
    except DecodeError as error:
        raise InvalidRequest(f"the {len(message)} bytes of a request of {method.name} are not one: {error}") from None
