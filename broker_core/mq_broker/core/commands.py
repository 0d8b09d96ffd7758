"""What the engine hands to the core, and what comes back.

Unary calls need no class of their own: their wire request is the command and their wire response the reply.
Here are the others.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from pyroaring import BitMap64

from mq_wire.errors import MqError
from mq_wire.v1.consume_pb2 import Asked, Drained, OpenConsumer
from mq_wire.v1.produce_pb2 import PublishHeader
from mq_wire.v1.subscribe_pb2 import OpenFetch

if TYPE_CHECKING:
    import pyarrow as pa

    from mq_broker.core.model.facets import Facets
    from mq_broker.core.model.log import FrameIndex
    from mq_broker.core.model.selection import Selection


#: Rows by partition: first offsets of ranges and offsets after the last, as int64 arrays.
RowRanges = list[tuple[int, np.ndarray, np.ndarray]]


@dataclass(frozen=True, slots=True)
class Publish:
    """One validated batch. Reply: `Receipt`."""

    header: PublishHeader
    records: pa.Buffer
    records_crc: int
    facets: Facets


@dataclass(frozen=True, slots=True)
class RowsView:
    """Rows to be sent, in this order, as the state was when it was made; safe to read from any thread while
    pinned.

    `delivery_count` is that of rows without counts of their own; `counts` are the bits of those, one tuple
    for each kind of count (`counts.RowCounts`).
    """

    destination: str
    partition: int
    log_id: bytes
    selection: Selection
    first_delivery: int
    frames: FrameIndex
    delivery_count: int = 1
    counts: tuple[tuple[BitMap64, ...], ...] = ()
    #: Segments that must not be recycled while this view is read; give it back with `ReleaseView`.
    pins: frozenset[int] = frozenset()
    #: The session whose outbox it is in, until it is given back, and its estimated bytes there.
    session: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A consumer has connected. Reply: `ConsumerOpened`.

    `deliver` and `tell` are called by the engine's thread and must only hand over, in this order. `tell` gets
    answers to `Ask` and `Drain`, and, as its last word, the error that ends the session from this side.
    `peer`: where it came from, for operators.
    """

    open: OpenConsumer
    deliver: Callable[[RowsView], None]
    tell: Callable[[Asked | Drained | MqError], None] = field(default=lambda what: None)
    peer: str = ""


@dataclass(frozen=True, slots=True)
class AddCredit:
    """Reply: None."""

    session: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Ask:
    """Is there nothing more within the credit? `Asked` goes to `OpenSession.tell`, behind what was ready.
    Reply: None.
    """

    session: int
    request_id: int


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Exactly these rows are done. Reply: number of rows."""

    session: int
    partitions: RowRanges


@dataclass(frozen=True, slots=True)
class HandOver:
    """The application was handed exactly these rows. Reply: None.

    A session that sent one is believed in these alone, and no longer in its credit.
    """

    session: int
    partitions: RowRanges


@dataclass(frozen=True, slots=True)
class Release:
    """Exactly these rows go back to the queue. Each has failed once more, unless `uncounted`. Reply: number
    of rows.
    """

    session: int
    partitions: RowRanges
    uncounted: bool = False


@dataclass(frozen=True, slots=True)
class Drain:
    """Takes all credit back. `Drained` goes to `OpenSession.tell`, behind what was delivered. Reply: None."""

    session: int
    request_id: int


class SessionEnd(enum.Enum):
    """Who ended a session. What counts is in docs/rules.md, "Two counts of a row"."""

    #: Its client, which has said before what its application was handed.
    GOODBYE = enum.auto()
    #: The connection broke, or the client died.
    LOST = enum.auto()
    #: The broker, or an operator: the consumer did nothing wrong.
    BROKER = enum.auto()


@dataclass(frozen=True, slots=True)
class CloseSession:
    """The session ended: what it still holds is ready again. Reply: None.

    `end` says who ended it. Without a goodbye everything may have been handed over but `unsent`, which never
    left.
    """

    session: int
    end: SessionEnd = SessionEnd.LOST
    unsent: tuple[RowsView, ...] = ()


@dataclass(frozen=True, slots=True)
class HoldRun:
    """Reply: the run number; `run` 0 asks for a new one. `cluster_id`: the broker that gave it; empty = not
    checked.
    """

    run: int
    cluster_id: bytes = b""


@dataclass(frozen=True, slots=True)
class CloseRun:
    """The run's stream ended: what it planned and nobody read is ready again. Reply: None."""

    run: int


