"""Every command of the core in one table: who handles it, and what it may cost.

A command is a class of `commands.py`, or the wire's request of a unary call. To add one, add its row here.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from mq_broker.core import commands as command
from mq_broker.core.handlers import (
    admin,
    choosing,
    committing,
    consumer_admin,
    inventory,
    planning,
    publishing,
    quarantine,
    queries,
    ranges,
    sessions,
    settling,
    staging,
    views,
)
from mq_broker.core.ledger import Ledger
from mq_broker.core.model.state import State
from mq_wire.errors import StoreFull
from mq_wire.v1 import admin_pb2, produce_pb2, subscribe_pb2

#: Partitions whose duplicates one tick writes down.
DUPLICATES_OF_A_TICK: Final = 4096
#: What a command writes behind its first entry at most: other entries of a few numbers each, tokens of staged
#: sets, and entries that give plans of one consumer back.
_MORE_BYTES: Final = 64 << 10
_TOKEN_BYTES: Final = 24
_RETURNED_BYTES: Final = 256


class Room(enum.Enum):
    """What happens to a command when the disk is full, and which room in the journal it may use."""

    #: It writes nothing, and is answered as ever.
    NOTHING = enum.auto()
    #: Rows that anybody publishes, and destinations and producers that come into being: refused first.
    PLAIN = enum.auto()
    #: Rows of staged sets: refused with plain ones, while entries without rows are written as state.
    STAGED = enum.auto()
    #: What frees space or keeps a promise: it may use what is kept back, and snapshots are taken for it.
    STATE = enum.auto()


class Permission(enum.Enum):
    """What a client must be allowed to do with the command's destination."""

    NONE = enum.auto()
    READ = enum.auto()
    WRITE = enum.auto()
    ADMIN = enum.auto()


@dataclass(frozen=True, slots=True)
class Command:
    """One row of the table.

    Attributes:
        handler: takes ledger and request, returns the reply, raises before it records.
        room: what it may use in the journal.
        permission: what its client must be allowed to do.
        destination: name of the destination that a request is about, "" for none in particular.
        more_bytes: what a request may write behind its first entry, beyond tokens and a few numbers.
    """

    handler: Callable[[Ledger, Any], Any]
    room: Room | Callable[[Any], Room]
    permission: Permission
    destination: Callable[[Any], str] = lambda request: ""
    more_bytes: Callable[[State, Any], int] = lambda state, request: 0

    def room_of(self, request: Any) -> Room:
        """Returns what this request may use in the journal."""
        return self.room if isinstance(self.room, Room) else self.room(request)

    def bytes_behind_first(self, state: State, request: Any) -> int:
        """Returns how many bytes a request may write behind its first entry."""
        return _MORE_BYTES + _TOKEN_BYTES * len(state.staged) + self.more_bytes(state, request)


def _tick(ledger: Ledger, tick: command.Tick) -> None:
    views.expire_browses(ledger)
    with contextlib.suppress(StoreFull):  # the next tick tries again
        publishing.count_duplicates(ledger, DUPLICATES_OF_A_TICK)
        staging.expire(ledger)
        ranges.watch_runs(ledger)
        ranges.forget_kept(ledger, space_is_short=tick.space_is_short)


def _room_of_publish(request: command.Publish) -> Room:
    return Room.STAGED if request.header.HasField("staged") else Room.PLAIN


def _given_back(state: State, request: Any) -> int:
    return _RETURNED_BYTES * state.consumers_total


def _bytes_of_request(state: State, request: produce_pb2.CommitStagedRequest) -> int:
    return request.ByteSize()


def _named(request: Any) -> str:
    return str(request.name)


def _destination(request: Any) -> str:
    return str(request.destination)


def _who(request: Any) -> str:
    return str(request.who.destination)


_NOTHING, _PLAIN, _STATE = Room.NOTHING, Room.PLAIN, Room.STATE
_NONE, _READ, _WRITE, _ADMIN = Permission.NONE, Permission.READ, Permission.WRITE, Permission.ADMIN

