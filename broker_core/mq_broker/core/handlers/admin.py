"""Destinations, producers' names and what operators ask."""

from __future__ import annotations

from mq_broker.core.commands import ListPage
from mq_broker.core.ledger import Ledger
from mq_broker.core.model.audit import named
from mq_broker.core.model.destination import Destination
from mq_broker.core.model.state import State
from mq_wire.errors import DestinationExists, InvalidRequest, LimitExceeded, UnknownDestination
from mq_wire.limits import PARTITIONS_MAX
from mq_wire.names import check_client_name, check_destination
from mq_wire.v1 import admin_pb2 as admin
from mq_wire.v1 import produce_pb2 as produce


def find_or_create(ledger: Ledger, name: str, create: bool) -> Destination:
    """Returns the destination, created on first use where both the caller and the configuration want it.

    Raises:
        InvalidName, UnknownDestination, LimitExceeded.
    """
    found = ledger.state.by_name.get(name)
    if found is not None:
        return found
    check_destination(name)
    if not create:
        return ledger.state.destination(name)
    if not ledger.state.settings.auto_create:
        raise UnknownDestination(
            f"there is no destination {name!r}, and this broker creates none on first use: create it with "
            f"`mq create {name}`, "
            "or set auto_create_destinations = true"
        )
    return _create(ledger, name, ledger.state.settings.default_partitions)


def _create(ledger: Ledger, name: str, partitions: int) -> Destination:
    state = ledger.state
    if len(state.by_name) >= state.settings.destinations_max:
        raise LimitExceeded(
            f"destination {name!r} would be one more than destinations_max = "
            f"{state.settings.destinations_max}: delete "
            "some or raise the limit"
        )
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise LimitExceeded(
            f"destination {name!r} cannot have {partitions} partitions: choose 1 to {PARTITIONS_MAX}"
        )
    if state.partitions_total + partitions > state.settings.partitions_total_max:
        raise LimitExceeded(
            f"destination {name!r} with {partitions} partitions would be beyond partitions_total_max = "
            f"{state.settings.partitions_total_max} ({state.partitions_total} are there): choose fewer, "
            f"delete some or raise the limit"
        )
    ledger.record(
        destination_created={
            "destination": state.next_destination,
            "name": name,
            "destination_id": ledger.new_id(),
            "partitions": partitions,
        }
    )
    return state.by_name[name]


def describe(ledger: Ledger, request: admin.DescribeDestinationRequest) -> admin.Destination:
    is_new = request.name not in ledger.state.by_name
    return _described(find_or_create(ledger, request.name, request.create), created=is_new)


def create(ledger: Ledger, request: admin.CreateDestinationRequest) -> admin.Destination:
    check_destination(request.name)
    found = ledger.state.by_name.get(request.name)
    if found is None:
        made = _create(ledger, request.name, request.partitions or ledger.state.settings.default_partitions)
        return _described(made, created=True)
    if request.partitions and request.partitions != len(found.partitions):
        raise DestinationExists(
            f"destination {request.name!r} exists with {len(found.partitions)} partitions, not "
            f"{request.partitions}: "
            "use another name, or delete it first"
        )
    return _described(found)


def _described(destination: Destination, *, created: bool = False) -> admin.Destination:
    """Tells of all partitions: of a thousand it is worked out once for each change."""
    known = destination.described
    if known is None or known[0] != destination.changes:
        listed = admin.Destination(
            name=destination.name,
            destination_id=destination.destination_id,
            partitions=[
                admin.Partition(partition=i, end_offset=p.log.next_offset)
                for i, p in enumerate(destination.partitions)
            ],
        )
        known = destination.described = (destination.changes, listed.SerializeToString())
    found = admin.Destination.FromString(known[1])
    found.created = created
    return found


def delete(ledger: Ledger, request: admin.DeleteDestinationRequest) -> admin.DeleteDestinationResponse:
    state = ledger.state
    named = request.destination_id
    if named:
        if len(named) != 16:
            raise InvalidRequest(
                f"destination_id of {len(named)} bytes: give the 16 that DescribeDestination shows, or none"
            )
        found = state.by_name.get(request.name)
        if found is None or found.destination_id != named:
            return admin.DeleteDestinationResponse()  # it is gone: this came before, and its answer was lost
    destination = state.destination(request.name)
    ledger.record(destination_deleted={"destination": destination.number})
    for number, session in destination.queue.sessions.items():
        # Its rows are gone: what it asks for from now on is refused.
        del state.sessions[number]
        why = UnknownDestination(
            f"destination {request.name!r} was deleted, and what was in it is gone: make a new consumer "
            f"when it is there again"
        )
        state.farewells.append((session, why))
        state.stir(destination.name)
    return admin.DeleteDestinationResponse()


