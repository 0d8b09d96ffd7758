"""Queries and markers as parts of a snapshot: in buckets, so that a commit does not write anew what all others have committed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from mq_broker.core.markers import BUCKETS, Marker, bucket_of
from mq_broker.core.query import Query, Reader
from mq_broker.core.state import State
from mq_wire.store.v1 import store_pb2 as store
from mq_wire.store.v1.store_pb2 import RangeRead

#: What the owner of a streaming sink's markers begins with; the query id follows.
QUERY_OWNER: Final = "query:"
#: Targets of one query whose writer epochs are remembered. Beyond it the oldest is forgotten: a writer that was replaced so long ago could
#: stage rows again, which nobody commits and which end by themselves.
EPOCH_TARGETS_MAX: Final = 1000


def touch_query(state: State, query_id: str) -> Query:
    """Returns the record of a query that is about to change, made where there is none."""
    state.dirty.add(("queries", bucket_of(query_id)))
    known = state.queries.get(query_id)
    if known is None:
        if len(state.queries) >= state.settings.queries_max:
            _make_room(state)
        known = state.queries[query_id] = Query(query_id)
    return known


def note_read(state: State, what: RangeRead) -> None:
    """Takes down who reads a batch, and when it was first read."""
    query = touch_query(state, what.query_id)
    query.note_read(what.batch_id, state.plans_cut, state.settings.kept_batches)
    if what.incarnation:
        # Format 1 did not say who joins.
        query.readers.setdefault(what.destination, Reader("", what.run, what.incarnation))


def mark_committed(state: State, query_id: str, version: int) -> None:
    """Takes down that our sink has committed a batch: what was read for exactly this one is done, in all queues."""
    query = touch_query(state, query_id)
    query.committed = version if query.committed is None else max(version, query.committed)
    for number, reader in query.readers.items():
        destination = state.by_number.get(number)
        if destination is None:
            continue
        known = destination.consumers.get(reader.incarnation)
        # A run that joined before it had an incarnation may stand where an older one has read.
        readers = [known] if known is not None else list(destination.consumers.values()) if not reader.incarnation else []
        for consumer in readers:
            if consumer.mark_committed((query_id, version)):
                state.dirty.add(("consumers", number))


def query_of(owner: str) -> str:
    """Returns the query id of a streaming sink's owner, "" for others."""
    return owner.removeprefix(QUERY_OWNER) if owner.startswith(QUERY_OWNER) else ""


def idle_queries(state: State) -> list[str]:
    """Returns the queries that nobody reads or writes for any more, whose last batch was read longest ago first."""
    busy = {name for (owner, _), marker in state.markers.items() for name in (query_of(owner), marker.query_id)}
    busy |= {held.query_id for held in state.staged.values()}

    def lives(query: Query) -> bool:
        found = ((state.by_number.get(number), reader.incarnation) for number, reader in query.readers.items())
        return any(destination is not None and incarnation in destination.consumers for destination, incarnation in found)

    idle = [query for query in state.queries.values() if query.query_id not in busy and not lives(query)]
    return [q.query_id for q in sorted(idle, key=lambda q: (max(q.reads.values(), default=0), q.query_id))]


