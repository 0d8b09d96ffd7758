"""What a broker sends on its data streams, from bytes to headers and records. Bytes from the wire may be
anything.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.message import DecodeError

from mq_wire import framing
from mq_wire.errors import InternalError, InvalidRequest
from mq_wire.v1 import common_pb2, consume_pb2

#: Whoever goes on behind these rows asks for the next number, which must be one.
_DELIVERY_MAX: Final = 2**63 - 1


def consumed(message: bytes) -> tuple[consume_pb2.ConsumeHeader, memoryview]:
    """Returns header and records of a `ConsumeResponse`; the records are a view of `message`.

    Raises:
        InternalError: the bytes are no such message.
    """
    try:
        header, records = framing.split(message)
        return consume_pb2.ConsumeHeader.FromString(bytes(header)), records
    except (DecodeError, InvalidRequest) as error:
        raise _unreadable("Consume", message, error) from None


def fetched(message: bytes) -> tuple[common_pb2.RowsHeader, memoryview]:
    """Returns header and records of a `FetchResponse`; the records are a view of `message`.

    Raises:
        InternalError: the bytes are no such message.
    """
    try:
        header_bytes, records = framing.split(message)
        header = common_pb2.RowsHeader.FromString(bytes(header_bytes))
    except (DecodeError, InvalidRequest) as error:
        raise _unreadable("Fetch", message, error) from None
    if header.first_delivery + header.rows > _DELIVERY_MAX:
        raise InternalError(
            f"the broker sent {header.rows} rows from delivery number {header.first_delivery} on: there "
            f"are none as high"
        )
    return header, records


def _unreadable(method: str, message: bytes, error: Exception) -> InternalError:
    return InternalError(
        f"{len(message)} bytes that the broker sent on {method} are no answer: {error}; is it a broker of "
        f"pyspark-mq?"
    )
