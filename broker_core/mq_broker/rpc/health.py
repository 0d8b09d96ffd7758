"""The service `grpc.health.v1`: whether the broker serves, asked once (`Check`) or watched (`Watch`).

We do not use the implementation of grpcio: it sends to watchers while it holds its lock. One watcher that
does not read, or leaves at the wrong moment, would block every health check and the stop of the broker.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2

from mq_broker.rpc.bounds import LiveStreams
from mq_wire import service

SERVICE_NAME: Final = "grpc.health.v1.Health"
_KNOWN: Final = frozenset({"", service.SERVICE_NAME})
_Status = health_pb2.HealthCheckResponse


class Health:
    """Reports SERVING from `begin` to `end`. `streams` tells watchers when the broker stops."""

    def __init__(self, streams: LiveStreams) -> None:
        self._streams = streams
        self._serving = False

    def begin(self) -> None:
        """From now on the status is SERVING."""
        self._serving = True

    def end(self) -> None:
        """From now on the status is NOT_SERVING. Watchers hear it when the streams are told to stop."""
        self._serving = False

    def _status(self, name: str) -> int | None:
        if name not in _KNOWN:
            return None
        return int(_Status.SERVING if self._serving and not self._streams.stopping else _Status.NOT_SERVING)

    def check(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Answers `Check`. Aborts with NOT_FOUND for an unknown service."""
        status = self._status(request.service)
        if status is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"there is no service {request.service[:200]!r} here")
        return _Status(status=status)

    def watch(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        """Answers `Watch`: yields the current status, and another one when the broker stops."""
        status = self._status(request.service)
        yield _Status(status=_Status.SERVICE_UNKNOWN if status is None else status)
        changed = threading.Event()
        with self._streams.told_to_stop(changed.set):
            if not context.add_callback(changed.set):
                return
            changed.wait()
        if context.is_active() and status is not None:
            yield _Status(status=_Status.NOT_SERVING)