def _make_room(state: State) -> None:
    """Forgets idle queries where there are too many, some more than needed: looking for them takes a while."""
    for query_id in idle_queries(state)[: 1 + state.settings.queries_max // 100]:
        del state.queries[query_id]
        state.dirty.add(("queries", bucket_of(query_id)))


def raise_epoch(state: State, query_id: str, target: str | None, epoch: int) -> None:
    """Ends writers of a query to `target` (None = to all) below `epoch`."""
    known = state.queries.get(query_id)
    if epoch > (known.epochs.get(target, 0) if known is not None else 0):
        epochs = touch_query(state, query_id).epochs
        epochs[target] = epoch
        if len(epochs) > EPOCH_TARGETS_MAX:
            del epochs[min((known for known in epochs if known is not None), key=lambda name: epochs[name])]


def set_marker(state: State, owner: str, target: str, marker: Marker) -> None:
    """Remembers what an owner has committed last."""
    state.markers.put((owner, target), marker)
    state.dirty.add(("markers", bucket_of(owner)))


def drop_marker(state: State, owner: str, target: str) -> None:
    """Forgets what an owner has committed."""
    if state.markers.pop((owner, target)) is not None:
        state.dirty.add(("markers", bucket_of(owner)))


def export(state: State, dirty: set[tuple[object, ...]]) -> list[tuple[str, bytes]]:
    """Returns the buckets that changed and are not empty."""
    parts: list[tuple[str, bytes]] = []
    if any(part[0] == "queries" for part in dirty):
        queries: defaultdict[int, store.QueriesPart] = defaultdict(store.QueriesPart)
        for query in state.queries.values():
            queries[bucket_of(query.query_id)].queries.append(_query_part(query))
        parts += [(f"queries/{at}", queries[at].SerializeToString()) for at in sorted(queries) if ("queries", at) in dirty]
    if any(part[0] == "markers" for part in dirty):
        buckets = {at: state.markers.bucket(at) for at in range(BUCKETS) if ("markers", at) in dirty}
        parts += [(f"markers/{at}", _markers_part(bucket).SerializeToString()) for at, bucket in buckets.items() if bucket]
    return parts


def mark_all(state: State) -> None:
    """Marks every bucket that holds anything as changed."""
    state.dirty.update(("queries", bucket_of(query_id)) for query_id in state.queries)
    state.dirty.update(("markers", at) for at in range(BUCKETS) if state.markers.bucket(at))


def _query_part(query: Query) -> store.QueryPart:
    part = store.QueryPart(
        query_id=query.query_id,
        reads=[store.BatchRead(batch_id=batch, plans_cut=plans) for batch, plans in query.reads.items()],
        readers=[
            store.QueryReader(destination=number, spark_run_id=reader.spark_run_id, run=reader.run, incarnation=reader.incarnation)
            for number, reader in query.readers.items()
        ],
        epochs=[store.TargetEpoch(target=target, epoch=epoch) for target, epoch in query.epochs.items()],
    )
    if query.fenced_through is not None:
        part.fenced_through = query.fenced_through
    return part


def _markers_part(bucket: dict[tuple[str, str], Marker]) -> store.MarkersPart:
    return store.MarkersPart(markers=[_marker_part(*key, marker) for key, marker in bucket.items()])


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
    """Takes over a bucket of queries."""
    for known in part.queries:
        state.queries[known.query_id] = Query(
            known.query_id,
            reads={read.batch_id: read.plans_cut for read in known.reads},
            readers={r.destination: Reader(r.spark_run_id, r.run, r.incarnation) for r in known.readers},
            epochs={(e.target if e.HasField("target") else None): e.epoch for e in known.epochs},
            fenced_through=known.fenced_through if known.HasField("fenced_through") else None,
        )


def restore_markers(state: State, part: store.MarkersPart) -> None:
    """Takes over a bucket of markers."""
    for m in part.markers:
        state.markers.put((m.owner, m.target), Marker(m.version, m.run_id, m.rows, m.query_id, m.time_us))


def derive_committed(state: State, format_1: Iterable[store.MarkerPart]) -> None:
    """Tells queries what they have committed, once all parts are there; and plans too, which format 1 did not tell."""
    for (owner, _), marker in state.markers.items():
        if query_id := query_of(owner):
            query = state.queries.setdefault(query_id, Query(query_id))
            query.committed = marker.version if query.committed is None else max(marker.version, query.committed)
    newest: dict[str, int] = {}
    for m in format_1:
        newest[query_of(m.owner)] = max(m.version, newest.get(query_of(m.owner), m.version))
    for destination in state.by_number.values() if newest else ():
        for consumer, plan in destination.plans():
            for query_id, batch in sorted(plan.batches):
                touch_query(state, query_id).readers.setdefault(destination.number, Reader("", consumer.run, consumer.incarnation))
                if query_id in newest and batch <= newest[query_id]:
                    plan.committed = True
                    state.dirty.add(("consumers", destination.number))


def restore_format_1(state: State, part: store.BrokerPart) -> None:
    """Takes over what format 1 kept in one part with everything else; the next snapshot has it in buckets, and there alone."""
    if part.markers or part.query_epochs or part.fenced_batches:
        state.dirty.add(("broker",))
    for m in part.markers:
        set_marker(state, m.owner, m.target, Marker(m.version, m.run_id, m.rows))
    for query_id, epoch in part.query_epochs.items():
        raise_epoch(state, query_id, None, epoch)
    for batch in part.fenced_batches:
        touch_query(state, batch.query_id).fence(batch.batch_id)
