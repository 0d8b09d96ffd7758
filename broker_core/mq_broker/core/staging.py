"""Staged sets and the commits that make them visible: exactly once for Spark's sink (design.md section 7)."""

from __future__ import annotations

from collections.abc import Iterable

from mq_broker.core.commands import Publish
from mq_broker.core.destination import Destination
from mq_broker.core.ledger import Ledger
from mq_broker.core.query import Query
from mq_broker.core.staged import Marker, StagedSet
from mq_broker.core.state import State
from mq_wire.errors import (
    BatchMismatch,
    CheckpointTooOld,
    EpochFenced,
    InvalidRequest,
    OutOfOrder,
    OutOfWindow,
    SequenceReused,
    StagedSetUnknown,
)
from mq_wire.limits import TOKEN_BYTES
from mq_wire.store.v1.store_pb2 import Entry, Records, Staged, StagedRange
from mq_wire.v1 import produce_pb2 as produce

QUERY_OWNER = "query:"
#: An epoch that no broker gave may come from the wire all the same.
_EPOCH_MAX = 2**64 - 1
#: A commit of more sets and partitions does without ranges, which only a repair looks at: its entry must fit into a turn.
_RANGES_MAX = 16_384


def take_epoch(ledger: Ledger, request: produce.TakeEpochRequest | None = None) -> produce.TakeEpochResponse:
    """Returns a number above all that were ever given: for writers of batches, and for runs."""
    ledger.record(epoch_taken={"epoch": ledger.state.epoch + 1})
    return produce.TakeEpochResponse(epoch=ledger.state.epoch)


def stage(ledger: Ledger, command: Publish, destination: Destination) -> produce.Receipt:
    """Adds one batch to a staged set, or recognises it.

    Raises:
        EpochFenced: a newer writer of this query is at work, or what the batch read was given to somebody else.
        StagedSetUnknown: the set was committed or discarded in the meantime.
    """
    header, staged = command.header, command.header.staged
    held = _open_set(ledger, staged, header.first_sequence)
    receipt = produce.Receipt(partition=header.partition, rows=header.rows, log_id=destination.destination_id, append_time_us=ledger.now_us)
    if held is not None and _seen_before(held, header, command.records_crc, (destination.number, header.partition)):
        receipt.duplicates = header.rows
        return receipt
    if header.skip:
        raise InvalidRequest("a staged set has no gaps: discard it and write again under a new token")
    entry = Staged(
        token=staged.token,
        destination=destination.number,
        partition=header.partition,
        records=Records(rows=header.rows, columns=header.columns, priority_plus_one=header.priority_plus_one),
        first_sequence=header.first_sequence,
        records_crc=command.records_crc,
        epoch=staged.epoch,
        query_id=staged.query_id,
        batch_id=staged.batch_id,
        run_id=staged.run_id,
    )
    ledger.record_rows(Entry(time_us=ledger.now_us, staged=entry), command.records, command.records_crc, command.priorities)
    ledger.state.staged[staged.token].seen_us = ledger.monotonic_us
    return receipt


def _open_set(ledger: Ledger, staged: produce.StagedSet, first: int) -> StagedSet | None:
    state = ledger.state
    if len(staged.token) != TOKEN_BYTES:
        raise InvalidRequest(f"a staging token has {len(staged.token)} bytes: use {TOKEN_BYTES} random ones")
    query = state.queries.get(staged.query_id, Query(staged.query_id))
    if query.is_fenced(staged.batch_id):
        raise EpochFenced(
            f"batch {staged.batch_id} of query {staged.query_id} read rows that were given to another consumer since: its output is refused"
        )
    newest = query.epoch(None)
    if staged.epoch < newest:
        raise EpochFenced(
            f"writer epoch {staged.epoch} of query {staged.query_id} is over, {newest} is the lowest that may write: this task belongs to "
            "an attempt that was replaced, or whose batch is committed"
        )
    held = state.staged.get(staged.token)
    if held is None and first:
        raise StagedSetUnknown(
            f"staged set {staged.token.hex()} is not open (any more): it was committed, discarded or expired; write again"
        )
    if held is not None and (held.epoch, held.query_id, held.batch_id) != (staged.epoch, staged.query_id, staged.batch_id):
        raise InvalidRequest(
            f"staged set {staged.token.hex()} belongs to batch {held.batch_id} of query {held.query_id!r}, epoch {held.epoch}, not to "
            f"batch {staged.batch_id} of query {staged.query_id!r}, epoch {staged.epoch}: use a new random token for each write"
        )
    if staged.query_id and staged.epoch > newest:
        _discard(ledger, (s.token for s in state.staged.values() if s.query_id == staged.query_id))
    return held


