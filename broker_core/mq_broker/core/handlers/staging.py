"""Staged sets and the commits that make them visible: exactly once for Spark's sink.

Rules: docs/rules.md, "Staged sets" and "Commit markers".
"""

from __future__ import annotations

from collections.abc import Iterable

from mq_broker.core import owners
from mq_broker.core.commands import Publish
from mq_broker.core.ledger import Ledger
from mq_broker.core.model.destination import Destination
from mq_broker.core.model.query import Query
from mq_broker.core.model.staged import StagedSet
from mq_broker.core.model.state import State
from mq_wire.errors import (
    EpochFenced,
    InvalidRequest,
    LimitExceeded,
    OutOfOrder,
    OutOfWindow,
    SequenceReused,
    StagedSetUnknown,
)
from mq_wire.limits import TOKEN_BYTES
from mq_wire.store.v1.store_pb2 import Entry, Records, Staged
from mq_wire.v1 import produce_pb2 as produce

#: An epoch that no broker gave may come from the wire all the same.
EPOCH_MAX = 2**64 - 1
#: What a tick ends at most, so that nobody waits long and its entries stay small: the next tick goes on.
_EXPIRED_SETS_MAX = 1000
_EXPIRED_MARKERS_MAX = 256


def take_epoch(ledger: Ledger, request: produce.TakeEpochRequest | None = None) -> produce.TakeEpochResponse:
    """Returns a number above all that were ever given: for writers of batches, and for runs.

    A request that names a query ends that query's older writers to the target at once: what they staged is
    discarded.

    Raises:
        LimitExceeded: the query, or its target, is new, and there are too many.
    """
    epoch = ledger.state.epoch + 1
    target = request.target if request is not None and request.HasField("target") else None
    if request is not None and request.query_id:
        check_query(ledger.state, request.query_id, {target})
    ledger.record(epoch_taken={"epoch": epoch})
    if request is not None and request.query_id:
        ledger.record(
            staged_discarded={
                "query_id": request.query_id,
                "target": target,
                "epochs_below": epoch,
                "older": True,
            }
        )
    return produce.TakeEpochResponse(epoch=epoch)


def stage(ledger: Ledger, command: Publish, destination: Destination) -> produce.Receipt:
    """Adds one batch to a staged set, or recognises it.

    Raises:
        EpochFenced: a newer writer of this query is at work, or what the batch read was given to somebody
            else.
        StagedSetUnknown: the set was committed or discarded in the meantime.
        LimitExceeded: it would be one open set more than `staged_sets_max`, one batch more than
            `staged_batches_max`, or the query, or its target, is new, and there are too many.
    """
    header, staged = command.header, command.header.staged
    if header.skip:
        raise InvalidRequest("a staged set has no gaps: discard it and write again under a new token")
    if staged.HasField("target") and staged.target not in ("", header.destination):
        raise InvalidRequest(
            f"a set for target {staged.target!r} gets rows for {header.destination!r}: name that one, or none"
        )
    held = _open_set(ledger, staged, header.first_sequence)
    receipt = produce.Receipt(
        partition=header.partition,
        rows=header.rows,
        log_id=destination.destination_id,
        append_time_us=ledger.now_us,
    )
    if held is not None and _seen_before(
        held, header, command.records_crc, (destination.number, header.partition)
    ):
        receipt.duplicates = header.rows
        return receipt
    _check_batches(ledger.state)
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
        target=_target_of(staged),
    )
    ledger.record_rows(
        Entry(time_us=ledger.now_us, staged=entry), command.records, command.records_crc, command.facets
    )
    ledger.state.staged.see(staged.token, ledger.monotonic_us)
    return receipt


def _open_set(ledger: Ledger, staged: produce.StagedSet, first: int) -> StagedSet | None:
    state = ledger.state
    if len(staged.token) != TOKEN_BYTES:
        raise InvalidRequest(f"a staging token has {len(staged.token)} bytes: use {TOKEN_BYTES} random ones")
    query = state.queries.get(staged.query_id, Query(staged.query_id))
    if query.is_fenced(staged.batch_id):
        raise EpochFenced(
            f"batch {staged.batch_id} of query {staged.query_id} read rows that were given to another "
            f"consumer since: its output is refused"
        )
    target = _target_of(staged)
    newest = query.epoch(target)
    if staged.epoch < newest:
        raise EpochFenced(
            f"writer epoch {staged.epoch} of query {staged.query_id} is over, {newest} is the lowest that "
            "may write: this task belongs to an attempt that was replaced, or whose batch is committed"
        )
    held = state.staged.get(staged.token)
    if held is None and first:
        raise StagedSetUnknown(
            f"staged set {staged.token.hex()} is not open (any more): it was committed, discarded or "
            f"expired; write again"
        )
    if held is not None:
        if (held.epoch, held.query_id, held.batch_id, held.target) != (
            staged.epoch,
            staged.query_id,
            staged.batch_id,
            target,
        ):
            raise InvalidRequest(
                f"staged set {staged.token.hex()} belongs to batch {held.batch_id} of query "
                f"{held.query_id!r}, epoch {held.epoch}, target {held.target!r}, not to batch "
                f"{staged.batch_id} of query {staged.query_id!r}, epoch {staged.epoch}, target {target!r}: "
                "use a new random token for each write"
            )
        return held
    older = (
        state.staged.of_query(staged.query_id, target) if staged.query_id and staged.epoch > newest else []
    )
    if len(state.staged) - len(older) >= state.settings.staged_sets_max:
        raise LimitExceeded(
            f"{len(state.staged)} staged sets are open, the limit (staged_sets_max) is "
            f"{state.settings.staged_sets_max}: see `mq staged list`, free what nobody will commit with "
            "`mq staged discard`, write with fewer tasks, or raise the limit"
        )
    if staged.query_id and staged.epoch > newest:
        check_query(state, staged.query_id, {target})
    if older:
        ledger.record(
            staged_discarded={
                "query_id": staged.query_id,
                "target": target,
                "epochs_below": staged.epoch,
                "older": True,
            }
        )
    return None


