"""Unary calls. The requests of most are commands of the engine; this file has the code of the others."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import grpc

from mq_broker.core.commands import ConsumersPage, ListPage
from mq_broker.memory import anonymous_bytes
from mq_broker.rpc import intake
from mq_broker.rpc.bounds import LiveStreams
from mq_broker.rpc.caller import client_of
from mq_broker.rpc.greetings import Greetings
from mq_broker.rpc.status import abort, in_band
from mq_broker.rpc.threads import Waits
from mq_wire.errors import LimitExceeded, MqError, Unsupported
from mq_wire.limits import (
    NAME_BYTES_MAX,
    PROTOCOL_VERSION,
    RECORDS_BYTES_MAX,
    RECORDS_ROWS_MAX,
    RPC_BYTES_MAX,
)
from mq_wire.v1.admin_pb2 import (
    HelloRequest,
    HelloResponse,
    Limits,
    ListDestinationsRequest,
    ListDestinationsResponse,
    StatsRequest,
    StatsResponse,
)
from mq_wire.v1.produce_pb2 import DiscardStagedRequest, DiscardStagedResponse, PublishResponse
from mq_wire.v1.subscribe_pb2 import ListConsumersRequest, ListConsumersResponse, PlanRequest, PlanResponse

if TYPE_CHECKING:
    from mq_broker.engine.engine import Engine

#: What this broker can do beyond protocol version 1. Clients check these names before they use a feature.
FEATURES: Final[tuple[str, ...]] = (
    "priorities",
    "staged-sets",
    "browse",
    "runs",
    "ask",
    "queries",
    "awaited",
    "consumers",
)
_WAIT_S_MAX: Final = 60.0
#: Number of partitions and consumers whose figures are collected in one turn of the engine.
_PAGE_EFFORT: Final = 1000
#: Size of one answer, below the limit of gRPC.
_LIST_BYTES_MAX: Final = RPC_BYTES_MAX - (64 << 10)
#: Staged sets that are discarded in one turn of the engine.
_DISCARDED_AT_ONCE: Final = 1000

Answer = Callable[[Any, grpc.ServicerContext], Any]


class UnaryCalls:
    """Answers all unary calls."""

    def __init__(
        self, engine: Engine, streams: LiveStreams, cluster_id: bytes, version: str, waits: Waits
    ) -> None:
        self._engine = engine
        self._streams = streams
        self._waits = waits
        self._started = time.monotonic()
        self._greetings = Greetings()
        limits = Limits(
            records_bytes_max=RECORDS_BYTES_MAX,
            records_rows_max=RECORDS_ROWS_MAX,
            name_bytes_max=NAME_BYTES_MAX,
        )
        self._hello = HelloResponse(
            cluster_id=cluster_id,
            version=version,
            protocol=PROTOCOL_VERSION,
            features=FEATURES,
            limits=limits,
        )

    def of(self, name: str) -> Answer:
        """Returns the function that answers the method `name`."""
        special: dict[str, Answer] = {
            "DiscardStaged": self._answer_discard,
            "Hello": self._answer_hello,
            "ListConsumers": self._answer_consumers,
            "ListDestinations": self._answer_list,
            "Plan": self._answer_plan,
            "Send": self._answer_send,
            "Stats": self._answer_stats,
        }
        answer = special.get(name, self._answer_by_engine)

        def guarded(request: Any, context: grpc.ServicerContext) -> Any:
            try:
                return answer(request, context)
            except Exception as error:  # abort gives each its status
                abort(context, error)

        return guarded

    def _answer_by_engine(self, request: Any, context: grpc.ServicerContext) -> Any:
        return self._engine.answer(request)

    def _answer_send(self, message: bytes, context: grpc.ServicerContext) -> PublishResponse:
        header, records = intake.parse(message)
        try:
            intake.check_broker(header, self._hello.cluster_id)
            receipt = self._engine.answer(intake.command(header, records))
        except MqError as error:
            return PublishResponse(request_id=header.request_id, error=in_band(error))
        return PublishResponse(request_id=header.request_id, receipt=receipt)

    def _answer_hello(self, request: HelloRequest, context: grpc.ServicerContext) -> HelloResponse:
        if request.protocol < PROTOCOL_VERSION:
            raise Unsupported(
                f"protocol version {request.protocol} is too old, {PROTOCOL_VERSION} is needed: "
                "update the client"
            )
        self._greetings.tell(request.client or client_of(context), context.peer())
        return self._hello

    def _answer_list(
        self, request: ListDestinationsRequest, context: grpc.ServicerContext
    ) -> ListDestinationsResponse:
        # In pages: all of ten thousand destinations in one turn would delay other clients by a second.
        response = ListDestinationsResponse()
        after, size = "", 0
        while context.is_active():
            page = self._engine.answer(ListPage(request.prefix, after, _PAGE_EFFORT))
            if not page.destinations:
                break
            size += page.ByteSize()
            if size > _LIST_BYTES_MAX:
                raise LimitExceeded(
                    f"the list of destinations has more than {_LIST_BYTES_MAX} bytes: "
                    "ask with a longer prefix"
                )
            response.MergeFrom(page)
            after = page.destinations[-1].name
        return response

    def _answer_consumers(
        self, request: ListConsumersRequest, context: grpc.ServicerContext
    ) -> ListConsumersResponse:
        response = ListConsumersResponse()
        page: ConsumersPage | None = ConsumersPage(request.destination, "", 0, _PAGE_EFFORT)
        size = 0
        while page is not None and context.is_active():
            found, page = self._engine.answer(page)
            size += found.ByteSize()
            if size > _LIST_BYTES_MAX:
                raise LimitExceeded(
                    f"the list of consumers has more than {_LIST_BYTES_MAX} bytes: ask for one destination"
                )
            response.MergeFrom(found)
        return response

    def _answer_discard(
        self, request: DiscardStagedRequest, context: grpc.ServicerContext
    ) -> DiscardStagedResponse:
        rows = 0
        for at in range(0, len(request.tokens), _DISCARDED_AT_ONCE):
            part = DiscardStagedRequest(tokens=request.tokens[at : at + _DISCARDED_AT_ONCE])
            rows += self._engine.answer(part).rows
        return DiscardStagedResponse(rows=rows)

    def _answer_stats(self, request: StatsRequest, context: grpc.ServicerContext) -> StatsResponse:
        stats: StatsResponse = self._engine.answer(request)
        stats.broker.uptime_ms = stats.broker.uptime_ms or round((time.monotonic() - self._started) * 1000)
        stats.broker.rss_anon_bytes = stats.broker.rss_anon_bytes or anonymous_bytes()
        return stats

    def _answer_plan(self, request: PlanRequest, context: grpc.ServicerContext) -> PlanResponse:
        wait_s = min(request.wait_ms / 1000, _WAIT_S_MAX)
        deadline = time.monotonic() + wait_s
        request.wait_ms = 0
        with self._engine.watching(request.who.destination) as stirred:
            reply: PlanResponse = self._engine.answer(request)
            # If too many calls wait already, this one is answered at once: an early answer does no harm.
            if not reply.idle or not wait_s or not self._waits.enter():
                return reply
            try:
                with self._streams.told_to_stop(stirred.set):
                    context.add_callback(stirred.set)
                    # It plans again when there are new rows, and once more at the end. It does not poll in
                    # between, since hundreds of calls may wait.
                    while (left := deadline - time.monotonic()) > 0:
                        stirred.wait(left)
                        stirred.clear()
                        if not context.is_active() or self._streams.stopping:
                            break
                        reply = self._engine.answer(request)
                        if not reply.idle:
                            break
                return reply
            finally:
                self._waits.leave()