COMMANDS: Final[dict[type, Command]] = {
    command.Publish: Command(
        publishing.publish, _room_of_publish, _WRITE, lambda publish: str(publish.header.destination)
    ),
    command.OpenSession: Command(
        sessions.open_session, _PLAIN, _READ, lambda opened: str(opened.open.destination)
    ),
    command.AddCredit: Command(sessions.add_credit, _NOTHING, _READ),
    command.Ask: Command(sessions.ask, _NOTHING, _READ),
    command.Acknowledge: Command(settling.acknowledge, _STATE, _READ),
    command.HandOver: Command(settling.hand_over, _NOTHING, _READ),
    command.Release: Command(settling.release, _STATE, _READ),
    command.Drain: Command(sessions.drain, _NOTHING, _READ),
    command.CloseSession: Command(settling.close_session, _STATE, _NONE),
    command.HoldRun: Command(ranges.hold_run, _STATE, _NONE),
    command.CloseRun: Command(ranges.close_run, _STATE, _NONE, more_bytes=_given_back),
    command.ResolveFetch: Command(
        ranges.resolve_fetch, _STATE, _READ, lambda fetch: str(fetch.open.who.destination)
    ),
    command.ReleaseView: Command(views.release_view, _NOTHING, _NONE),
    command.Quarantine: Command(
        quarantine.quarantine, _STATE, _NONE, lambda found: str(found.view.destination)
    ),
    command.ListPage: Command(admin.list_page, _NOTHING, _READ),
    command.ConsumersPage: Command(consumer_admin.consumers_page, _NOTHING, _READ, _destination),
    command.Tick: Command(_tick, _STATE, _NONE, more_bytes=_given_back),
    admin_pb2.DescribeDestinationRequest: Command(admin.describe, _PLAIN, _READ, _named),
    admin_pb2.CreateDestinationRequest: Command(admin.create, _PLAIN, _ADMIN, _named),
    admin_pb2.DeleteDestinationRequest: Command(admin.delete, _STATE, _ADMIN, _named),
    admin_pb2.ListDestinationsRequest: Command(admin.list_destinations, _NOTHING, _READ),
    admin_pb2.StatsRequest: Command(admin.stats, _NOTHING, _READ, _destination),
    produce_pb2.OpenProducerRequest: Command(admin.open_producer, _STATE, _WRITE, _destination),
    produce_pb2.TakeEpochRequest: Command(staging.take_epoch, _STATE, _WRITE),
    produce_pb2.CommitStagedRequest: Command(committing.commit, _STATE, _WRITE, more_bytes=_bytes_of_request),
    produce_pb2.DiscardStagedRequest: Command(staging.discard, _STATE, _WRITE),
    produce_pb2.ForgetMarkerRequest: Command(committing.forget_marker, _STATE, _WRITE),
    produce_pb2.ListStagedRequest: Command(inventory.list_staged, _NOTHING, _READ),
    produce_pb2.ListMarkersRequest: Command(inventory.list_markers, _NOTHING, _READ),
    subscribe_pb2.JoinQueryRequest: Command(queries.join_query, _STATE, _READ, _who),
    subscribe_pb2.PlanRequest: Command(planning.plan, _STATE, _READ, _who, more_bytes=choosing.plan_bytes),
    subscribe_pb2.OpenRangeRequest: Command(ranges.open_range, _STATE, _READ, _who),
    subscribe_pb2.AcknowledgeRangeRequest: Command(ranges.acknowledge_range, _STATE, _READ, _who),
    subscribe_pb2.OpenBrowseRequest: Command(views.open_browse, _NOTHING, _READ, _destination),
    subscribe_pb2.ListConsumersRequest: Command(consumer_admin.list_consumers, _NOTHING, _READ, _destination),
    subscribe_pb2.ReleaseConsumerRequest: Command(
        consumer_admin.release_consumer, _STATE, _ADMIN, _destination
    ),
}
