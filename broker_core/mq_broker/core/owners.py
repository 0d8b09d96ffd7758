"""Queries and markers as parts of a snapshot: in buckets, so that a commit does not write anew what all
others have committed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

from mq_broker.core import parts
from mq_broker.core.model.markers import BUCKETS, Marker, bucket_of
from mq_broker.core.model.query import Query, Reader
from mq_broker.core.model.state import State
from mq_wire.errors import LimitExceeded
from mq_wire.store.v1 import store_pb2 as store
from mq_wire.store.v1.store_pb2 import RangeRead

#: What the owner of a streaming sink's markers begins with; the query id follows.
QUERY_OWNER: Final = "query:"
#: Targets of one query whose writer epochs are remembered. Beyond it the oldest is forgotten: a writer that
#: was replaced so long ago could stage rows again, which nobody commits and which end by themselves.
EPOCH_TARGETS_MAX: Final = 1000
#: Readers, and epochs, of a query in one element of its part.
_ENDS: Final = 1000


def touch_query(state: State, query_id: str) -> Query:
    """Returns the record of a query that is about to change, made where there is none."""
    state.dirty.add(("queries", bucket_of(query_id)))
    known = state.queries.get(query_id)
    if known is None:
        if len(state.queries) >= state.settings.queries_max:
            _make_room(state, query_id)
        known = state.queries[query_id] = Query(query_id)
    return known


def note_read(state: State, what: RangeRead) -> None:
    """Takes down who reads a batch, and when it was first read."""
    query = touch_query(state, what.query_id)
    query.note_read(what.batch_id, state.plans_cut, state.settings.kept_batches)
    if what.incarnation and what.destination not in query.readers:
        # Format 1 did not say who joins.
        set_reader(state, what.query_id, what.destination, Reader("", what.run, what.incarnation))


def set_reader(state: State, query_id: str, number: int, reader: Reader) -> None:
    """Takes down who reads a queue for a query; queues that are gone are forgotten."""
    query = touch_query(state, query_id)
    for gone in [known for known in query.readers if known not in state.by_number]:
        del query.readers[gone]
        state.query_ends -= 1
    if number not in query.readers:
        _count_end(state, query_id)
    query.readers[number] = reader
    state.is_crowded = False


def _count_end(state: State, query_id: str) -> None:
    if state.query_ends >= state.settings.query_ends_max:
        _make_room(state, query_id)
    state.query_ends += 1


def mark_committed(state: State, query_id: str, version: int) -> None:
    """Takes down that our sink has committed a batch: what was read for exactly this one is done, in all
    queues.
    """
    query = touch_query(state, query_id)
    query.committed = version if query.committed is None else max(version, query.committed)
    for number, reader in query.readers.items():
        destination = state.by_number.get(number)
        if destination is None:
            continue
        known = destination.queue.consumers.get(reader.incarnation)
        # A run that joined before it had an incarnation may stand where an older one has read.
        readers = (
            [known]
            if known is not None
            else list(destination.queue.consumers.values())
            if not reader.incarnation
            else []
        )
        for consumer in readers:
            if consumer.mark_committed((query_id, version)):
                state.dirty.add(("consumers", number))


def query_of(owner: str) -> str:
    """Returns the query id of a streaming sink's owner, "" for others."""
    return owner.removeprefix(QUERY_OWNER) if owner.startswith(QUERY_OWNER) else ""


def idle_queries(state: State) -> list[str]:
    """Returns the queries that nobody reads or writes for any more, whose last batch was read longest ago
    first.
    """
    busy = {
        name for (owner, _), marker in state.markers.items() for name in (query_of(owner), marker.query_id)
    }
    busy |= {held.query_id for held in state.staged.values()}

    def lives(query: Query) -> bool:
        found = (
            (state.by_number.get(number), reader.incarnation) for number, reader in query.readers.items()
        )
        return any(
            destination is not None and incarnation in destination.queue.consumers
            for destination, incarnation in found
        )

    idle = [query for query in state.queries.values() if query.query_id not in busy and not lives(query)]
    return [q.query_id for q in sorted(idle, key=lambda q: (max(q.reads.values(), default=0), q.query_id))]