@dataclass(frozen=True, slots=True)
class ResolveFetch:
    """Reply: list of `RowsView`, in delivery order. The first one of a range is written down (who reads it,
    in which batch).
    """

    open: OpenFetch


@dataclass(frozen=True, slots=True)
class ReleaseView:
    """The rows of a view have been sent, or will not be. Reply: None."""

    view: RowsView


@dataclass(frozen=True, slots=True)
class Quarantine:
    """The bytes of frames that `view` reads are damaged or gone. `bases`: their base offsets.

    Reply: two bitmaps, the offsets that are taken out now, and all of the view that are out. What nobody
    could get any more, or was moved since, is in neither.
    """

    view: RowsView
    bases: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ListPage:
    """Some destinations behind the name `after`, of those that begin with `prefix`; none where there are no
    more.

    `effort`: so many partitions and consumers are looked at. Reply: `ListDestinationsResponse`.
    """

    prefix: str
    after: str
    effort: int


@dataclass(frozen=True, slots=True)
class ConsumersPage:
    """Some consumers of `destination` (of all where it is ""): those of the destination behind the name
    `after` but its first `skip`, then those of the next ones.

    `effort`: so many are looked at. Reply: (`ListConsumersResponse`, the next `ConsumersPage` or None).
    """

    destination: str
    after: str
    skip: int
    effort: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: expire staged sets, browse views, runs of silent hosts, what is kept for nobody.
    Reply: None.

    `space_is_short`: publishes are refused, so what need not be kept goes at once.
    """

    space_is_short: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """What the core needs of the broker's configuration. Times in microseconds."""

    auto_create: bool = True
    default_partitions: int = 4
    destinations_max: int = 100_000
    partitions_total_max: int = 400_000
    named_producers_max: int = 100_000
    markers_max: int = 200_000
    staged_sets_max: int = 100_000
    staged_batches_max: int = 1_000_000
    commit_sets_max: int = 20_000
    browses_max: int = 1000
    browse_bytes_max: int = 128 << 20
    staged_ttl_us: int = 24 * 3600 * 1_000_000
    browse_ttl_us: int = 300 * 1_000_000
    run_grace_us: int = 120 * 1_000_000
    kept_range_ttl_us: int = 24 * 3600 * 1_000_000
    consumers_max: int = 100_000
    queries_max: int = 100_000
    query_ends_max: int = 400_000
    anonymous_producers_max: int = 1000
    anonymous_producers_total_max: int = 200_000
    #: Partitions that named producers have sent to, of all of them.
    producer_marks_max: int = 400_000
    #: Number of the first consumer session of this process; other processes on the same data should begin
    #: elsewhere.
    first_session: int = 1
    #: Acknowledged plans of a consumer whose boundaries are known, beside those whose rows are kept.
    kept_boundaries: int = 100
    #: Plans of a consumer that were given back before anybody opened them, and whose boundaries are known all
    #: the same.
    kept_returned: int = 100
    #: Plans of an incarnation one behind the other of which nobody has read a row.
    unread_plans_max: int = 100
    #: Batches that read one plan.
    batches_per_plan_max: int = 100
    #: Batches of a query of which it is known when they were first read.
    kept_batches: int = 100
    #: Incarnations of a destination that ended and are known.
    kept_ended: int = 1000
    #: Deliveries of one turn, of all sessions together; the others follow in the next turns, behind what has
    #: arrived in the meantime.
    deliveries_of_a_turn: int = 128
    #: What a session is given before it has sent it: estimated bytes, and batches as it sends them.
    outbox_bytes: int = 32 << 20
    outbox_batches: int = 256
    version: str = field(default="0")
