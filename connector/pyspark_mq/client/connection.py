"""A connection to a broker: one channel, made on first use, healed by itself, shared by whoever asks in this
process.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any, ClassVar, Final, Protocol, TypeVar, cast

import grpc

from mq_wire.errors import BrokerUnavailable, ClientClosed, MqError, RetryLater, StorageFailed, Unsupported
from mq_wire.limits import DEFAULT_ADDRESS, PROTOCOL_VERSION
from mq_wire.service import CLIENT_ID_KEY
from mq_wire.v1 import admin_pb2
from pyspark_mq.client import forks
from pyspark_mq.client.address import Address
from pyspark_mq.client.arguments import seconds
from pyspark_mq.client.backoff import BACKOFF
from pyspark_mq.client.failures import told_by_broker, told_by_status
from pyspark_mq.client.link import Link, client_id
from pyspark_mq.client.log import LOG, Outage

#: How long one unary call may take before it counts as unanswered.
CALL_TIMEOUT_S: Final = 30.0
#: How long `call` goes on trying where the broker cannot be reached.
RETRY_TIMEOUT_S: Final = 10.0

#: The broker is away, or about to be: after a failed write it ends, and its next start finds out what is on
#: the disk.
GONE: Final = (BrokerUnavailable, StorageFailed)


#: For `Connection.part`.
Part = TypeVar("Part")


class Stream(Protocol):
    """A running streaming call: iterate the answers, or cancel it. Reading raises grpc.RpcError, see
    `Connection.error_of`.
    """

    def __iter__(self) -> Iterator[Any]: ...

    def __next__(self) -> Any: ...

    def cancel(self) -> bool:
        """Ends it from this side."""
        ...


class Connection:
    """A broker, as seen from this process. Thread-safe; opens its channel when first needed. In a forked
    child it refuses.

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
    _shared_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        client: str | None = None,
        on_error: Callable[[MqError], None] | None = None,
    ) -> None:
        self.address: Final = Address.parse(address)
        self.client: Final = (
            client
            or f"pyspark-mq {os.path.basename(sys.argv[0] or 'python')} {socket.gethostname()} {os.getpid()}"
        )
        self._on_error = on_error
        #: Every call says who it is.
        self._metadata: Final = ((CLIENT_ID_KEY, client_id(self.client)),)
        self._lock = threading.Lock()
        self._parts: dict[Any, Any] = {}
        self._at = 0  # index of the endpoint in use
        self._link: Link | None = None
        self._retired: list[Link] = []  # replaced by `_link`; closed once nobody uses them
        self._outage = Outage(str(self.address))
        self.reached = self._closed = False
        self._refusal: ClientClosed | None = None  # in a forked process
        self._errors: SimpleQueue[MqError | None] | None = None
        #: For `pyspark_mq.client.publish_stream`: the `PublishStream`s that the producers of this connection
        #: share, and the `LoneStreams` that a thread has to itself for a moment; None = no producer yet.
        self.publish_streams: list[Any] = []
        forks.watch(self)

    @classmethod
    def shared(cls, address: str = DEFAULT_ADDRESS) -> Connection:
        """Returns this process's connection to `address`; never closed by its users. A new channel costs
        1.5-4 ms, this one nothing.
        """
        key = os.getpid(), str(Address.parse(address))
        with cls._shared_lock:
            connection = cls._shared.get(key)
            if connection is None or connection._closed:
                connection = cls._shared[key] = cls(address)
            return connection

    def forked(self, parent: int) -> None:
        """In a child: refuses everything, and leaves the channel to the parent."""
        Connection._shared_lock = threading.Lock()
        Connection._shared = {key: shared for key, shared in Connection._shared.items() if shared is not self}
        self._lock = threading.Lock()
        self._closed = True
        self._refusal = forks.inherited(f"the connection to {self.address}", parent)
        forks.keep_for_ever(self._link)
        forks.keep_for_ever(self._retired)
        self._link, self._retired, self._errors = None, [], None

    def __reduce__(self) -> tuple[Callable[[str], Connection], tuple[str]]:
        """A pickled connection arrives as the receiving process's shared one."""
        return Connection.shared, (str(self.address),)

    # -- life ----------------------------------------------------------------------------------------------

    @property
    def endpoint(self) -> str:
        """The `host:port` in use."""
        return self.address.endpoints[self._at]

    @property
    def known_hello(self) -> admin_pb2.HelloResponse | None:
        """What the broker said of itself; None where it has not been asked since it was last away."""
        link = self._link
        return None if link is None else link.hello

    def part(self, make: Callable[[Connection], Part]) -> Part:
        """Returns what `make` makes of this connection, once: what its users share."""
        with self._lock:
            found: Part | None = self._parts.get(make)
            if found is None:
                found = self._parts[make] = make(self)
        return found

    def close(self) -> None:
        """Closes the channel; calls and streams under way end with ClientClosed."""
        with self._lock:
            self._closed = True
            links = [*self._retired, *([self._link] if self._link else [])]
            self._link, self._retired = None, []
            if self._errors is not None:
                self._errors.put(None)
        for link in links:
            link.channel.close()

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
        link = self._link
        if link is not None and not refresh and (known := link.hello) is not None:
            return known
        link = self._take("Hello")
        try:
            return self._greet(link, timeout)
        finally:
            self._leave(link)

    def _greet(self, link: Link, timeout: float) -> admin_pb2.HelloResponse:
        request = admin_pb2.HelloRequest(client=self.client, protocol=PROTOCOL_VERSION)
        hello = cast("admin_pb2.HelloResponse", self._invoke(link, "Hello", request, timeout))
        if hello.protocol != PROTOCOL_VERSION:
            raise Unsupported(
                f"the broker at {link.endpoint} (version {hello.version}) speaks protocol {hello.protocol}, "
                f"this client {PROTOCOL_VERSION}: update "
                f"{'the broker' if hello.protocol < PROTOCOL_VERSION else 'pyspark-mq'}"
            )
        link.hello = hello
        return hello

    @property
    def cluster_id(self) -> bytes:
        """Identity of the broker's data, 16 bytes; asks the broker on first use."""
        return self.hello().cluster_id

    # -- calls ---------------------------------------------------------------------------------------------

    def call(
        self,
        method: str,
        request: Any,
        *,
        timeout: float = CALL_TIMEOUT_S,
        retry_timeout: float | None = RETRY_TIMEOUT_S,
    ) -> Any:
        """Calls a unary method and returns its response.

        Args:
            method: name in `mq.v1.Broker`, such as "Plan".
            timeout: seconds that one attempt may take.
            retry_timeout: seconds to go on trying while the broker cannot be reached, is busy, has a full
                disk or is about to restart after its storage failed; None or 0 = one attempt only, for calls
                that must not be made twice.

        Raises:
            MqError: the subclass that the broker's error code names; BrokerUnavailable where it cannot be
                reached.
        """
        timeout, retry_timeout = seconds("timeout", timeout), seconds("retry_timeout", retry_timeout)
        deadline = time.monotonic() + (retry_timeout or 0.0)
        waits = BACKOFF.waits()
        while True:
            pause = next(waits)
            link = self._take(method)
            try:
                if link.hello is None:
                    self._greet(link, min(timeout, CALL_TIMEOUT_S))
                return self._invoke(link, method, request, timeout)
            except (RetryLater, StorageFailed) as error:
                if isinstance(error, GONE):
                    self._move_on(link)
                if time.monotonic() + pause > deadline:
                    raise
            finally:
                self._leave(link)
            time.sleep(pause)

    def stream(self, method: str, requests: Any, *, timeout: float | None = None) -> Stream:
        """Starts a streaming method. `requests` is one request, or an iterator of them where the method
        streams requests.

        Answers come raw (bytes, see `mq_wire.framing`) for the methods in RAW_RESPONSES. Reading them raises
        grpc.RpcError: turn it into an MqError with `error_of`.

        Raises:
            BrokerUnavailable: the channel was just replaced, or this process ends.
            ClientClosed: the connection is closed.
        """
        link = self._take(method)
        try:
            call = self._begin(
                method, lambda: link.method(method)(requests, timeout=timeout, metadata=self._metadata)
            )
        except BaseException:
            self._leave(link)
            raise

        def ended() -> None:
            # Whoever cancels a call of his own says nothing of the broker by it.
            if call.code() is not grpc.StatusCode.OK and not call.cancelled():
                error = self.error_of(call, method, link.endpoint)
                if isinstance(error, GONE):
                    self._failed(link, error)
            self._leave(link)

        if not call.add_callback(ended):
            ended()
        return cast("Stream", call)

    def error_of(self, error: grpc.RpcError, what: str, endpoint: str | None = None) -> MqError:
        """Returns the MqError that a failed call stands for; `what` was being done, at the endpoint in use
        unless said otherwise.
        """
        endpoint = endpoint or self.endpoint
        told = told_by_broker(error)
        if told is None and self._closed:
            told = self._refusal or ClientClosed(
                f"{what}: the connection to {endpoint} was closed on this side"
            )
        return told or told_by_status(error, what, endpoint)

    def interrupted(self, endpoint: str) -> None:
        """Tells the connection that the broker at `endpoint` went away: what it said of itself is void.

        Where there are several addresses the next one's turn has come, unless somebody was answered at this
        one since.
        """
        link = self._link
        if link is not None and link.endpoint == endpoint:
            self._move_on(link)

    def _move_on(self, link: Link) -> None:
        """Only the first of those who notice that a link is dead moves on. Its channel stays open while
        others still use it.
        """
        with self._lock:
            if link is not self._link or self._closed:
                return
            link.hello = None
            if link.failed and len(self.address.endpoints) > 1:
                self._at = (self._at + 1) % len(self.address.endpoints)
                self._retired.append(link)
                self._link = None

    def report(self, error: MqError) -> bool:
        """Hands an error that no call can raise to the user's handler, on a thread of its own. Returns
        whether there is a handler.
        """
        if self._on_error is None:
            return False
        with self._lock:
            if self._errors is None:
                self._errors = SimpleQueue()
                threading.Thread(
                    target=self._hand_over, args=(self._errors, self._on_error), name="mq-errors", daemon=True
                ).start()
            self._errors.put(error)
        return True

    @staticmethod
    def _hand_over(queue: SimpleQueue[MqError | None], handler: Callable[[MqError], None]) -> None:
        while (error := queue.get()) is not None:
            try:
                handler(error)
            except Exception as fault:  # the handler's own; the next error is to be told all the same
                LOG.error("on_error raised when it was told: %s", error, exc_info=fault)

    def _invoke(self, link: Link, method: str, request: Any, timeout: float) -> Any:
        try:
            answer = self._begin(
                method, lambda: link.method(method)(request, timeout=timeout, metadata=self._metadata)
            )
        except grpc.RpcError as failure:
            error = self.error_of(failure, method, link.endpoint)
            if isinstance(error, GONE):
                self._failed(link, error)
            raise error from None
        link.failed, self.reached = False, True
        self._outage.answered(link.endpoint, time.monotonic())
        return answer

    def _begin(self, what: str, start: Callable[[], Any]) -> Any:
        try:
            return start()
        except ValueError as error:  # what gRPC raises for a channel that was closed meanwhile
            if self._closed:
                raise self._closed_error(what) from None
            raise BrokerUnavailable(
                f"{what}: the channel to {self.endpoint} was closed meanwhile ({error}): try again"
            ) from None
        except RuntimeError as error:  # the interpreter ends, and starts no thread any more
            raise BrokerUnavailable(
                f"{what}: gRPC cannot begin a call ({error}): this process is ending"
            ) from None

    def _failed(self, link: Link, error: MqError) -> None:
        link.failed = True
        if not self._closed and link is self._link:
            self._outage.failed(link.endpoint, str(error), time.monotonic())

    def _take(self, what: str) -> Link:
        """Returns the link in use, counted as used until `_leave`."""
        with self._lock:
            if self._closed:
                raise self._closed_error(what)
            link = self._link
            if link is None:
                link = self._link = Link(self.endpoint)
            link.users += 1
            unused = [retired for retired in self._retired if not retired.users] if self._retired else []
            if unused:
                self._retired = [retired for retired in self._retired if retired.users]
        for retired in unused:
            retired.channel.close()
        return link

    def _leave(self, link: Link) -> None:
        with self._lock:
            link.users -= 1

    def _closed_error(self, what: str) -> ClientClosed:
        return self._refusal or ClientClosed(
            f"{what}: the connection to {self.endpoint} is closed: make a new one"
        )
