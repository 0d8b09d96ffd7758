"""What operators see of staged sets and of markers, page by page, and what a full disk is full of."""

from __future__ import annotations

import heapq
import itertools
from typing import Final

from mq_broker.core.ledger import Ledger
from mq_broker.core.model.markers import BUCKETS, bucket_of
from mq_broker.core.model.staged import StagedSet
from mq_broker.core.model.state import State
from mq_wire.v1 import produce_pb2 as produce

#: Sets, or markers, of one answer: a millisecond, while everybody else waits.
PAGE: Final = 250
#: Of so many queries the one that has staged most is found while publishes are refused; with more of them
#: only the sum is told.
_QUERIES_COMPARED_MAX: Final = 1000
#: So many connected consumers, destinations, and parts of plans are looked at for one that holds many rows.
_HOLDERS_COMPARED_MAX: Final = 1000


def list_staged(ledger: Ledger, request: produce.ListStagedRequest) -> produce.ListStagedResponse:
    """Returns the open sets behind the token `after`, of one query or of all, in the order of their
    tokens.
    """
    staged = ledger.state.staged
    if request.query_id:
        known = staged.queries.get(request.query_id)
        tokens = known.tokens if known is not None else ()
        page = heapq.nsmallest(PAGE + 1, (token for token in tokens if token > request.after))
    else:
        page = staged.behind(request.after, PAGE + 1)
    return produce.ListStagedResponse(
        sets=[_staged_info(ledger, staged[token]) for token in page[:PAGE]], more=len(page) > PAGE
    )


def _staged_info(ledger: Ledger, held: StagedSet) -> produce.StagedInfo:
    by_number = ledger.state.by_number
    return produce.StagedInfo(
        token=held.token,
        query_id=held.query_id,
        batch_id=held.batch_id,
        run_id=held.run_id,
        epoch=held.epoch,
        target=held.target,
        destinations=sorted({by_number[number].name for number in held.rows_of}),
        rows=held.rows,
        bytes=held.size_bytes,
        age_ms=max(ledger.now_us - held.last_time_us, 0) // 1000,
    )


def list_markers(ledger: Ledger, request: produce.ListMarkersRequest) -> produce.ListMarkersResponse:
    """Returns the markers behind (after_owner, after_target), of owners with a prefix, bucket by bucket: an
    order of the broker's own.

    Each bucket is sorted once, and then kept in order: a page costs what it returns.
    """
    response = produce.ListMarkersResponse()
    after = (request.after_owner, request.after_target)
    first = bucket_of(request.after_owner) if any(after) else 0
    for number in range(first, BUCKETS):
        behind = after if number == first else ("", "")
        for key, marker in ledger.state.markers.behind(number, behind, request.prefix):
            if len(response.markers) == PAGE:
                response.more = True
                return response
            response.markers.add(
                owner=key[0],
                target=key[1],
                version=marker.version,
                rows=marker.rows,
                run_id=marker.run_id,
                query_id=marker.query_id,
                time_us=marker.time_us,
            )
    return response


def holders_of_space(state: State) -> str:
    """Returns what keeps rows on the disk that are not ready, for the error of a full disk: staged sets, and
    an example of a consumer. "" if there is neither.
    """
    return "; ".join(words for words in (_staged_words(state), _consumer_words(state)) if words)


def _staged_words(state: State) -> str:
    staged = state.staged
    if not staged.rows:
        return ""
    said = f"{len(staged)} staged sets hold {staged.rows} rows, {staged.size_bytes} bytes"
    if len(staged.queries) <= _QUERIES_COMPARED_MAX:
        query_id, most = max(staged.queries.items(), key=lambda item: item[1].size_bytes)
        said += f", {most.size_bytes} of them of {f'query {query_id}' if query_id else 'batch writes'}"
    return f"{said}: see `mq staged list`, and free with `mq staged discard` what nobody will commit"


def _consumer_words(state: State) -> str:
    rows, whose = max(_connected_holder(state), _durable_holder(state), key=lambda found: found[0])
    if not rows:
        return ""
    return f"consumers hold unacknowledged rows, such as {whose} {rows}: see `mq consumers list`"


def _connected_holder(state: State) -> tuple[int, str]:
    """Returns the rows that a connected consumer holds, and its name for operators: of the first thousand
    the one that holds most.
    """
    first = itertools.islice(state.sessions.values(), _HOLDERS_COMPARED_MAX)
    most = max(first, key=lambda session: session.held_rows, default=None)
    return (
        (0, "") if most is None else (most.held_rows, f"session {most.number} of queue {most.destination!r}")
    )


def _durable_holder(state: State) -> tuple[int, str]:
    """Returns the same of a durable consumer."""
    found, left = (0, ""), _HOLDERS_COMPARED_MAX
    for destination in itertools.islice(state.by_name.values(), _HOLDERS_COMPARED_MAX):
        for consumer in destination.queue.consumers.values():
            rows = 0
            for plan in consumer.pending():
                rows += plan.rows
                left -= len(plan.assignments)
                if left <= 0:
                    break
            if rows > found[0]:
                whose = consumer.name or consumer.incarnation.hex()
                found = rows, f"consumer {whose!r} of queue {destination.name!r}"
            left -= 1
            if left <= 0:
                return found
    return found
