"""A gate before the broker: a gRPC proxy that lets everything through, but can hold one call at a named
moment.

The product knows nothing of it: its clients have the gate's address. Who made a held call is told by the TCP
port that it came from, so that a test can kill exactly that process, and then let the call go on as a late
one, or cut it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, Literal

import grpc

from mq_wire.limits import RPC_BYTES_MAX
from mq_wire.service import METHODS
from spark_tests.support.waiting import wait_until

#: Before a request goes on to the broker, before its answer goes back, or when the broker has ended the call.
Moment = Literal["request", "response", "end"]

_HELD_MAX_S: Final = 120.0
_OPTIONS: Final = (
    ("grpc.max_send_message_length", RPC_BYTES_MAX),
    ("grpc.max_receive_message_length", RPC_BYTES_MAX),
    ("grpc.so_reuseport", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 20),
    ("grpc.min_reconnect_backoff_ms", 20),
    ("grpc.max_reconnect_backoff_ms", 100),
)


class Stop:
    """Where the next call that fits is held, once.

    Args:
        methods: names in `mq.v1.Broker`, such as "Plan".
        fits: tells by a message whether it is the one; None = the first.
    """

    def __init__(
        self, methods: Collection[str], moment: Moment, fits: Callable[[bytes], bool] | None = None
    ) -> None:
        self.methods, self.moment, self._fits = methods, moment, fits
        self._taken = threading.Lock()
        self._held_by: int | None = None
        self._decided = threading.Event()
        self._cut = False
        self.left = threading.Event()

    @property
    def port(self) -> int | None:
        """The client's TCP port of the held call; None while there is none."""
        return self._held_by

    def wait(self, timeout: float) -> int:
        """Waits until a call is held and returns its client's TCP port."""
        return (
            wait_until(lambda: self._held_by, timeout, f"no call of {self.methods} came to its {self.moment}")
            or 0
        )

    def release(self) -> None:
        """Lets the call go on, also where its client is gone by now."""
        self._decided.set()

    def cut(self) -> None:
        """Ends the call as a broken connection does, for the client and for the broker."""
        self._cut = True
        self._decided.set()

    def holds(self, method: str, moment: Moment, message: bytes, port: int) -> bool:
        """Whether this is the call to hold; true at most once."""
        if (
            method not in self.methods
            or moment != self.moment
            or (self._fits is not None and not self._fits(message))
        ):
            return False
        with self._taken:
            if self._held_by is not None:
                return False
            self._held_by = port
            return True

    def hold(self) -> bool:
        """Holds the call; returns whether it goes on."""
        self._decided.wait(_HELD_MAX_S)
        self.left.set()
        return not self._cut


class Gate:
    """The proxy. Threads of this process; ends with `close`.

    Args:
        target: `mq://host:port` of the broker.
    """

    def __init__(self, target: str) -> None:
        self._stops: list[Stop] = []
        self._lock = threading.Lock()
        self._watchers: list[Callable[[str, Moment, bytes, int], None]] = []
        self._channel = grpc.insecure_channel(target.removeprefix("mq://"), options=_OPTIONS)
        self._calls: dict[str, Any] = {
            name: self._channel.stream_stream(method.path) for name, method in METHODS.items()
        }
        self._server = grpc.server(
            ThreadPoolExecutor(512, "gate"), handlers=[_Handlers(self)], options=_OPTIONS
        )
        port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        self.address: Final = f"mq://127.0.0.1:{port}"
        self.port: Final = port

    def stop(
        self, methods: Collection[str], moment: Moment, fits: Callable[[bytes], bool] | None = None
    ) -> Stop:
        """Arms a stop for the next call that fits."""
        stop = Stop(methods, moment, fits)
        with self._lock:
            self._stops.append(stop)
        return stop

    def watch(self, watcher: Callable[[str, Moment, bytes, int], None]) -> None:
        """Shows every message to `watcher`: method, moment, message and the client's TCP port."""
        self._watchers.append(watcher)

    def close(self) -> None:
        """Ends the proxy; what is still held is cut."""
        with self._lock:
            for stop in self._stops:
                stop.cut()
        self._server.stop(0.2).wait()
        self._channel.close()

    def relay(self, method: str, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Passes one call on, message by message."""
        port = int(context.peer().rpartition(":")[2])
        call: Any = None
        gone, held = threading.Event(), threading.Event()

        def outgoing() -> Iterator[bytes]:
            with suppress(
                grpc.RpcError
            ):  # the client is gone: what has been taken from it arrives, and nothing follows
                for request in requests:
                    if not self._passes(method, "request", request, port, held):
                        gone.set()
                        call.cancel()
                        return
                    yield request

        call = self._calls[method](outgoing())
        # A client that goes away takes its call along, but for a held one: what is under way arrives all the
        # same.
        context.add_callback(lambda: None if self._holding(method, port) else call.cancel())
        try:
            for response in call:
                if not self._passes(method, "response", response, port, held):
                    gone.set()
                    break
                yield response
            if not gone.is_set() and not self._passes(method, "end", b"", port, held):
                gone.set()
        except grpc.RpcError as error:
            if not gone.is_set():
                context.set_trailing_metadata(call.trailing_metadata() or ())
                context.abort(error.code(), error.details() or "")
        finally:
            call.cancel()
        if gone.is_set():
            context.abort(grpc.StatusCode.UNAVAILABLE, "Connection reset by peer")

    def _holding(self, method: str, port: int) -> bool:
        with self._lock:
            return any(
                method in stop.methods and stop.port == port and not stop.left.is_set()
                for stop in self._stops
            )

    def _passes(self, method: str, moment: Moment, message: bytes, port: int, held: threading.Event) -> bool:
        for watcher in self._watchers:
            watcher(method, moment, message, port)
        if held.is_set():  # a call is held once: what comes late runs into no other stop
            return True
        with self._lock:
            found = next((stop for stop in self._stops if stop.holds(method, moment, message, port)), None)
        if found is None:
            return True
        held.set()
        return found.hold()


class _Handlers(grpc.GenericRpcHandler):
    """Takes every method of the broker as a stream of bytes in and out: on the wire all shapes are the
    same.
    """

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        path = handler_call_details.method or ""
        name = path.rpartition("/")[2]
        if name not in METHODS:
            return None
        return grpc.stream_stream_rpc_method_handler(
            lambda requests, context: self._gate.relay(name, requests, context)
        )
