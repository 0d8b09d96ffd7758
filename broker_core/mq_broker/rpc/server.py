"""The gRPC server: which code answers each method, on which thread, and how many calls of each kind there may
be.

Calls run on threads, not on grpc.aio: a message there and back takes as long with either, uploads of 1 MiB
are faster with threads, and checksums and validation run in parallel. A stream of waiting consumers costs two
threads, 70 KB and no processor time. The threads are those of `threads.py`, since gRPC starts none.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from mq_broker.config import BrokerConfig
from mq_broker.rpc import health
from mq_broker.rpc.address import bracketed, unusable
from mq_broker.rpc.arrivals import Arrivals
from mq_broker.rpc.bounds import Budget, LiveStreams
from mq_broker.rpc.connections import connections_that_fit
from mq_broker.rpc.consume import ConsumeStream
from mq_broker.rpc.fetch import FetchStream
from mq_broker.rpc.first_requests import FirstRequests
from mq_broker.rpc.long_requests import LongRequests
from mq_broker.rpc.places import Places
from mq_broker.rpc.publish import PublishStream
from mq_broker.rpc.requests import LISTINGS, is_long_list, parse
from mq_broker.rpc.room import Hold, Room
from mq_broker.rpc.runs import RunStreams
from mq_broker.rpc.status import abort
from mq_broker.rpc.threads import Waits, Workers, shares_now
from mq_broker.rpc.unary import UnaryCalls
from mq_wire import service
from mq_wire.errors import BrokerUnavailable, Busy, InvalidRequest, LimitExceeded, MqError
from mq_wire.limits import RPC_BYTES_MAX

if TYPE_CHECKING:
    from mq_broker.engine.engine import Engine

#: Seconds for unfinished answers when the broker stops.
_GRACE_S: Final = 0.5
#: Seconds for gRPC to close connections afterwards.
_CLOSING_S: Final = 3.0
#: Most calls that wait for a thread. More are refused at once, so that a flood takes no memory.
_CALLS_QUEUED_MAX: Final = 1024
#: How long a call may be without its first request before it can be cancelled in favour of others. Streams,
#: which have their own threads, get more time.
_PATIENCE_S: Final = 0.02
_PATIENCE_WITH_STREAMS_S: Final = 1.0
#: Size from which an answer is large, and most bytes of large answers that clients have not read.
_LARGE_ANSWER_BYTES: Final = 64 << 10
_LARGE_ANSWERS_BYTES_MAX: Final = 64 << 20
#: Unary methods whose requests may be large, the bytes that are taken for a request before it is read, and
#: how long its client may take to send it while others wait: with much of the room, and with little.
_LARGE_REQUESTS: Final = frozenset({"Send", "CommitStaged", "DiscardStaged"})
_RECKONED_BYTES: Final = 3 << 20
_SLOW_S: Final = 1.5
_SLOW_WITH_FEW_S: Final = 10.0
#: How many large requests of streams are parsed and checked at the same time.
_TAKEN_IN_MAX: Final = 2
#: Largest request to the health and reflection services, and most requests of one reflection stream.
_SMALL_REQUEST_BYTES: Final = 4096
_REFLECTIONS_MAX: Final = 1000
#: Most calls that gRPC has accepted and not handed to Python yet.
_CALLS_PENDING_MAX: Final = 20_000
#: Unary calls of one connection that are possible while all its streams are open.
_CALLS_BESIDE_STREAMS: Final = 256
#: Methods that read requests while they send answers.
_TWO_THREADS: Final = frozenset({"Publish", "Consume"})

Behavior = Callable[[Any, grpc.ServicerContext], Iterator[Any]]


class Server:
    """Listens, and hands every call to the engine.

    Every call has a thread while it lives. Threads are made when needed and reused. The number of streams and
    waiting plans is bounded, so that `unary_threads` threads are always left for unary calls.
    """

    def __init__(self, engine: Engine, config: BrokerConfig, cluster_id: bytes, version: str) -> None:
        self._engine = engine
        self._config = config
        self._cluster_id = cluster_id
        shares = shares_now(config)
        self._workers = Workers(shares.short)
        received = config.acknowledge_bytes_max, config.acknowledge_bytes_total_max
        self._streams = LiveStreams(
            shares.streams,
            config.streams_per_connection_max,
            self._workers,
            shares.cause,
            received,
            config.delivery_bytes_total_max,
        )
        self._places = Places(config.sessions_max, config.sessions_per_stream_max)
        self._publish_bytes = Budget(config.publish_bytes_total_max)
        self._first = FirstRequests(shares.silent, self._workers, _PATIENCE_S)
        self._first_of_streams = FirstRequests(max(shares.streams // 2, 1), None, _PATIENCE_WITH_STREAMS_S)
        self._arrivals = Arrivals(config.receive_bytes_total_max, config.connections_max)
        self._requests = Room(config.receive_bytes_max, _SLOW_S, _SLOW_WITH_FEW_S)
        self._taking_in = threading.BoundedSemaphore(_TAKEN_IN_MAX)
        self._answers = Budget(_LARGE_ANSWERS_BYTES_MAX)
        waits = Waits(shares.waits, self._workers)
        self._unary = UnaryCalls(engine, self._streams, cluster_id, version, waits)
        self._lists, self._listings = LongRequests(waits), LongRequests(waits)
        self._runs = RunStreams(engine, self._streams)
        self._health = health.Health(self._streams)
        most = shares.threads + _CALLS_QUEUED_MAX
        self._grpc = grpc.server(self._workers, options=_options(config), maximum_concurrent_rpcs=most)  # type: ignore[arg-type]
        self._add_services()

    def start(self) -> int:
        """Starts to listen and returns the port.

        Raises:
            InvalidOption: it cannot listen on the address.
        """
        address = f"{bracketed(self._config.host)}:{self._config.port}"
        try:
            port = self._grpc.add_insecure_port(address)
        except RuntimeError as error:
            raise unusable(address, error) from None
        self._grpc.start()
        self._arrivals.start(port)
        self._health.begin()
        return port

    def stop(self) -> bool:
        """Refuses new calls, tells streams to end, and waits for unfinished answers. Afterwards no call uses
        the engine.

        Returns whether all connections are closed. gRPC may take seconds to drop data that clients have not
        read: ten seconds for 100,000 pings.
        """
        self._health.end()
        self._arrivals.stop()
        try:
            stopped = self._grpc.stop(_GRACE_S)
        except RuntimeError:  # the system refused the thread on which gRPC waits for the grace: no grace then
            self._streams.stop()
            stopped = self._grpc.stop(None)
        self._streams.stop()
        is_closed = stopped.wait(_GRACE_S + _CLOSING_S)
        self._workers.shutdown()
        return is_closed

    def _add_services(self) -> None:
        handlers = {name: self.handler(method) for name, method in service.METHODS.items()}
        self._grpc.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service.SERVICE_NAME, handlers),)
        )
        self._grpc.add_registered_method_handlers(service.SERVICE_NAME, handlers)
        self._add_health()
        self._add_reflection()

    def _add_health(self) -> None:
        """Adds the health service. Its handlers count calls without a request, which hold threads."""
        write = health_pb2.HealthCheckResponse.SerializeToString

        def check(requests: Iterator[bytes], context: grpc.ServicerContext) -> Any:
            with self._first_request(requests, context) as message:
                return self._health.check(
                    self._small(health_pb2.HealthCheckRequest, message, context), context
                )

        def watch(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[Any]:
            request = self._small(
                health_pb2.HealthCheckRequest, self._first_of_streams.of(requests, context), context
            )
            yield from self._health.watch(request, context)

        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Check": grpc.stream_unary_rpc_method_handler(check, None, write),
            "Watch": grpc.stream_stream_rpc_method_handler(self._counted(watch), None, write),
        }
        self._grpc.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(health.SERVICE_NAME, handlers),)
        )

    def _add_reflection(self) -> None:
        names = (service.SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME)
        servicer = reflection.ReflectionServicer(names)

        def reflect(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[Any]:
            """Answers one request at a time: reads the next one when the last answer was sent."""
            first = self._first_of_streams.of(requests, context)
            asked = itertools.chain(() if first is None else (first,), requests)
            for count, message in enumerate(asked):
                if count >= _REFLECTIONS_MAX:
                    abort(context, Busy(f"one stream has sent {_REFLECTIONS_MAX} requests: open another one"))
                request = self._small(reflection_pb2.ServerReflectionRequest, message, context)
                answer = next(servicer.ServerReflectionInfo(iter((request,)), context))
                self._hold("ServerReflectionInfo", answer.ByteSize(), context)
                yield answer

        # enable_server_reflection is not used: its streams would not be counted.
        write = reflection_pb2.ServerReflectionResponse.SerializeToString
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(self._counted(reflect), None, write)
        }
        self._grpc.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(reflection.SERVICE_NAME, handlers),)
        )

    def _small(self, kind: type[Message], message: bytes | None, context: grpc.ServicerContext) -> Any:
        """Returns a request to the health or the reflection service."""
        try:
            if message is None:
                raise InvalidRequest(f"a call without a {kind.__name__}: send one")
            if len(message) > _SMALL_REQUEST_BYTES:
                raise LimitExceeded(
                    f"a {kind.__name__} of {len(message)} bytes is over the limit of {_SMALL_REQUEST_BYTES}: "
                    "ask for less"
                )
            return kind.FromString(message)
        except DecodeError as error:
            sent = f"{len(message or b'')} bytes were sent as a {kind.__name__}"
            abort(context, InvalidRequest(f"{sent} and cannot be read as one: {error}"))
        except MqError as error:
            abort(context, error)

    def handler(self, method: service.Method) -> grpc.RpcMethodHandler[Any, Any]:
        """Returns the handler of a method. All handlers take a stream of bytes, so that calls without a
        request can be counted.
        """
        behavior = self._streaming(method)
        if behavior is None:
            return grpc.stream_unary_rpc_method_handler(self._answering(method), None, None)
        threads = 2 if method.name in _TWO_THREADS else 1
        return grpc.stream_stream_rpc_method_handler(
            self._counted(behavior, threads), None, method.serialize_response
        )

    def _streaming(self, method: service.Method) -> Behavior | None:
        config = self._config

        def publish(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[Any]:
            stream = PublishStream(
                self._engine,
                self._streams,
                config.publish_requests_max,
                config.publish_bytes_max,
                self._publish_bytes,
                self._cluster_id,
            )
            self._arrivals.tell_instead(context, stream.refuse)
            return stream.run(requests, context)

        def parsed(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[Any]:
            """Yields the parsed requests of a stream. Waits for the first one as a silent call."""
            first = self._first_of_streams.of(requests, context)
            if first is not None:
                yield parse(method, first)
                del first  # requests may be large, and the next one may come late
                while (message := next(requests, None)) is not None:
                    # Few are parsed and checked at the same time: an acknowledgement of 8 MB takes as much
                    # again as a parsed message and as arrays.
                    with self._taking_in if is_long_list(method, message) else contextlib.nullcontext():
                        request = parse(method, message)
                        del message
                        yield request
                        del request

        def consume(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[Any]:
            stream = ConsumeStream(self._engine, self._streams, self._places)
            self._arrivals.tell_instead(context, stream.refuse)
            return stream.run(parsed(requests, context), context)

        streams: dict[str, Behavior] = {
            "Publish": publish,
            "Consume": consume,
            "Fetch": lambda requests, context: FetchStream(self._engine, self._streams).run(
                parsed(requests, context), context
            ),
            "HoldRun": lambda requests, context: self._runs.hold(parsed(requests, context), context),
        }
        return streams.get(method.name)

    def _answering(self, method: service.Method) -> Callable[[Iterator[bytes], grpc.ServicerContext], bytes]:
        answer = self._unary.of(method.name)
        assert method.serialize_response is not None
        serialize = method.serialize_response
        large = method.name in _LARGE_REQUESTS

        def answering(requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
            with self._first_request(requests, context, large=large) as message:
                try:
                    if message is None:
                        raise InvalidRequest(f"a call of {method.name} without a request: send one")
                    with self._turn(method, message, context):
                        response = serialize(answer(parse(method, message), context))
                except MqError as error:
                    abort(context, error)
            if len(response) > _LARGE_ANSWER_BYTES:
                self._hold(method.name, len(response), context)
            return response

        return answering

    def _turn(
        self, method: service.Method, message: bytes, context: grpc.ServicerContext
    ) -> contextlib.AbstractContextManager[None]:
        if method.name not in LISTINGS and not is_long_list(method, message):
            return contextlib.nullcontext()
        lines = self._listings if method.name in LISTINGS else self._lists
        return lines.turn(context.peer(), lambda: self._streams.stopping or not context.is_active())

    @contextlib.contextmanager
    def _first_request(
        self, requests: Iterator[bytes], context: grpc.ServicerContext, *, large: bool = False
    ) -> Iterator[bytes | None]:
        """Context with the request of a unary call. If the request may be `large`, room for it is taken
        before it is read, and kept until the answer.
        """
        hold = Hold(context.peer(), context.cancel)

        def take_room() -> None:
            if large:
                self._requests.take(
                    hold, _RECKONED_BYTES, lambda: self._streams.stopping or not context.is_active()
                )

        try:
            with self._arrivals.reading(requests, context) as arriving:
                message = self._first.of(arriving, context, take_room)
            hold.cancel = None  # from here on the call waits for the broker
            self._requests.correct(
                hold, 0 if message is None or len(message) < _SMALL_REQUEST_BYTES else len(message)
            )
            yield message
        except Busy as error:
            abort(context, error)
        finally:
            message = None
            self._requests.correct(hold, 0)

    def _hold(self, name: str, size: int, context: grpc.ServicerContext) -> None:
        """Counts a large answer until the client has received it or is gone."""
        if not self._answers.try_take(size):
            unread = f"{_LARGE_ANSWERS_BYTES_MAX} bytes of answers are not read yet"
            abort(context, Busy(f"{unread}: read them, and call {name} again"))
        if not context.add_callback(lambda: self._answers.give(size)):
            self._answers.give(size)

    def _counted(self, behavior: Behavior, threads: int = 1) -> Behavior:
        def counted(requests: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            try:
                with (
                    self._streams.counted(context.peer(), threads, context),
                    self._arrivals.reading(requests, context) as arriving,
                ):
                    yield from behavior(arriving, context)
            except (Busy, BrokerUnavailable) as error:
                abort(context, error)

        return counted


def _options(config: BrokerConfig) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", RPC_BYTES_MAX),
        # Compressed messages are refused: a few bytes could become megabytes before they are counted.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        ("grpc.max_send_message_length", RPC_BYTES_MAX),
        # Without free files the journal would fail, and the broker with it.
        ("grpc.max_allowed_incoming_connections", connections_that_fit(config.connections_max)),
        ("grpc.server_handshake_timeout_ms", config.keepalive_timeout_ms),
        # Further calls of a connection wait at the client. Above a thousand pending calls gRPC would drop
        # calls of any client.
        ("grpc.max_concurrent_streams", config.streams_per_connection_max + _CALLS_BESIDE_STREAMS),
        ("grpc.server.max_pending_requests", _CALLS_PENDING_MAX),
        ("grpc.server.max_pending_requests_hard_limit", 2 * _CALLS_PENDING_MAX),
        # The window of a stream stays at 64 KiB: data that was not asked for waits in memory.
        ("grpc.http2.bdp_probe", 0),
        # Data of a stream that may be in flight beside an awaited message. On a slow network this is all that
        # one round trip brings.
        ("grpc.http2.lookahead_bytes", 1 << 20),
        # Two brokers on one port would each get some of the connections.
        ("grpc.so_reuseport", 0),
        # Pings detect hosts that went silent. Clients may send pings as often.
        ("grpc.keepalive_time_ms", config.keepalive_ms),
        ("grpc.keepalive_timeout_ms", config.keepalive_timeout_ms),
        # gRPC 1.60 and later use this time-out for an unanswered ping; the default is a minute.
        ("grpc.http2.ping_timeout_ms", config.keepalive_timeout_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 1000),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
        ("grpc.http2.max_pings_without_data", 0),
    ]
