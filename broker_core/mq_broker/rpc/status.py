"""Sends errors to clients: as a gRPC status with the stable code in the trailing metadata, or as a message
within a stream.
"""

from __future__ import annotations

import logging
from typing import Final, NoReturn

import grpc

from mq_broker.log import say
from mq_wire.errors import CODE_METADATA_KEY, TABLE, InternalError, MqError
from mq_wire.v1.common_pb2 import Error

#: A status is sent as HTTP/2 trailers. Peers accept 8 KiB of them, and one byte may take three.
_MESSAGE_BYTES_MAX: Final = 2000


def as_mq_error(error: BaseException) -> MqError:
    """Returns `error` if it is in the table of errors. Any other error becomes an `InternalError`, and its
    traceback is logged.
    """
    if isinstance(error, MqError) and type(error) in TABLE:
        if isinstance(error, InternalError) and error.__cause__ is not None:
            say(logging.ERROR, "bug", str(error), error=error.__cause__)
        return error
    say(logging.ERROR, "bug", f"a bug in the broker: {type(error).__name__}: {error}", error=error)
    return InternalError(
        f"a bug in the broker: {type(error).__name__}: {error}; the broker's log has the traceback, "
        "please report it"
    )


def abort(context: grpc.ServicerContext, error: BaseException) -> NoReturn:
    """Ends the call with the status of `error`."""
    known = as_mq_error(error)
    context.set_trailing_metadata(((CODE_METADATA_KEY, known.code),))
    context.abort(grpc.StatusCode[TABLE[type(known)]], _shortened(str(known)))


def in_band(error: BaseException) -> Error:
    """Returns `error` as a message for a stream that goes on."""
    known = as_mq_error(error)
    return Error(code=known.code, message=_shortened(str(known)))


def _shortened(text: str) -> str:
    data = text.encode("utf-8", "replace")
    return (
        text
        if len(data) <= _MESSAGE_BYTES_MAX
        else data[: _MESSAGE_BYTES_MAX - 3].decode("utf-8", "ignore") + "..."
    )
