"""A connection to a broker: one channel, made on first use, healed by itself, shared by whoever asks in this process."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any, ClassVar, Final, Protocol, cast

import grpc

from mq_wire import errors
from mq_wire.errors import (
    CODE_METADATA_KEY,
    BrokerUnavailable,
    Busy,
    ClientClosed,
    InternalError,
    LimitExceeded,
    MqError,
    RetryLater,
    StorageFailed,
    Unsupported,
)
from mq_wire.limits import DEFAULT_ADDRESS, PROTOCOL_VERSION, RPC_BYTES_MAX
from mq_wire.service import METHODS
from mq_wire.v1 import admin_pb2
from pyspark_mq.address import Address

#: Waits between attempts double from the first to the second.
BACKOFF_FIRST_S: Final = 0.01
BACKOFF_LAST_S: Final = 1.0
#: How long one unary call may take before it counts as unanswered.
CALL_TIMEOUT_S: Final = 30.0
#: How long `call` goes on trying where the broker cannot be reached.
RETRY_TIMEOUT_S: Final = 10.0

#: The broker is away, or about to be: after a failed write it ends, and its next start finds out what is on the disk.
GONE: Final = (BrokerUnavailable, StorageFailed)

_CHANNEL_OPTIONS: Final = (
    ("grpc.max_send_message_length", RPC_BYTES_MAX),
    ("grpc.max_receive_message_length", RPC_BYTES_MAX),
    # A peer that vanished without a word is noticed after 30 + 10 s.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # what really counts in gRPC 1.60 and later, where it is a minute otherwise
    ("grpc.http2.max_pings_without_data", 0),
    # gRPC's own reconnect back-off (1 s to 2 min) would outlast ours: a restarted broker is to be found at once.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Not a back-off, whatever its name: how long one attempt to connect may take, where the broker is far away or busy.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    # Connections of their own, so that closing one closes its socket.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
)


class Stream(Protocol):
    """A running streaming call: iterate the answers, or cancel it. Reading raises grpc.RpcError, see `Connection.error_of`."""

    def __iter__(self) -> Iterator[Any]: ...

    def __next__(self) -> Any: ...

    def cancel(self) -> bool:
        """Ends it from this side."""
        ...


class Connection:
    """A broker, as seen from this process. Thread-safe; opens its channel when first needed, and again after a fork.

    Args:
        address: `mq://host:port`, or several to be tried in turn.
        client: free text that the broker's operator sees; default names program, host and process.
        on_error: called with errors that no call can raise, on a thread of its own.

    Attributes:
        reached: whether a broker has ever answered here; who reads a stream's answers sets it too.

    Raises:
        InvalidOption: the address is not one.
    """

    _shared: ClassVar[dict[tuple[int, str], Connection]] = {}
    _shared_lock: ClassVar = threading.Lock()

    def __init__(
        self, address: str = DEFAULT_ADDRESS, *, client: str | None = None, on_error: Callable[[MqError], None] | None = None
    ) -> None:
        self.address: Final = Address.parse(address)
        self.client: Final = client or f"pyspark-mq {os.path.basename(sys.argv[0] or 'python')} {socket.gethostname()} {os.getpid()}"
        self._on_error = on_error
        self._lock = threading.Lock()
        self._at = 0  # index of the endpoint in use
        self._pid = 0
        self._channel: grpc.Channel | None = None
        self._methods: dict[str, Any] = {}
        self._hello: admin_pb2.HelloResponse | None = None
        self.reached = False
        self._closed = False
        self._errors: SimpleQueue[MqError | None] | None = None

    @classmethod
    def shared(cls, address: str = DEFAULT_ADDRESS) -> Connection:
        """Returns this process's connection to `address`; never closed by its users. A new channel costs 1.5-4 ms, this one nothing."""
        key = os.getpid(), str(Address.parse(address))
        with cls._shared_lock:
            connection = cls._shared.get(key)
            if connection is None or connection._closed:
                connection = cls._shared[key] = cls(address)
            return connection

    def __reduce__(self) -> tuple[Callable[[str], Connection], tuple[str]]:
        """A pickled connection arrives as the receiving process's shared one."""
        return Connection.shared, (str(self.address),)

    # -- life ------------------------------------------------------------------------------------------------------------

    @property
    def endpoint(self) -> str:
        """The `host:port` in use."""
        return self.address.endpoints[self._at]

    def close(self) -> None:
        """Closes the channel; calls and streams under way end with ClientClosed."""
        with self._lock:
            self._closed = True
            channel, self._channel, self._methods = self._channel, None, {}
            if self._errors is not None:
                self._errors.put(None)
        if channel is not None and self._pid == os.getpid():
            channel.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def hello(self, *, refresh: bool = False, timeout: float = CALL_TIMEOUT_S) -> admin_pb2.HelloResponse:
        """Returns what the broker said of itself when the connection began, or says now.

        Raises:
            BrokerUnavailable: nobody answers.
            Unsupported: the broker speaks another protocol version.
        """
        known = self._hello
        if known is not None and not refresh and self._pid == os.getpid():
            return known
        request = admin_pb2.HelloRequest(client=self.client, protocol=PROTOCOL_VERSION)
        hello = cast("admin_pb2.HelloResponse", self._invoke("Hello", request, timeout))
        if hello.protocol != PROTOCOL_VERSION:
            raise Unsupported(
                f"the broker at {self.endpoint} (version {hello.version}) speaks protocol {hello.protocol}, "
                f"this client {PROTOCOL_VERSION}: update {'the broker' if hello.protocol < PROTOCOL_VERSION else 'pyspark-mq'}"
            )
        self._hello = hello
        return hello

    @property
    def cluster_id(self) -> bytes:
        """Identity of the broker's data, 16 bytes; asks the broker on first use."""
        return self.hello().cluster_id

    # -- calls -----------------------------------------------------------------------------------------------------------

    def call(self, method: str, request: Any, *, timeout: float = CALL_TIMEOUT_S, retry_timeout: float | None = RETRY_TIMEOUT_S) -> Any:
        """Calls a unary method and returns its response.

        Args:
            method: name in `mq.v1.Broker`, such as "Plan".
            timeout: seconds that one attempt may take.
            retry_timeout: seconds to go on trying while the broker cannot be reached, is busy, has a full disk or is about to restart
                after its storage failed; None or 0 = one attempt only, for calls that must not be made twice.

        Raises:
            MqError: the subclass that the broker's error code names; BrokerUnavailable where it cannot be reached.
        """
        deadline = time.monotonic() + (retry_timeout or 0.0)
        pause = BACKOFF_FIRST_S
        while True:
            endpoint = self.endpoint
            try:
                self.hello()
                return self._invoke(method, request, timeout)
            except (RetryLater, StorageFailed) as error:
                if isinstance(error, GONE):
                    self.interrupted(endpoint)
                if time.monotonic() + pause > deadline:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, BACKOFF_LAST_S)

    def stream(self, method: str, requests: Any, *, timeout: float | None = None) -> Stream:
        """Starts a streaming method. `requests` is one request, or an iterator of them where the method streams requests.

        Answers come raw (bytes, see `mq_wire.framing`) for the methods in RAW_RESPONSES. Reading them raises grpc.RpcError: turn it into
        an MqError with `error_of`.
        """
        return cast("Stream", self._method(method)(requests, timeout=timeout))

    def error_of(self, error: grpc.RpcError, what: str) -> MqError:
        """Returns the MqError that a failed call stands for; `what` was being done."""
        status = error.code()
        details = error.details() or ""
        metadata: Any = error.trailing_metadata() or ()
        for key, value in metadata:
            if key == CODE_METADATA_KEY:
                return errors.from_code(value if isinstance(value, str) else value.decode(), details)
        if self._closed:
            return ClientClosed(f"{what}: the connection to {self.endpoint} was closed on this side")
        # A broker that stops or is killed shows as any of these, as the moment wants it.
        if status in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED) or "RST_STREAM" in details or "Stream removed" in details:
            return BrokerUnavailable(
                f"{what}: no broker answers at mq://{self.endpoint} ({details}): start it with `mq broker`, or correct the address"
            )
        if status is grpc.StatusCode.DEADLINE_EXCEEDED:
            return BrokerUnavailable(f"{what}: the broker at {self.endpoint} gave no answer in time: look at its log, or allow more time")
        if status is grpc.StatusCode.RESOURCE_EXHAUSTED:
            if "larger than max" in details:
                return LimitExceeded(f"{what}: {details}: send smaller batches")
            return Busy(f"{what}: the broker at {self.endpoint} is at a limit ({details}): try again later")
        if status is grpc.StatusCode.UNIMPLEMENTED:
            return Unsupported(f"{what}: the broker at {self.endpoint} does not know this call ({details}): update it")
        return InternalError(f"{what}: the broker at {self.endpoint} answered {status.name}: {details}")

    def interrupted(self, endpoint: str) -> None:
        """Tells the connection that the broker at `endpoint` went away: what it said of itself is void, and the next one's turn has come.

        Only the first of those who notice it moves on.
        """
        with self._lock:
            if endpoint != self.endpoint:
                return
            self._hello = None
            if len(self.address.endpoints) > 1 and not self._closed:
                self._at = (self._at + 1) % len(self.address.endpoints)
                channel, self._channel, self._methods = self._channel, None, {}
                if channel is not None and self._pid == os.getpid():
                    channel.close()

    def report(self, error: MqError) -> bool:
        """Hands an error that no call can raise to the user's handler, on a thread of its own. Returns whether there is a handler."""
        if self._on_error is None:
            return False
        with self._lock:
            if self._errors is None:
                self._errors = SimpleQueue()
                threading.Thread(target=self._hand_over, args=(self._errors, self._on_error), name="mq-errors", daemon=True).start()
            self._errors.put(error)
        return True

    @staticmethod
    def _hand_over(queue: SimpleQueue[MqError | None], handler: Callable[[MqError], None]) -> None:
        while (error := queue.get()) is not None:
            handler(error)

    def _invoke(self, method: str, request: Any, timeout: float) -> Any:
        try:
            answer = self._method(method)(request, timeout=timeout)
        except grpc.RpcError as error:
            raise self.error_of(error, method) from None
        self.reached = True
        return answer

    def _method(self, name: str) -> Any:
        if self._pid == os.getpid() and (multicallable := self._methods.get(name)) is not None:
            return multicallable
        with self._lock:
            if self._closed:
                raise ClientClosed(f"{name}: the connection to {self.endpoint} is closed: make a new one")
            if self._channel is None or self._pid != os.getpid():
                # A channel does not survive a fork: the parent's is left to the parent.
                self._channel, self._methods, self._hello = grpc.insecure_channel(self.endpoint, options=_CHANNEL_OPTIONS), {}, None
                self._pid = os.getpid()
            multicallable = self._methods[name] = _multicallable(self._channel, name)
            return multicallable


def _multicallable(channel: grpc.Channel, name: str) -> Any:
    method = METHODS[name]
    shape = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    factory = getattr(channel, shape)
    return factory(method.path, request_serializer=method.serialize_request, response_deserializer=method.parse_response)
