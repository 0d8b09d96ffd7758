"""Who a durable consumer is: its incarnations, from the first plan to its end, and who may speak for one.

Rules: docs/rules.md, "Runs and incarnations".
"""

from __future__ import annotations

from typing import Final

from mq_broker.core.handlers import staging
from mq_broker.core.ledger import Ledger
from mq_broker.core.model.destination import Destination
from mq_broker.core.model.durable_consumer import Consumer
from mq_broker.core.model.state import State
from mq_wire.errors import (
    IncarnationSuperseded,
    InvalidRequest,
    LimitExceeded,
    OffsetsUnknown,
    RunFenced,
    SharedRange,
    WrongBroker,
)
from mq_wire.names import check_client_name
from mq_wire.v1 import subscribe_pb2 as wire

#: What somebody can do about two readers of one queue in one query.
SHARED_REMEDY: Final = (
    "Read the queue once and reuse the DataFrame, and start the query with a new checkpoint"
)


def check_cluster(state: State, who: wire.ConsumerRef) -> None:
    if who.cluster_id and who.cluster_id != state.cluster_id:
        raise WrongBroker(
            f"the query began with broker {who.cluster_id.hex()}, this one is {state.cluster_id.hex()}: "
            f"check the address, "
            "or start the query with a new checkpoint"
        )


def find(ledger: Ledger, destination: Destination, who: wire.ConsumerRef) -> Consumer | None:
    """Returns the consumer that asks, adopting its run; None where one has to be minted.

    Raises:
        RunFenced, IncarnationSuperseded, OffsetsUnknown, InvalidRequest.
    """
    if who.consumer:
        check_client_name(who.consumer, "consumer")
    check_run(ledger.state, who)
    if who.incarnation:
        consumer = destination.queue.consumers.get(who.incarnation)
        if consumer is None:
            raise ended(destination, who)
        if consumer.name != who.consumer:
            raise InvalidRequest(
                f"the checkpoint belongs to consumer {consumer.name!r}, the option says {who.consumer!r}: "
                f"restore the "
                "option, or use a new checkpoint"
            )
    else:
        named = destination.queue.consumer_named(who.consumer)
        consumer = (
            (named if named is not None and named.minted_by_run == who.run else None)
            if who.consumer
            else destination.queue.minted_by(who.run)
        )
    if consumer is not None:
        if who.run < consumer.run:
            raise RunFenced(
                f"run {who.run} of consumer {consumer.label!r} was replaced by run {consumer.run}: another "
                f"start of the query is at work"
            )
        if who.run > consumer.run:
            # Written down: the older run stays refused after a restart too.
            ledger.record(
                range_opened={
                    "destination": destination.number,
                    "incarnation": consumer.incarnation,
                    "run": who.run,
                }
            )
    return consumer


def check_run(state: State, who: wire.ConsumerRef) -> None:
    if not 0 < who.run <= state.epoch:
        raise InvalidRequest(f"run {who.run} was never given by this broker: hold a run first")


def ended(
    destination: Destination, who: wire.ConsumerRef
) -> IncarnationSuperseded | OffsetsUnknown | SharedRange:
    """Returns the error for an incarnation that is not there (any more)."""
    known = destination.queue.ended.get(who.incarnation)
    if known is None:
        return OffsetsUnknown(
            f"destination {destination.name!r} knows no consumer {who.incarnation.hex()}: was the broker "
            f"restored from an older backup? "
            "Start the query with a new checkpoint"
        )
    label = known.consumer or who.incarnation.hex()
    if known.shared:
        return SharedRange(
            f"consumer {label!r} was one of two readers of queue {destination.name!r} in one query, or its "
            f"checkpoint lost its first "
            f"batch: its rows went back to the queue. {SHARED_REMEDY}"
        )
    if not known.successor:
        return IncarnationSuperseded(
            f"consumer {label!r} was released by an operator, its rows went to others: start the query "
            f"with a new checkpoint"
        )
    return IncarnationSuperseded(
        f"consumer {label!r} lives on as incarnation {known.successor.hex()} under another checkpoint; "
        f"this one "
        f"({who.incarnation.hex()}) is over. Use the newer checkpoint, or another consumer name. If one "
        f"query reads this queue twice "
        "(a self-join), read it once and reuse the DataFrame"
    )


def mint(ledger: Ledger, destination: Destination, who: wire.ConsumerRef) -> Consumer:
    before = destination.queue.consumer_named(who.consumer)
    if before is None:
        _check_consumers(ledger.state)
    incarnation = ledger.new_id()
    if before is not None:
        if who.run < before.run:
            raise RunFenced(
                f"run {who.run} of consumer {before.label!r} was replaced by run {before.run}: another "
                f"start of the query is at work"
            )
        end_consumer(ledger, destination, before, incarnation)
    ledger.record(
        consumer_minted={
            "destination": destination.number,
            "consumer": who.consumer,
            "incarnation": incarnation,
            "run": who.run,
        }
    )
    return destination.queue.consumers[incarnation]


def _check_consumers(state: State) -> None:
    limit = state.settings.consumers_max
    if state.consumers_total >= limit:
        raise LimitExceeded(
            f"the broker has {state.consumers_total} durable consumers, the limit is {limit} "
            f"(consumers_max): end those whose checkpoints "
            "are gone with `mq consumers release`, or give queries that begin anew each time a consumer name"
        )


def end_consumer(
    ledger: Ledger, destination: Destination, consumer: Consumer, successor: bytes, *, shared: bool = False
) -> tuple[int, int]:
    """Takes a consumer's rows away: returns how many went back, and how many count as acknowledged since our
    sink committed their batch.

    Staged sets of batches that read the freed rows are dropped in the same turn.
    """
    pending = list(consumer.pending())
    done = [plan for plan in pending if plan.committed]
    freed = [plan for plan in pending if plan not in done]
    rows = sum(plan.rows for plan in freed), sum(plan.rows for plan in done)
    staging.discard_readers(ledger, {batch for plan in freed for batch in plan.batches})
    ledger.record(
        consumer_ended={
            "destination": destination.number,
            "incarnation": consumer.incarnation,
            "successor": successor,
            "acknowledged": [plan.number for plan in done],
            "returned": [plan.number for plan in freed],
            "shared": shared,
        }
    )
    return rows