def check_room(state: State, query_id: str, ends: int) -> None:
    """Refuses a query that would be one too many, or a queue that it reads or a target that it writes. Known
    ones go on.

    Args:
        state: of the broker.
        query_id: of the query that is about to be remembered.
        ends: how many queues and targets of it are new.

    Raises:
        LimitExceeded: `queries_max` or `query_ends_max` are known, and all of these queries still hold or
            have committed something.
    """
    limits = state.settings
    is_full = len(state.queries) >= limits.queries_max and query_id not in state.queries
    if not is_full and (not ends or state.query_ends + ends <= limits.query_ends_max):
        return
    idle = [] if state.is_crowded else idle_queries(state)
    state.is_crowded = not idle
    if not any(other != query_id for other in idle):
        what = (
            f"{len(state.queries)} queries are known that hold or have committed rows, the limit "
            f"(queries_max) is {limits.queries_max}"
        )
        if not is_full:
            what = (
                f"queries are known to read and write {state.query_ends} queues, the limit "
                f"(query_ends_max) is {limits.query_ends_max}"
            )
        raise LimitExceeded(
            f"{what}: end those whose checkpoints are gone with `mq consumers release` and `mq markers "
            f"forget`, or raise the limit"
        )


def _make_room(state: State, asking: str) -> None:
    """Forgets idle queries other than the one that asks, some more than needed: looking for them takes a
    while.
    """
    limits = state.settings
    queries = 1 + limits.queries_max // 100 if len(state.queries) >= limits.queries_max else 0
    ends = 1 + limits.query_ends_max // 100 if state.query_ends >= limits.query_ends_max else 0
    for query_id in idle_queries(state):
        if queries <= 0 and ends <= 0:
            return
        if query_id != asking:
            gone = state.queries.pop(query_id)
            state.query_ends -= gone.ends
            queries, ends = queries - 1, ends - gone.ends
            state.dirty.add(("queries", bucket_of(query_id)))


def raise_epoch(state: State, query_id: str, target: str | None, epoch: int) -> None:
    """Ends writers of a query to `target` (None = to all) below `epoch`."""
    known = state.queries.get(query_id)
    if epoch > (known.epochs.get(target, 0) if known is not None else 0):
        epochs = touch_query(state, query_id).epochs
        if target not in epochs:
            _count_end(state, query_id)
        epochs[target] = epoch
        if len(epochs) > EPOCH_TARGETS_MAX:
            state.query_ends -= 1
            del epochs[min((known for known in epochs if known is not None), key=lambda name: epochs[name])]


def set_marker(state: State, owner: str, target: str, marker: Marker) -> None:
    """Remembers what an owner has committed last."""
    state.markers.put((owner, target), marker)
    state.is_crowded = False
    state.dirty.add(("markers", bucket_of(owner)))


def drop_marker(state: State, owner: str, target: str) -> None:
    """Forgets what an owner has committed."""
    state.is_crowded = False
    if state.markers.pop((owner, target)) is not None:
        state.dirty.add(("markers", bucket_of(owner)))


def export(state: State, dirty: set[tuple[object, ...]]) -> list[tuple[str, bytes]]:
    """Returns the buckets that changed and are not empty."""
    found: list[tuple[str, bytes]] = []
    if any(part[0] == "queries" for part in dirty):
        queries: defaultdict[int, list[bytes]] = defaultdict(list)
        for query in state.queries.values():
            at = bucket_of(query.query_id)
            if ("queries", at) in dirty:
                queries[at] += [
                    store.QueriesPart(queries=[part]).SerializeToString() for part in _query_parts(query)
                ]
        found += [piece for at in sorted(queries) for piece in parts.cut(f"queries/{at}", queries[at])]
    if any(part[0] == "markers" for part in dirty):
        buckets = {at: state.markers.bucket(at) for at in range(BUCKETS) if ("markers", at) in dirty}
        found += [
            piece
            for at, bucket in buckets.items()
            if bucket
            for piece in parts.cut(f"markers/{at}", _marker_elements(bucket))
        ]
    return found


def mark_all(state: State) -> None:
    """Marks every bucket that holds anything as changed."""
    state.dirty.update(("queries", bucket_of(query_id)) for query_id in state.queries)
    state.dirty.update(("markers", at) for at in range(BUCKETS) if state.markers.bucket(at))


