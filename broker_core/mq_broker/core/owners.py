"""Queries and markers as parts of a snapshot: in buckets, so that a commit does not write anew what all others have committed."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from mq_broker.core.markers import BUCKETS, Marker, bucket_of
from mq_broker.core.query import Query, Reader
from mq_broker.core.state import State
from mq_wire.store.v1 import store_pb2 as store

#: Targets of one query whose writer epochs are remembered. Beyond it the oldest is forgotten: a writer that was replaced so long ago could
#: stage rows again, which nobody commits and which end by themselves.
EPOCH_TARGETS_MAX: Final = 1000


def touch_query(state: State, query_id: str) -> Query:
    """Returns the record of a query that is about to change, made where there is none."""
    state.dirty.add(("queries", bucket_of(query_id)))
    return state.queries.setdefault(query_id, Query(query_id))


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
