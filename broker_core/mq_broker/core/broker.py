"""The door of the core: one command in, one reply or error out, entries recorded on the way."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from mq_broker.core import (
    admin,
    apply,
    consumer_admin,
    inventory,
    planning,
    publishing,
    quarantine,
    queries,
    ranges,
    retention,
    sessions,
    staging,
    views,
)
from mq_broker.core import commands as command
from mq_broker.core.facets import stored_facets
from mq_broker.core.ledger import Ledger, Sink
from mq_broker.core.state import State
from mq_wire.errors import JournalDamaged, StoreFull
from mq_wire.store.v1.store_pb2 import Entry
from mq_wire.v1 import admin_pb2, produce_pb2, subscribe_pb2

#: Partitions whose duplicates one tick writes down.
DUPLICATES_OF_A_TICK: Final = 4096


def _tick(ledger: Ledger, tick: command.Tick) -> None:
    views.expire_browses(ledger)
    with contextlib.suppress(StoreFull):  # the next tick tries again
        publishing.count_duplicates(ledger, DUPLICATES_OF_A_TICK)
        staging.expire(ledger)
        ranges.watch_runs(ledger)
        ranges.forget_kept(ledger, space_is_short=tick.space_is_short)


_HANDLERS: Final[dict[type, Callable[[Ledger, Any], Any]]] = {
    command.Publish: publishing.publish,
    command.OpenSession: sessions.open_session,
    command.AddCredit: sessions.add_credit,
    command.Ask: sessions.ask,
    command.Acknowledge: sessions.acknowledge,
    command.CloseSession: sessions.close_session,
    command.HoldRun: ranges.hold_run,
    command.CloseRun: ranges.close_run,
    command.ResolveFetch: ranges.resolve_fetch,
    command.ReleaseView: views.release_view,
    command.Quarantine: quarantine.quarantine,
    command.ListPage: admin.list_page,
    command.ConsumersPage: consumer_admin.consumers_page,
    command.Tick: _tick,
    admin_pb2.DescribeDestinationRequest: admin.describe,
    admin_pb2.CreateDestinationRequest: admin.create,
    admin_pb2.DeleteDestinationRequest: admin.delete,
    admin_pb2.ListDestinationsRequest: admin.list_destinations,
    admin_pb2.StatsRequest: admin.stats,
    produce_pb2.OpenProducerRequest: admin.open_producer,
    produce_pb2.TakeEpochRequest: staging.take_epoch,
    produce_pb2.CommitStagedRequest: staging.commit,
    produce_pb2.DiscardStagedRequest: staging.discard,
    produce_pb2.ForgetMarkerRequest: staging.forget_marker,
    produce_pb2.ListStagedRequest: inventory.list_staged,
    produce_pb2.ListMarkersRequest: inventory.list_markers,
    subscribe_pb2.JoinQueryRequest: queries.join_query,
    subscribe_pb2.PlanRequest: planning.plan,
    subscribe_pb2.OpenRangeRequest: ranges.open_range,
    subscribe_pb2.AcknowledgeRangeRequest: ranges.acknowledge_range,
    subscribe_pb2.OpenBrowseRequest: views.open_browse,
    subscribe_pb2.ListConsumersRequest: consumer_admin.list_consumers,
    subscribe_pb2.ReleaseConsumerRequest: consumer_admin.release_consumer,
}


class Broker:
    """The whole broker but for disk, threads, clock and network.

    Args:
        cluster_id: 16 bytes, the data directory's identity.
        settings: bounds and defaults.
        sink: takes entries; the journal's turn in hand.
        new_id: gives 16 fresh random bytes.
    """

    def __init__(
        self, cluster_id: bytes, settings: command.Settings, sink: Sink, new_id: Callable[[], bytes]
    ) -> None:
        self.state = State(cluster_id, settings)
        self.ledger = Ledger(self.state, sink, new_id)

    def handle(self, request: Any, now_us: int, monotonic_us: int | None = None) -> Any:
        """Returns the reply, which may leave once the entries recorded so far are on disk.

        Args:
            request: a command, or the wire's request of a unary call.
            now_us: wall clock, microseconds.
            monotonic_us: microseconds that only grow; None = the wall clock, where only one is told.

        Raises:
            MqError: the command is refused; what it recorded before the error (a destination created on first
                use) stays.
        """
        self.ledger.now_us = now_us
        self.ledger.monotonic_us = now_us if monotonic_us is None else monotonic_us
        self.ledger.began = self.ledger.entries
        return _HANDLERS[type(request)](self.ledger, request)

    def dispatch(self, now_us: int) -> bool:
        """Hands rows to connected consumers. To be called after the sync; returns whether it is to be called
        again.
        """
        self.ledger.now_us = now_us
        return sessions.dispatch(self.ledger)

    def replay(self, header: bytes | memoryview, body: pa.Buffer | None, place: Any) -> None:
        """Applies one entry of the journal at recovery.

        Raises:
            JournalDamaged: the entry is of a version that this broker does not know.
        """
        entry = Entry.FromString(bytes(header))
        kind = entry.WhichOneof("what")
        if kind is None:
            raise JournalDamaged(
                "the journal holds an entry that this version does not know: start the newer broker that "
                "wrote it"
            )
        if body is None:
            apply.apply(self.state, entry, None)
        else:
            records = getattr(entry, kind).records
            apply.apply(self.state, entry, apply.Body(place, stored_facets(records, body)))

    def holders_of_space(self) -> str:
        """Returns who holds rows that nobody can consume, for the error of a full disk; "" where
        nobody does.
        """
        return inventory.holders_of_space(self.state)

    def reclaimable(self, segments: list[int]) -> list[int]:
        """Returns those of `segments` that hold no row that anybody can still get, and that nobody reads."""
        return retention.reclaimable(self.state, segments)
