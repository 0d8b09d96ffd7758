"""What operators see of consumers, durable and connected ones, and how they take rows away from one."""

from __future__ import annotations

from mq_broker.core.commands import ConsumersPage
from mq_broker.core.handlers import incarnations, settling
from mq_broker.core.ledger import Ledger
from mq_broker.core.model.destination import Destination
from mq_broker.core.model.durable_consumer import Consumer
from mq_broker.core.model.session import Session
from mq_wire.errors import InvalidRequest, UnknownDestination
from mq_wire.v1 import subscribe_pb2 as wire
from mq_wire.v1.common_pb2 import Positions


def list_consumers(ledger: Ledger, request: wire.ListConsumersRequest) -> wire.ListConsumersResponse:
    state = ledger.state
    destinations = (
        [state.destination(request.destination)]
        if request.destination
        else [state.by_name[n] for n in sorted(state.by_name)]
    )
    infos = [
        _info(ledger, destination, consumer)
        for destination in destinations
        for consumer in destination.queue.consumers.values()
    ]
    infos += [
        _connected(session) for destination in destinations for session in destination.queue.sessions.values()
    ]
    return wire.ListConsumersResponse(consumers=infos)


def consumers_page(
    ledger: Ledger, page: ConsumersPage
) -> tuple[wire.ListConsumersResponse, ConsumersPage | None]:
    """Returns some consumers, durable ones of a destination before connected ones, and how to ask for those
    behind them.
    """
    state = ledger.state
    names = [state.destination(page.destination).name] if page.destination else state.names("", page.after)
    response, left, skip, after = wire.ListConsumersResponse(), page.effort, page.skip, page.after
    for name in names:
        destination = state.by_name[name]
        holders: list[Consumer | Session] = [
            *destination.queue.consumers.values(),
            *destination.queue.sessions.values(),
        ]
        for holder in holders[skip:]:
            if left <= 0:
                return response, ConsumersPage(page.destination, after, skip, page.effort)
            if isinstance(holder, Session):
                response.consumers.append(_connected(holder))
                left -= 1
            else:
                response.consumers.append(_info(ledger, destination, holder))
                left -= 10 + sum(len(plan.assignments) for plan in holder.plans.values())
            skip += 1
        left, skip, after = left - 1, 0, name
        if left <= 0 and not page.destination:
            return response, ConsumersPage("", after, 0, page.effort)
    return response, None


def _connected(session: Session) -> wire.ConsumerInfo:
    return wire.ConsumerInfo(
        destination=session.destination,
        session=session.number,
        client=session.client,
        peer=session.peer,
        connected=True,
        unacknowledged_rows=session.held_rows,
    )


def _info(ledger: Ledger, destination: Destination, consumer: Consumer) -> wire.ConsumerInfo:
    pending = list(consumer.pending())
    last_batch = max(
        (batch for plan in pending for batch in plan.batches), key=lambda batch: batch[1], default=("", 0)
    )
    return wire.ConsumerInfo(
        destination=destination.name,
        consumer=consumer.name,
        incarnation=consumer.incarnation,
        run=consumer.run,
        connected=consumer.run in ledger.state.presence.held,
        unacknowledged_rows=sum(plan.rows for plan in pending),
        read_rows=sum(plan.rows for plan in pending if plan.read_by_run),
        oldest_unacknowledged_ms=max(
            (ledger.now_us - min((plan.time_us for plan in pending), default=ledger.now_us)) // 1000, 0
        ),
        pinned_bytes=sum(
            destination.partitions[number].log.index().bytes_of(selection)
            for plan in consumer.plans.values()
            if not plan.returned
            for number, (_, selection) in plan.assignments.items()
        ),
        next=Positions(next=consumer.next),
        query_id=last_batch[0],
        batch_id=last_batch[1],
        failed_attempts=max((plan.failed_attempts for plan in pending), default=0),
    )


def release_consumer(ledger: Ledger, request: wire.ReleaseConsumerRequest) -> wire.ReleaseConsumerResponse:
    """Ends a consumer: its rows go to others, its checkpoint is refused from now on. A connected one's stream
    ends instead.

    Who names the incarnation means that one and no other: where it is over, this call came before, and its
        answer was lost.
    """
    if request.session:
        return wire.ReleaseConsumerResponse(returned_rows=settling.end_session(ledger, request.session))
    if not request.consumer and not request.incarnation:
        raise InvalidRequest(
            "a release names no consumer: give a name, or an incarnation as `mq consumers list` shows it"
        )
    by_name = ledger.state.by_name
    if request.incarnation:
        destinations = [by_name[request.destination]] if request.destination in by_name else []
        destinations = list(by_name.values()) if not request.destination else destinations
        found = [
            (d, d.queue.consumers[request.incarnation])
            for d in destinations
            if request.incarnation in d.queue.consumers
        ]
        if not found:
            return wire.ReleaseConsumerResponse()
    else:
        destinations = (
            [ledger.state.destination(request.destination)] if request.destination else list(by_name.values())
        )
        found = [
            (d, c)
            for d in destinations
            for c in d.queue.consumers.values()
            if request.consumer in (c.name, c.incarnation.hex())
        ]
    if len(found) != 1:
        where = f" of {request.destination!r}" if request.destination else ""
        raise UnknownDestination(
            f"{len(found)} consumers{where} are called {request.consumer!r}: name one, by destination and "
            f"name or "
            "incarnation, as `mq consumers list` shows them"
        )
    returned, acknowledged = incarnations.end_consumer(ledger, *found[0], successor=b"")
    return wire.ReleaseConsumerResponse(returned_rows=returned, acknowledged_rows=acknowledged)
