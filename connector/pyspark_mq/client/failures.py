"""What a failed gRPC call means: the broker's own error, or what its status says of the way to the broker."""

from __future__ import annotations

from typing import Any

import grpc

from mq_wire import errors
from mq_wire.errors import (
    CODE_METADATA_KEY,
    BrokerUnavailable,
    Busy,
    InternalError,
    LimitExceeded,
    MqError,
    Unsupported,
)
from pyspark_mq.client.address import proxy_of


def told_by_broker(failure: grpc.RpcError) -> MqError | None:
    """Returns the error that the broker has named; None where it was somebody else who failed the call."""
    metadata: Any = failure.trailing_metadata() or ()
    for key, value in metadata:
        if key == CODE_METADATA_KEY:
            code = value if isinstance(value, str) else value.decode()
            return errors.from_code(code, failure.details() or "")
    return None


def told_by_status(failure: grpc.RpcError, what: str, endpoint: str) -> MqError:
    """Returns the error that gRPC's status stands for; `what` was being done, at `endpoint`."""
    status = failure.code()
    details = failure.details() or ""
    # A broker that stops or is killed shows as any of these, as the moment wants it.
    if (
        status in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        or "RST_STREAM" in details
        or "Stream removed" in details
    ):
        proxy = proxy_of(endpoint)
        through = (
            "" if proxy is None else f", or go there without the proxy {proxy}: add its host to no_proxy"
        )
        by = "" if proxy is None else f" through the proxy {proxy}"
        return BrokerUnavailable(
            f"{what}: no broker answers at mq://{endpoint}{by} ({details}): start it with `mq broker`, "
            f"or correct the address{through}"
        )
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return BrokerUnavailable(
            f"{what}: the broker at {endpoint} gave no answer in time: look at its log, or allow more time"
        )
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED:
        if "larger than max" in details:
            return LimitExceeded(f"{what}: {details}: send smaller batches")
        return Busy(f"{what}: the broker at {endpoint} is at a limit ({details}): try again later")
    if status is grpc.StatusCode.UNIMPLEMENTED:
        return Unsupported(f"{what}: the broker at {endpoint} does not know this call ({details}): update it")
    return InternalError(f"{what}: the broker at {endpoint} answered {status.name}: {details}")