def check_query(state: State, query_id: str, targets: Iterable[str | None]) -> None:
    """Refuses writers' epochs of a query, or of targets, that would be too many to remember."""
    known = state.queries.get(query_id)
    owners.check_room(state, query_id, sum(known is None or target not in known.epochs for target in targets))


def _check_batches(state: State) -> None:
    batches, limit = state.staged.batches, state.settings.staged_batches_max
    if batches >= limit:
        raise LimitExceeded(
            f"the staged sets have {batches} batches, the limit (staged_batches_max) is {limit}: see `mq "
            f"staged list`, commit, free what "
            "nobody will commit with `mq staged discard`, write larger batches, or raise the limit"
        )


def _target_of(staged: produce.StagedSet) -> str | None:
    return staged.target if staged.HasField("target") else None


def _seen_before(held: StagedSet, header: produce.PublishHeader, crc: int, key: tuple[int, int]) -> bool:
    expected = held.frames.next_sequence(*key)
    if header.first_sequence == expected:
        return False
    if header.first_sequence > expected:
        raise OutOfOrder(
            f"staged set {held.token.hex()} misses sequence {expected}, got {header.first_sequence}: send "
            f"it again in order"
        )
    for first, rows, known_crc in held.frames.newest(*key):
        if (first, rows, known_crc) == (header.first_sequence, header.rows, crc):
            return True
        if first <= header.first_sequence:
            raise SequenceReused(
                f"staged set {held.token.hex()} got sequence {header.first_sequence} again with other "
                f"content: "
                "a retry must send the same bytes"
            )
    raise OutOfWindow(
        f"staged set {held.token.hex()} got sequence {header.first_sequence} again, too long after: write "
        f"again under a new token"
    )


def discard_sets(ledger: Ledger, tokens: Iterable[bytes]) -> int:
    known = [token for token in dict.fromkeys(tokens) if token in ledger.state.staged]
    rows = sum(ledger.state.staged[token].rows for token in known)
    if known:
        ledger.record(staged_discarded={"tokens": known})
    return rows


def discard(ledger: Ledger, request: produce.DiscardStagedRequest) -> produce.DiscardStagedResponse:
    """Drops sets that are there; a committed one is no set any more and stays."""
    return produce.DiscardStagedResponse(rows=discard_sets(ledger, request.tokens))


def discard_readers(ledger: Ledger, batches: set[tuple[str, int]]) -> None:
    """Drops the sets of batches whose input is given to somebody else, and of those before them, which are
    refused as well.
    """
    last: dict[str, int] = {}
    for query, batch in batches:
        last[query] = max(batch, last.get(query, batch))
    for query, batch in sorted(last.items()):
        if any(held.batch_id <= batch for held in ledger.state.staged.of_query(query)):
            ledger.record(staged_discarded={"query_id": query, "batches_through": batch})


def expire(ledger: Ledger) -> None:
    """Drops sets without any sign of life for `staged_ttl_us`, and markers of writes after a day; of many the
    rest later.

    How long a set was silent before a start only the wall clock knows. It may have jumped: half of the time
    counts at most.
    """
    staged, ttl_us = ledger.state.staged, ledger.state.settings.staged_ttl_us
    for held in staged.unseen():
        silent_us = min(max(ledger.now_us - held.last_time_us, 0), ttl_us // 2)
        staged.see(held.token, ledger.monotonic_us - silent_us)
    discard_sets(ledger, staged.silent(ledger.monotonic_us - ttl_us, _EXPIRED_SETS_MAX))
    for owner, target in ledger.state.markers.over(ledger.now_us, _EXPIRED_MARKERS_MAX):
        ledger.record(marker_forgotten={"owner": owner, "target": target})