def _seen_before(held: StagedSet, header: produce.PublishHeader, crc: int, key: tuple[int, int]) -> bool:
    expected = held.next_sequence.get(key, 0)
    if header.first_sequence == expected:
        return False
    if header.first_sequence > expected:
        raise OutOfOrder(f"staged set {held.token.hex()} misses sequence {expected}, got {header.first_sequence}: send it again in order")
    for known in reversed(held.ranges[key]):
        if known.first == header.first_sequence and known.rows == header.rows and known.crc == crc:
            return True
        if known.first <= header.first_sequence:
            raise SequenceReused(
                f"staged set {held.token.hex()} got sequence {header.first_sequence} again with other content: "
                "a retry must send the same bytes"
            )
    raise OutOfWindow(
        f"staged set {held.token.hex()} got sequence {header.first_sequence} again, too long after: write again under a new token"
    )


def commit(ledger: Ledger, request: produce.CommitStagedRequest) -> produce.CommitStagedResponse:
    """Makes exactly the named sets visible, once per (owner, target, version).

    The marker is looked at before the tokens: after a lost reply they are gone, and the commit must still succeed.

    Raises:
        CheckpointTooOld: a lower version than the one committed last.
        BatchMismatch: the same version with another number of rows.
        StagedSetUnknown: a set is not there, or does not hold the rows that its writer counted. Nothing is committed.
    """
    state = ledger.state
    marker = state.markers.get((request.owner, request.target)) if request.owner else None
    if marker is not None and request.version <= marker.version:
        return _committed_before(ledger, request, marker)
    sets = [_whole_set(state, token, request) for token in request.tokens]
    if len({held.token for held in sets}) != len(sets):
        raise InvalidRequest("a commit names a staged set twice: name each once")
    rows = sum(held.rows for held in sets)
    if rows != request.rows:
        raise InvalidRequest(f"a commit of {request.rows} rows names sets of {rows}: the sums must agree")
    query = _query_of(request.owner)
    if query and query in state.queries and state.queries[query].is_fenced(request.version):
        raise EpochFenced(
            f"batch {request.version} of query {query} read rows that were given to another consumer since: its output is refused"
        )
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
            }
        )
    _end_batches(ledger, query, request.version, sets)
    state.totals.published += rows
    return produce.CommitStagedResponse(rows=rows)


def _ranges(state: State, sets: list[StagedSet]) -> list[StagedRange]:
    """Returns where the rows of each set go: at the next offset of their partition, one set behind the other."""
    following: dict[tuple[int, int], int] = {}
    ranges = []
    for number, held in enumerate(sets):
        for (destination, partition), rows in held.next_sequence.items():
            key = (destination, partition)
            base = following.get(key, state.by_number[destination].partitions[partition].log.next_offset)
            following[key] = base + rows
            ranges.append(StagedRange(set=number, destination=destination, partition=partition, base=base, rows=rows))
    return ranges if len(ranges) <= _RANGES_MAX else []


def _whole_set(state: State, token: produce.StagedToken, request: produce.CommitStagedRequest) -> StagedSet:
    held = state.staged.get(token.token)
    if held is None:
        raise StagedSetUnknown(
            f"staged set {token.token.hex()} is not there: it was discarded or expired; nothing was committed, write the batch again"
        )
    if held.rows != token.rows:
        raise StagedSetUnknown(
            f"staged set {held.token.hex()} holds {held.rows} rows, its writer counted {token.rows}: nothing was "
            "committed, write the batch again"
        )
    if request.target:
        destination = state.by_name.get(request.target)
        number = destination.number if destination is not None else 0
        if any(frame.entry.destination != number for frame in held.frames):
            raise InvalidRequest(
                f"staged set {held.token.hex()} holds rows for other destinations than {request.target!r}: commit it under target ''"
            )
    return held


