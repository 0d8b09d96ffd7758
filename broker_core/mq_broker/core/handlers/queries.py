"""Which query reads what, and since when: two readers of one queue, and batches whose number was used for
other rows.
"""

from __future__ import annotations

from collections.abc import Iterable

from mq_broker.core import owners
from mq_broker.core.handlers import incarnations
from mq_broker.core.ledger import Ledger
from mq_broker.core.model.destination import Destination
from mq_broker.core.model.query import Reader
from mq_broker.core.model.state import State
from mq_wire.errors import CheckpointTooOld, InvalidRequest, SharedRange
from mq_wire.v1 import subscribe_pb2 as wire

#: Says who reads in which batch of which query.
Reading = wire.OpenFetch | wire.JoinQueryRequest


def join_query(ledger: Ledger, request: wire.JoinQueryRequest) -> wire.JoinQueryResponse:
    """Takes down who reads a queue in a query, also where there is nothing to read yet.

    Raises:
        SharedRange: another one does.
        CheckpointTooOld: the batch is lower than all that are remembered of the query.
    """
    if not request.query_id:
        raise InvalidRequest("a reader that joins a query must name it: give query_id")
    incarnations.check_cluster(ledger.state, request.who)
    incarnations.check_run(ledger.state, request.who)
    destination = ledger.state.destination_of(request.who.destination, request.who.destination_id)
    if request.who.incarnation and request.who.incarnation not in destination.queue.consumers:
        raise incarnations.ended(destination, request.who)
    check_batch(ledger, destination, request, ())
    join(ledger, destination, request)
    if is_new(ledger.state, request):
        read = {
            "destination": destination.number,
            "incarnation": request.who.incarnation,
            "run": request.who.run,
        }
        ledger.record(range_read={**read, "query_id": request.query_id, "batch_id": request.batch_id})
    return wire.JoinQueryResponse()


def is_new(state: State, reading: Reading) -> bool:
    """Whether this is the first reading of its batch."""
    query = state.queries.get(reading.query_id)
    return bool(reading.query_id) and (query is None or reading.batch_id not in query.reads)


def check_batch(ledger: Ledger, destination: Destination, reading: Reading, serials: Iterable[int]) -> None:
    """Refuses plans that were cut after the batch was first read: a sink may know its number, and pass over
    other rows in silence.

    That goes for all queues: where a query reads two, one of them may have been idle in the batch that the
        checkpoint lost.

    Raises:
        CheckpointTooOld: one was, or the batch may have been read so long ago that nobody knows.
        LimitExceeded: the query is new, or reads a queue more, and there are too many.
    """
    state = ledger.state
    query = state.queries.get(reading.query_id)
    owners.check_room(state, reading.query_id, query is None or destination.number not in query.readers)
    if query is None:
        return
    read = query.reads.get(reading.batch_id)
    if query.forgot(reading.batch_id, state.settings.kept_batches):
        raise CheckpointTooOld(
            f"batch {reading.batch_id} of query {query.query_id} comes after batch {max(query.reads)} was "
            f"read: the checkpoint lost its "
            "last batches, or is an old copy. Start the query with a new checkpoint"
        )
    if read is not None and any(serial > read for serial in serials):
        raise CheckpointTooOld(
            f"batch {reading.batch_id} of query {query.query_id} was read before with other rows of queue "
            f"{reading.who.destination!r}: the "
            "checkpoint lost its last batches, and what was written under this number would not be written "
            "again. Start the query with a "
            "new checkpoint"
        )


def join(ledger: Ledger, destination: Destination, reading: Reading) -> None:
    """Takes down who reads this queue in this query, where that changed. A task of an older run reads on and
    changes nothing.

    Raises:
        SharedRange: it has another reader. Where neither has acknowledged anything both have ended, and their
            rows are ready again.
    """
    state, who = ledger.state, reading.who
    query = state.queries.get(reading.query_id)
    known = query.readers.get(destination.number) if query is not None else None
    if known is None:
        _take_down(ledger, destination, reading, who.incarnation)
        return
    if known.incarnation and who.incarnation and known.incarnation != who.incarnation:
        raise _shared(ledger, destination, reading, known)
    is_other = who.run != known.run
    # One checkpoint that is read by two runs is no second reader: the newer run fences the older. And Spark's
    # run is its job group, which a program may set: then it says something only while both are there.
    is_alive = {who.run, known.run} <= state.presence.held
    if (
        is_other
        and not (known.incarnation and who.incarnation)
        and reading.spark_run_id == known.spark_run_id
        and is_alive
    ):
        raise _shared(ledger, destination, reading, known)
    if who.run > known.run or (not is_other and who.incarnation and not known.incarnation):
        _take_down(ledger, destination, reading, who.incarnation or known.incarnation)


def _take_down(ledger: Ledger, destination: Destination, reading: Reading, incarnation: bytes) -> None:
    ledger.record(
        query_joined={
            "destination": destination.number,
            "query_id": reading.query_id,
            "spark_run_id": reading.spark_run_id,
            "run": reading.who.run,
            "incarnation": incarnation,
        }
    )


def _shared(ledger: Ledger, destination: Destination, reading: Reading, known: Reader) -> SharedRange:
    """Returns the error for a second reader. Its rows do not stay with a query that cannot run."""
    asked = {known.incarnation, reading.who.incarnation}
    both = [consumer for incarnation, consumer in destination.queue.consumers.items() if incarnation in asked]
    if any(consumer.acknowledged_plan for consumer in both):
        fate = "what they hold stays theirs until `mq consumers release`"
        second = destination.queue.consumers.get(reading.who.incarnation)
        unread = (
            [plan.number for plan in second.pending() if not plan.read_by_run] if second is not None else []
        )
        if unread and reading.who.incarnation != known.incarnation:
            ledger.record(
                plans_returned={
                    "destination": destination.number,
                    "incarnation": reading.who.incarnation,
                    "plans": unread,
                }
            )
    else:
        fate = "nothing was acknowledged, so their rows are back in the queue"
        for consumer in both:
            incarnations.end_consumer(ledger, destination, consumer, b"", shared=True)
    return SharedRange(
        f"query {reading.query_id} has two readers of queue {destination.name!r}, and each message goes to "
        f"one of them only: either it "
        f"reads the queue twice, as a self-join or a union of two load()s does, or its checkpoint lost its "
        f"first batch; {fate}. "
        f"{incarnations.SHARED_REMEDY}"
    )
