"""The methods of the service `mq.v1.Broker`, read from its descriptor; clients and broker use this table.

Requests and responses with records are passed as bytes, which `framing` reads and writes: generated classes
copy large records more often and were two to three times slower. All other messages use generated classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor

from mq_wire.v1 import broker_pb2

SERVICE_NAME: Final = "mq.v1.Broker"
#: Metadata of every call: what the client says of itself, in ASCII.
CLIENT_ID_KEY: Final = "mq-client-id"
#: Methods whose requests, or whose responses, are passed as bytes.
RAW_REQUESTS: Final = frozenset({"Publish", "Send"})
RAW_RESPONSES: Final = frozenset({"Consume", "Fetch"})


@dataclass(frozen=True, slots=True)
class Method:
    """One RPC: path, kind of streaming, and conversion between bytes and messages (None = passed as
    bytes).
    """

    name: str
    path: str
    client_streaming: bool
    server_streaming: bool
    request: Descriptor
    parse_request: Callable[[bytes], Any] | None
    serialize_request: Callable[[Any], bytes] | None
    parse_response: Callable[[bytes], Any] | None
    serialize_response: Callable[[Any], bytes] | None


def _methods() -> dict[str, Method]:
    methods = {}
    for descriptor in broker_pb2.DESCRIPTOR.services_by_name["Broker"].methods:
        request: Any = message_factory.GetMessageClass(descriptor.input_type)
        response: Any = message_factory.GetMessageClass(descriptor.output_type)
        raw_in, raw_out = descriptor.name in RAW_REQUESTS, descriptor.name in RAW_RESPONSES
        methods[descriptor.name] = Method(
            name=descriptor.name,
            path=f"/{SERVICE_NAME}/{descriptor.name}",
            client_streaming=descriptor.client_streaming,
            server_streaming=descriptor.server_streaming,
            request=descriptor.input_type,
            parse_request=None if raw_in else request.FromString,
            serialize_request=None if raw_in else request.SerializeToString,
            parse_response=None if raw_out else response.FromString,
            serialize_response=None if raw_out else response.SerializeToString,
        )
    return methods


METHODS: Final[dict[str, Method]] = _methods()
