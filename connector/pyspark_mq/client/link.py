"""One gRPC channel to one endpoint, and how many calls use it: a channel that is replaced is closed when the
last of them is gone.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final

from mq_wire.limits import RPC_BYTES_MAX
from mq_wire.service import METHODS
from pyspark_mq.client.address import is_loopback
from pyspark_mq.client.forks import open_channel

if TYPE_CHECKING:
    from mq_wire.v1 import admin_pb2

_CHANNEL_OPTIONS: Final = (
    ("grpc.max_send_message_length", RPC_BYTES_MAX),
    ("grpc.max_receive_message_length", RPC_BYTES_MAX),
    # A peer that vanished without a word is noticed after 30 + 10 s.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    (
        "grpc.http2.ping_timeout_ms",
        10_000,
    ),  # what really counts in gRPC 1.60 and later, where it is a minute otherwise
    ("grpc.http2.max_pings_without_data", 0),
    # gRPC's own reconnect back-off (1 s to 2 min) would outlast ours: a restarted broker is to be found at
    # once.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Not a back-off, whatever its name: how long one attempt to connect may take, where the broker is far
    # away or busy.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    # Connections of their own, so that closing one closes its socket.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
)
#: Of what a client says of itself, so many characters are sent.
_CLIENT_CHARACTERS: Final = 180
#: This machine is never reached through a proxy, whatever the environment says.
_NO_PROXY: Final = ("grpc.enable_http_proxy", 0)


class Link:
    """A channel.

    Attributes:
        endpoint: where to.
        users: calls and streams that are under way; counted by the connection, under its lock.
        failed: whether a call found nobody there, and none has been answered since.
        hello: what the broker said of itself; None = to be asked.
    """

    __slots__ = ("_methods", "channel", "endpoint", "failed", "hello", "users")

    def __init__(self, endpoint: str) -> None:
        self.endpoint: Final = endpoint
        self.channel: Final = open_channel(
            endpoint, (*_CHANNEL_OPTIONS, _NO_PROXY) if is_loopback(endpoint) else _CHANNEL_OPTIONS
        )
        self.users = 0
        self.failed = False
        self.hello: admin_pb2.HelloResponse | None = None
        self._methods: dict[str, Any] = {}

    def method(self, name: str) -> Any:
        """Returns what calls the method of that name."""
        found = self._methods.get(name)
        if found is None:
            method = METHODS[name]
            sent = "stream" if method.client_streaming else "unary"
            answered = "stream" if method.server_streaming else "unary"
            factory = getattr(self.channel, f"{sent}_{answered}")
            found = factory(
                method.path,
                request_serializer=method.serialize_request,
                response_deserializer=method.parse_response,
            )
            self._methods[name] = found
        return found


def client_id(client: str) -> str:
    """Returns what goes with every call: the client's words in ASCII, and a mark of this connection."""
    words = client[:_CLIENT_CHARACTERS].encode("ascii", "replace").decode()
    printable = "".join(letter if letter.isprintable() else "?" for letter in words)
    return f"{printable} #{uuid.uuid4().hex[:8]}"
