"""Staged sets become visible: commits, and the markers that say what was committed."""

from __future__ import annotations

from mq_broker.core.handlers import staging
from mq_broker.core.ledger import Ledger
from mq_broker.core.model.markers import WRITE_OWNER, Marker
from mq_broker.core.model.query import Query
from mq_broker.core.model.staged import StagedSet
from mq_broker.core.model.state import State
from mq_wire.errors import (
    BatchMismatch,
    CheckpointTooOld,
    EpochFenced,
    InvalidRequest,
    LimitExceeded,
    StagedSetUnknown,
)
from mq_wire.store.v1.store_pb2 import StagedRange
from mq_wire.v1 import produce_pb2 as produce

QUERY_OWNER = "query:"


APPLICATION_OWNER = "app:"


#: A commit of more sets and partitions does without ranges, which only a repair looks at: its entry must fit
#: into a turn.
_RANGES_MAX = 16_384


def commit(ledger: Ledger, request: produce.CommitStagedRequest) -> produce.CommitStagedResponse:
    """Makes exactly the named sets visible, once per (owner, target, version).

    The marker is looked at before the tokens: after a lost reply they are gone, and the commit must still
        succeed.

    Raises:
        CheckpointTooOld: a lower version than the one committed last.
        BatchMismatch: the same version with another number of rows, or from another query.
        StagedSetUnknown: a set is not there, or does not hold the rows that its writer counted. Nothing is
            committed.
        LimitExceeded: a new owner or query, and as many are remembered as may be.
    """
    state = ledger.state
    limit = state.settings.commit_sets_max
    if len(request.tokens) > limit:
        raise LimitExceeded(
            f"a commit of {request.owner or 'staged sets'!r} names {len(request.tokens)} staged sets, the "
            f"limit (commit_sets_max) is "
            f"{limit}, since everybody waits for it: write with fewer tasks (coalesce), or raise the limit"
        )
    query_id = _committing_query(request)
    marker = state.markers.get((request.owner, request.target)) if request.owner else None
    if marker is not None and request.version <= marker.version:
        return _committed_before(ledger, request, marker)
    sets = [_whole_set(state, token, request) for token in request.tokens]
    if len({held.token for held in sets}) != len(sets):
        raise InvalidRequest("a commit names a staged set twice: name each once")
    rows = sum(held.rows for held in sets)
    if rows != request.rows:
        raise InvalidRequest(f"a commit of {request.rows} rows names sets of {rows}: the sums must agree")
    if request.owner and marker is None:
        _check_markers(state, request.owner)
    query = _query_of(request.owner)
    if query and query in state.queries and state.queries[query].is_fenced(request.version):
        raise EpochFenced(
            f"batch {request.version} of query {query} read rows that were given to another consumer "
            f"since: its output is refused"
        )
    if query:
        staging.check_query(state, query, {held.target for held in sets if held.query_id == query})
    tokens = [held.token for held in sets]
    if tokens or request.owner:
        ledger.record(
            staged_committed={
                "tokens": tokens,
                "owner": request.owner,
                "target": request.target,
                "version": request.version,
                "run_id": request.run_id,
                "rows": rows,
                "ranges": _ranges(state, sets),
                "query_id": query_id,
            }
        )
    _end_batches(ledger, query, request.target, request.version, sets)
    state.totals.published += rows
    return produce.CommitStagedResponse(rows=rows)


def _committing_query(request: produce.CommitStagedRequest) -> str:
    """Returns the query that commits, as far as the request tells: an owner that is a query names it, also
    where an old client does not.
    """
    query = _query_of(request.owner)
    if query and request.query_id not in ("", query):
        raise InvalidRequest(
            f"a commit of {request.owner!r} names query {request.query_id!r}: they must be the same"
        )
    return query or request.query_id


def _check_markers(state: State, owner: str) -> None:
    """Refuses a new owner where nothing more can be remembered. Writes have a count of their own: they come
    and go by themselves.
    """
    limit, markers = state.settings.markers_max, state.markers
    if owner.startswith(WRITE_OWNER):
        if len(markers.passing) >= limit:
            raise LimitExceeded(
                f"{len(markers.passing)} batch writes are remembered, the limit (markers_max) is {limit}: "
                f"they are forgotten a day after "
                "their commit; raise the limit, or forget some with `mq markers forget OWNER TARGET`"
            )
    elif markers.lasting >= limit:
        raise LimitExceeded(
            f"{owner} would be one more than markers_max = {limit} owners whose commits are remembered for "
            f"ever: forget one that never "
            "comes again with `mq markers forget OWNER TARGET` (`mq markers list` shows them), or raise "
            "the limit"
        )


