"""`mq queues`, `mq stats`, `mq create`, `mq delete`."""

from __future__ import annotations

import argparse
from typing import Any

from mq_broker.console.output import put
from mq_broker.console.tables import age, print_pairs, print_table, size
from mq_wire.errors import InvalidRequest, UnknownDestination
from mq_wire.names import check_destination
from mq_wire.v1 import admin_pb2
from pyspark_mq import Connection


def queues(options: argparse.Namespace) -> int:
    """Prints one line per queue."""
    listing = _call(options, "ListDestinations", admin_pb2.ListDestinationsRequest(prefix=options.prefix))
    heads = (
        "QUEUE",
        "PARTITIONS",
        "READY",
        "ASSIGNED",
        "STAGED",
        "DEAD",
        "ENQUEUED",
        "DUPLICATES",
        "LOST",
        "CONSUMERS",
        "OLDEST",
    )
    print_table(
        heads,
        [
            (
                queue.name,
                queue.partitions,
                queue.ready_rows,
                queue.assigned_rows,
                queue.staged_rows,
                queue.dead_letters,
                queue.enqueued_rows,
                queue.duplicate_rows,
                queue.quarantined_rows,
                queue.consumers,
                age(queue.oldest_age_ms),
            )
            for queue in sorted(listing.destinations, key=lambda queue: queue.name)
        ],
    )
    return 0


def stats(options: argparse.Namespace) -> int:
    """Prints the figures of the broker, or of one queue."""
    if options.queue:
        check_destination(options.queue)
    reply = _call(options, "Stats", admin_pb2.StatsRequest(destination=options.queue))
    print_pairs(_queue_pairs(reply.destination) if options.queue else _broker_pairs(reply.broker))
    return 0


def create(options: argparse.Namespace) -> int:
    """Creates a queue."""
    with Connection(options.broker) as connection:
        existed = _exists(connection, options.queue)
        request = admin_pb2.CreateDestinationRequest(name=options.queue, partitions=options.partitions)
        made = connection.call("CreateDestination", request)
    # `created` is not enough: a repeated call finds the queue that its first attempt made, and an older
    # broker does not send it.
    is_new = made.created or not existed
    what = f"created {made.name}" if is_new else f"{made.name} existed already,"
    put(f"{what} with {len(made.partitions)} partitions")
    return 0


def _exists(connection: Connection, queue: str) -> bool:
    try:
        connection.call(
            "DescribeDestination", admin_pb2.DescribeDestinationRequest(name=queue), retry_timeout=None
        )
    except UnknownDestination:
        return False
    return True


def delete(options: argparse.Namespace) -> int:
    """Deletes a queue."""
    check_destination(options.queue)
    with Connection(options.broker) as connection:
        try:
            reply = connection.call(
                "Stats", admin_pb2.StatsRequest(destination=options.queue), retry_timeout=None
            )
        except UnknownDestination:
            raise UnknownDestination(
                f"queue {options.queue!r} does not exist: `mq queues` lists all queues"
            ) from None
        depth = reply.destination.depth_rows
        if depth and not options.force:
            raise InvalidRequest(
                f"queue {options.queue!r} holds {depth:,} messages: give --force to delete it with them"
            )
        # By its identity: a late repetition of the call must not delete a newer queue of the same name.
        known = reply.destination.destination_id
        connection.call(
            "DeleteDestination", admin_pb2.DeleteDestinationRequest(name=options.queue, destination_id=known)
        )
    put(f"deleted {options.queue}" + (f" with {depth:,} messages" if depth else ""))
    return 0


def _call(options: argparse.Namespace, method: str, request: Any) -> Any:
    with Connection(options.broker) as connection:
        return connection.call(method, request, retry_timeout=None)


def _broker_pairs(broker: Any) -> list[tuple[str, object]]:
    return [
        ("uptime", age(broker.uptime_ms)),
        ("memory (RssAnon)", size(broker.rss_anon_bytes)),
        ("journal", size(broker.journal_bytes)),
        ("segments", broker.segments),
        ("turns", broker.turns),
        ("queues", broker.destinations),
        ("sessions", broker.sessions),
        ("runs", broker.runs),
        ("rows published since start", broker.published_rows),
        ("rows delivered since start", broker.delivered_rows),
        ("rows acknowledged since start", broker.acknowledged_rows),
        ("duplicates since start", broker.duplicate_rows),
        ("rows staged", broker.staged_rows),
    ]


def _queue_pairs(queue: Any) -> list[tuple[str, object]]:
    lanes = [
        (f"ready at priority {priority}", rows)
        for priority, rows in reversed(list(enumerate(queue.ready_by_priority)))
        if rows
    ]
    return [
        ("queue", queue.name),
        ("partitions", queue.partitions),
        ("depth", queue.depth_rows),
        ("ready", queue.ready_rows),
        *lanes,
        ("ready bytes (estimate)", size(queue.ready_bytes)),
        ("assigned", queue.assigned_rows),
        ("staged", queue.staged_rows),
        ("dead letters", queue.dead_letters),
        ("oldest", age(queue.oldest_age_ms)),
        ("enqueued, ever", queue.enqueued_rows),
        ("duplicates, ever", queue.duplicate_rows),
        ("lost to damaged bytes, ever", queue.quarantined_rows),
        ("consumers", queue.consumers),
    ]