def _query_parts(query: Query) -> Iterator[store.QueryPart]:
    """Yields a query, and more of its readers and epochs where they are many."""
    part = store.QueryPart(
        query_id=query.query_id,
        reads=[store.BatchRead(batch_id=batch, plans_cut=plans) for batch, plans in query.reads.items()],
    )
    if query.fenced_through is not None:
        part.fenced_through = query.fenced_through
    readers, epochs = list(query.readers.items()), list(query.epochs.items())
    for at in range(0, max(len(readers), len(epochs), 1), _ENDS):
        for number, reader in readers[at : at + _ENDS]:
            part.readers.add(
                destination=number,
                spark_run_id=reader.spark_run_id,
                run=reader.run,
                incarnation=reader.incarnation,
            )
        for target, epoch in epochs[at : at + _ENDS]:
            part.epochs.add(target=target, epoch=epoch)
        yield part
        part = store.QueryPart(query_id=query.query_id)


def _marker_elements(bucket: dict[tuple[str, str], Marker]) -> Iterator[bytes]:
    return (
        store.MarkersPart(markers=[_marker_part(*key, marker)]).SerializeToString()
        for key, marker in bucket.items()
    )


def _marker_part(owner: str, target: str, marker: Marker) -> store.MarkerPart:
    return store.MarkerPart(
        owner=owner,
        target=target,
        version=marker.version,
        run_id=marker.run_id,
        rows=marker.rows,
        query_id=marker.query_id,
        time_us=marker.time_us,
    )


def restore_queries(state: State, part: store.QueriesPart) -> None:
    """Takes over a piece of a bucket of queries."""
    for known in part.queries:
        query = state.queries.setdefault(known.query_id, Query(known.query_id))
        query.reads |= {read.batch_id: read.plans_cut for read in known.reads}
        query.readers |= {r.destination: Reader(r.spark_run_id, r.run, r.incarnation) for r in known.readers}
        query.epochs |= {(e.target if e.HasField("target") else None): e.epoch for e in known.epochs}
        if known.HasField("fenced_through"):
            query.fenced_through = known.fenced_through


def restore_markers(state: State, part: store.MarkersPart) -> None:
    """Takes over a piece of a bucket of markers."""
    for m in part.markers:
        state.markers.put((m.owner, m.target), Marker(m.version, m.run_id, m.rows, m.query_id, m.time_us))


def derive_committed(state: State, format_1: Iterable[store.MarkerPart]) -> None:
    """Tells queries what they have committed, once all parts are there; and plans too, which format 1 did not
    tell.
    """
    for (owner, _), marker in state.markers.items():
        if query_id := query_of(owner):
            query = state.queries.setdefault(query_id, Query(query_id))
            query.committed = (
                marker.version if query.committed is None else max(marker.version, query.committed)
            )
    state.query_ends = sum(query.ends for query in state.queries.values())
    newest: dict[str, int] = {}
    for m in format_1:
        newest[query_of(m.owner)] = max(m.version, newest.get(query_of(m.owner), m.version))
    for destination in state.by_number.values() if newest else ():
        for consumer, plan in destination.queue.plans():
            for query_id, batch in sorted(plan.batches):
                if destination.number not in touch_query(state, query_id).readers:
                    set_reader(
                        state, query_id, destination.number, Reader("", consumer.run, consumer.incarnation)
                    )
                if query_id in newest and batch <= newest[query_id]:
                    plan.committed = True
                    state.dirty.add(("consumers", destination.number))


def restore_format_1(state: State, part: store.BrokerPart) -> None:
    """Takes over what format 1 kept in one part with everything else; the next snapshot has it in buckets,
    and there alone.
    """
    if part.markers or part.query_epochs or part.fenced_batches:
        state.dirty.add(("broker",))
    for m in part.markers:
        set_marker(state, m.owner, m.target, Marker(m.version, m.run_id, m.rows))
    for query_id, epoch in part.query_epochs.items():
        raise_epoch(state, query_id, None, epoch)
    for batch in part.fenced_batches:
        touch_query(state, batch.query_id).fence(batch.batch_id)