def open_producer(ledger: Ledger, request: produce.OpenProducerRequest) -> produce.OpenProducerResponse:
    producer = named(check_client_name(request.name, "producer"))
    state = ledger.state
    if producer not in state.producers and len(state.producers) >= state.settings.named_producers_max:
        raise LimitExceeded(
            f"producer name {request.name!r} would be one more than named_producers_max = "
            f"{state.settings.named_producers_max}: "
            "use a name again, send without a name, or raise the limit"
        )
    epoch = state.producers.get(producer, 0) + 1
    ledger.record(producer_opened={"producer_id": producer, "epoch": epoch})
    response = produce.OpenProducerResponse(producer_id=producer, epoch=epoch)
    destination = ledger.state.by_name.get(request.destination)
    for number, partition in enumerate(destination.partitions if destination is not None else ()):
        mark = partition.audit.mark(producer)
        if mark is not None and mark.rows:
            response.marks.add(partition=number, rows=mark.rows, last_offset=mark.last_offset)
    return response


def list_destinations(
    ledger: Ledger, request: admin.ListDestinationsRequest
) -> admin.ListDestinationsResponse:
    """Returns all of them at once, for whoever is alone with the broker; others ask page by page."""
    state = ledger.state
    found = [destination_stats(ledger, state.by_name[name]) for name in state.names(request.prefix, "")]
    return admin.ListDestinationsResponse(destinations=found)


def list_page(ledger: Ledger, command: ListPage) -> admin.ListDestinationsResponse:
    """Returns the next ones, at least one where there is any: each takes time as it has partitions and
    consumers.
    """
    response = admin.ListDestinationsResponse()
    left = command.effort
    for name in ledger.state.names(command.prefix, command.after):
        destination = ledger.state.by_name[name]
        queue = destination.queue
        left -= 4 + len(destination.partitions) + len(queue.sessions) + len(queue.consumers)
        if left < 0 and response.destinations:
            break
        response.destinations.append(destination_stats(ledger, destination))
    return response


def stats(ledger: Ledger, request: admin.StatsRequest) -> admin.StatsResponse:
    state = ledger.state
    totals, journal = state.totals, ledger.figures()
    broker = admin.BrokerStats(
        turns=journal.turns,
        journal_bytes=journal.size_bytes,
        segments=journal.segments,
        published_rows=totals.published,
        delivered_rows=totals.delivered,
        acknowledged_rows=totals.acknowledged,
        duplicate_rows=totals.duplicates,
        destinations=len(state.by_name),
        sessions=len(state.sessions),
        runs=len(state.presence.held),
        staged_rows=state.staged.rows,
    )
    if not request.destination:
        return admin.StatsResponse(broker=broker)
    destination = state.destination(request.destination)
    return admin.StatsResponse(broker=broker, destination=destination_stats(ledger, destination))


def destination_stats(ledger: Ledger, destination: Destination) -> admin.DestinationStats:
    """Returns what operators and `StreamingQueryProgress` see of a queue."""
    state, now_us = ledger.state, ledger.now_us
    queue = destination.queue
    ready, assigned = queue.ready_rows(), queue.assigned_rows()
    oldest = destination.oldest_time_us(ledger.monotonic_us) if ready + assigned else None
    return admin.DestinationStats(
        name=destination.name,
        destination_id=destination.destination_id,
        partitions=len(destination.partitions),
        depth_rows=ready + assigned,
        ready_rows=ready,
        assigned_rows=assigned,
        ready_bytes=ready_bytes(destination),
        ready_by_priority=queue.ready.counts,
        oldest_age_ms=max(now_us - oldest, 0) // 1000 if oldest is not None else 0,
        duplicate_rows=duplicates_of(state, destination),
        enqueued_rows=destination.enqueued,
        staged_rows=state.staged.rows_of[destination.number],
        consumers=len(queue.consumers) + len(queue.sessions),
        quarantined_rows=sum(len(p.quarantined) for p in destination.partitions),
    )


def duplicates_of(state: State, destination: Destination) -> int:
    """Returns how many rows were ever recognised as stored before; the last of them may not be on disk
    yet.
    """
    pending = (
        sum(state.duplicates[destination.number, p] for p in range(len(destination.partitions)))
        if state.duplicates
        else 0
    )
    return pending + sum(partition.duplicates for partition in destination.partitions)


def ready_bytes(destination: Destination) -> int:
    """Returns the estimated bytes of the ready rows, from the mean row size of each partition's frames."""
    total = 0
    for number in destination.queue.ready.everywhere():
        log = destination.partitions[number].log
        total += int(destination.queue.backlogs[number].ready.rows * log.size_bytes / max(log.span, 1))
    return total