def _ranges(state: State, sets: list[StagedSet]) -> list[StagedRange]:
    """Returns where the rows of each set go: at the next offset of their partition, one set behind the
    other.
    """
    if sum(held.frames.partitions for held in sets) > _RANGES_MAX:
        return []
    following: dict[tuple[int, int], int] = {}
    ranges = []
    for number, held in enumerate(sets):
        for destination, partition, rows in held.frames.ends():
            key = (destination, partition)
            base = following.get(key, state.by_number[destination].partitions[partition].log.next_offset)
            following[key] = base + rows
            ranges.append(
                StagedRange(set=number, destination=destination, partition=partition, base=base, rows=rows)
            )
    return ranges


def _whole_set(state: State, token: produce.StagedToken, request: produce.CommitStagedRequest) -> StagedSet:
    held = state.staged.get(token.token)
    if held is None:
        raise StagedSetUnknown(
            f"staged set {token.token.hex()} is not there: it was discarded or expired; nothing was "
            f"committed, write the batch again"
        )
    if held.rows != token.rows:
        raise StagedSetUnknown(
            f"staged set {held.token.hex()} holds {held.rows} rows, its writer counted {token.rows}: "
            f"nothing was "
            "committed, write the batch again"
        )
    if not held.writes_to(request.target):
        raise InvalidRequest(
            f"staged set {held.token.hex()} was written for target {held.target!r}: it cannot be committed "
            f"to {request.target!r}"
        )
    if request.target:
        destination = state.by_name.get(request.target)
        number = destination.number if destination is not None else 0
        if any(known != number for known in held.rows_of):
            raise InvalidRequest(
                f"staged set {held.token.hex()} holds rows for other destinations than {request.target!r}: "
                f"commit it under target ''"
            )
    return held


def _committed_before(
    ledger: Ledger, request: produce.CommitStagedRequest, marker: Marker
) -> produce.CommitStagedResponse:
    who = f"{request.owner} to {request.target or 'its queues'!r}"
    query_id = _committing_query(request)
    if "" not in (query_id, marker.query_id) and query_id != marker.query_id:
        raise BatchMismatch(
            f"version {request.version} of {who} comes from query {query_id}, and version {marker.version} "
            f"was committed by query "
            f"{marker.query_id}: these are other rows under a number that was used. "
            f"{_other_query_remedy(request)}"
        )
    if request.version < marker.version:
        raise CheckpointTooOld(
            f"version {request.version} of {who} comes after version {marker.version} was committed: the "
            f"checkpoint is "
            "older than the queue. "
            f"Restore the right checkpoint, start with a new one, or forget the marker if these rows are "
            f"wanted again"
        )
    if request.rows != marker.rows and not request.keep_mismatch:
        raise BatchMismatch(
            f"version {request.version} of {who} was committed with {marker.rows} rows and now has "
            f"{request.rows}: either the query is not deterministic, or the checkpoint lost its last "
            "offsets, or this batch writes twice to one queue. Check all three; give each write of a batch a "
            "txnAppId of its own. batchMismatch=keep keeps what was committed, and drops these rows"
        )
    sets = [held for token in request.tokens if (held := ledger.state.staged.get(token.token)) is not None]
    staging.discard_sets(ledger, (held.token for held in sets))
    _end_batches(ledger, _query_of(request.owner), request.target, request.version, sets)
    return produce.CommitStagedResponse(already_committed=True, rows=marker.rows)


def _other_query_remedy(request: produce.CommitStagedRequest) -> str:
    if request.owner.startswith(APPLICATION_OWNER):
        return (
            "Give each checkpoint a txnAppId of its own: choose a new one now. Nothing was committed or "
            "lost, "
            "and the batch runs again under it"
        )
    return "Commit under an owner of this query's own"


def _query_of(owner: str) -> str:
    """Returns the query id of a streaming sink's owner, "" for others."""
    return owner.removeprefix(QUERY_OWNER) if owner.startswith(QUERY_OWNER) else ""


def _end_batches(ledger: Ledger, query: str, target: str, through: int, sets: list[StagedSet]) -> None:
    """Drops what else was staged to this target for these batches, and ends the epoch of the sets that were
    chosen.

    A task that lost may still be at work: what it sent from now on would begin a set that nobody ever
        commits.
    """
    if not query:
        return
    if any(held.batch_id <= through for held in ledger.state.staged.of_query(query, target)):
        ledger.record(staged_discarded={"query_id": query, "target": target, "batches_through": through})
    over: dict[str | None, int] = {}
    for held in sets:
        if held.query_id == query:
            over[held.target] = max(over.get(held.target, 0), min(held.epoch + 1, staging.EPOCH_MAX))
    for writers, epoch in over.items():
        if epoch > ledger.state.queries.get(query, Query(query)).epoch(writers):
            ledger.record(staged_discarded={"query_id": query, "target": writers, "epochs_below": epoch})


def forget_marker(ledger: Ledger, request: produce.ForgetMarkerRequest) -> produce.ForgetMarkerResponse:
    if (request.owner, request.target) in ledger.state.markers:
        ledger.record(marker_forgotten={"owner": request.owner, "target": request.target})
    return produce.ForgetMarkerResponse()