def _committed_before(ledger: Ledger, request: produce.CommitStagedRequest, marker: Marker) -> produce.CommitStagedResponse:
    who = f"{request.owner} to {request.target or 'its queues'!r}"
    if request.version < marker.version:
        raise CheckpointTooOld(
            f"version {request.version} of {who} comes after version {marker.version} was committed: the checkpoint is "
            "older than the queue. "
            f"Restore the right checkpoint, start with a new one, or forget the marker if these rows are wanted again"
        )
    if request.rows != marker.rows and not request.keep_mismatch:
        raise BatchMismatch(
            f"version {request.version} of {who} was committed with {marker.rows} rows and now has {request.rows}: either the query is not "
            "deterministic, or the checkpoint lost its last offsets. Check both; batchMismatch=keep keeps what was committed"
        )
    sets = [held for token in request.tokens if (held := ledger.state.staged.get(token.token)) is not None]
    _discard(ledger, (held.token for held in sets))
    _end_batches(ledger, _query_of(request.owner), request.version, sets)
    return produce.CommitStagedResponse(already_committed=True, rows=marker.rows)


def _query_of(owner: str) -> str:
    """Returns the query id of a streaming sink's owner, "" for others."""
    return owner.removeprefix(QUERY_OWNER) if owner.startswith(QUERY_OWNER) else ""


def _end_batches(ledger: Ledger, query: str, through: int, sets: Iterable[StagedSet]) -> None:
    """Drops what else was staged for these batches, and ends the epoch of the sets that were chosen.

    A task that lost may still be at work: what it sent from now on would begin a set that nobody ever commits.
    """
    if query:
        over = max((min(held.epoch + 1, _EPOCH_MAX) for held in sets if held.query_id == query), default=0)
        tokens = (s.token for s in ledger.state.staged.values() if s.query_id == query and s.batch_id <= through)
        known = ledger.state.queries.get(query, Query(query))
        _discard(ledger, tokens, query, over if over > known.epoch(None) else 0)


def _discard(ledger: Ledger, tokens: Iterable[bytes], query: str = "", epochs_below: int = 0) -> int:
    known = [token for token in dict.fromkeys(tokens) if token in ledger.state.staged]
    rows = sum(ledger.state.staged[token].rows for token in known)
    if known or epochs_below:
        ledger.record(staged_discarded={"tokens": known, "query_id": query if epochs_below else "", "epochs_below": epochs_below})
    return rows


def discard(ledger: Ledger, request: produce.DiscardStagedRequest) -> produce.DiscardStagedResponse:
    """Drops sets that are there; a committed one is no set any more and stays."""
    return produce.DiscardStagedResponse(rows=_discard(ledger, request.tokens))


def discard_readers(ledger: Ledger, batches: set[tuple[str, int]]) -> None:
    """Drops the sets of batches whose input is given to somebody else."""
    _discard(ledger, (s.token for s in ledger.state.staged.values() if (s.query_id, s.batch_id) in batches))


def expire(ledger: Ledger) -> None:
    """Drops sets without any sign of life for `staged_ttl_us`.

    How long a set was silent before a start only the wall clock knows. It may have jumped: half of the time counts at most.
    """
    ttl_us = ledger.state.settings.staged_ttl_us
    for held in ledger.state.staged.values():
        if held.seen_us is None:
            held.seen_us = ledger.monotonic_us - min(max(ledger.now_us - held.last_time_us, 0), ttl_us // 2)
    limit = ledger.monotonic_us - ttl_us
    _discard(ledger, [s.token for s in ledger.state.staged.values() if s.seen_us is not None and s.seen_us < limit])


def forget_marker(ledger: Ledger, request: produce.ForgetMarkerRequest) -> produce.ForgetMarkerResponse:
    ledger.record(marker_forgotten={"owner": request.owner, "target": request.target})
    return produce.ForgetMarkerResponse()


def committed_by_sink(state: State, batches: set[tuple[str, int]]) -> bool:
    """Returns whether our sink has committed any of these (query id, batch id)."""
    first: dict[str, int] = {}
    for query, batch in batches:
        owner = f"{QUERY_OWNER}{query}"
        first[owner] = min(batch, first.get(owner, batch))
    return any(owner in first and marker.version >= first[owner] for (owner, _), marker in state.markers.items())
