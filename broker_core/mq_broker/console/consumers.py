"""`mq consumers`: lists durable and connected consumers with what they hold, and takes it away from them."""

from __future__ import annotations

import argparse
import sys

from mq_broker.console.output import put
from mq_broker.console.tables import age, print_table, size
from mq_wire.errors import InvalidOption
from mq_wire.v1 import subscribe_pb2
from mq_wire.v1.subscribe_pb2 import ConsumerInfo
from pyspark_mq import Connection

_HEADS = (
    "QUEUE",
    "CONSUMER",
    "INCARNATION",
    "CONNECTED",
    "UNACKNOWLEDGED",
    "READ",
    "OLDEST",
    "PINNED",
    "FAILED",
    "QUERY",
    "BATCH",
    "SESSION",
    "FROM",
    "CLIENT",
)


def listing(options: argparse.Namespace) -> int:
    """Prints one line per consumer."""
    with Connection(options.broker) as connection:
        print_table(
            _HEADS,
            [
                _connected(info) if info.session else _durable(info)
                for info in _consumers(connection, options.queue)
            ],
        )
    return 0


def release(options: argparse.Namespace) -> int:
    """Returns the rows that a durable consumer holds to the queue, and ends the consumer."""
    with Connection(options.broker) as connection:
        one = _called(connection, options.queue, options.name)
        # By its incarnation: a late repetition of the call must not end a newer consumer of the same name.
        request = subscribe_pb2.ReleaseConsumerRequest(
            destination=one.destination, consumer=one.incarnation.hex(), incarnation=one.incarnation
        )
        reply = connection.call("ReleaseConsumer", request)
    if one.connected:
        print(
            f"a running query used the name {options.name}: it ends with IncarnationSuperseded, "
            "and needs a new checkpoint",
            file=sys.stderr,
        )
    figures = f"{reply.returned_rows:,} messages returned, {reply.acknowledged_rows:,} acknowledged"
    put(f"released {options.name} of {one.destination}: {figures}")
    return 0


def end(options: argparse.Namespace) -> int:
    """Ends the stream of a connected consumer."""
    with Connection(options.broker) as connection:
        found = [
            info for info in _consumers(connection, "") if info.session and info.session == options.session
        ]
        if not found:
            raise InvalidOption(
                f"no consumer with session {options.session} is connected: "
                "`mq consumers list` shows the connected consumers"
            )
        # Without retries: if the answer to the first call is lost, a second call would find no such session.
        reply = connection.call(
            "ReleaseConsumer",
            subscribe_pb2.ReleaseConsumerRequest(session=options.session),
            retry_timeout=None,
        )
    put(
        f"ended session {options.session} of {found[0].destination}: "
        f"{reply.returned_rows:,} messages returned"
    )
    return 0


def _consumers(connection: Connection, queue: str) -> list[ConsumerInfo]:
    return list(
        connection.call(
            "ListConsumers", subscribe_pb2.ListConsumersRequest(destination=queue), retry_timeout=None
        ).consumers
    )


def _called(connection: Connection, queue: str, name: str) -> ConsumerInfo:
    found = [
        info
        for info in _consumers(connection, queue)
        if not info.session and name in (info.consumer, info.incarnation.hex())
    ]
    if len(found) == 1:
        return found[0]
    if found:
        queues = ", ".join(sorted({info.destination for info in found}))
        raise InvalidOption(f"consumer {name!r} exists on the queues {queues}: say which with --queue")
    if name == "-":
        raise InvalidOption(
            "release a consumer without a name by its INCARNATION, and end a connected one with "
            "`mq consumers end SESSION`"
        )
    raise InvalidOption(
        f"there is no consumer {name!r}{f' of {queue}' if queue else ''}: "
        "`mq consumers list` shows all consumers"
    )


def _durable(info: ConsumerInfo) -> tuple[object, ...]:
    return (
        info.destination,
        info.consumer or "-",
        info.incarnation.hex(),
        "yes" if info.connected else "no",
        info.unacknowledged_rows,
        info.read_rows,
        age(info.oldest_unacknowledged_ms),
        size(info.pinned_bytes),
        info.failed_attempts,
        info.query_id or "-",
        info.batch_id if info.query_id else "-",
        *("-", "-", "-"),
    )


def _connected(info: ConsumerInfo) -> tuple[object, ...]:
    client = "".join(character if character.isprintable() else "?" for character in info.client)
    held = info.unacknowledged_rows
    return (
        info.destination,
        "-",
        "-",
        "yes",
        held,
        "-",
        "-",
        "-",
        "-",
        "-",
        "-",
        str(info.session),
        info.peer or "-",
        client or "-",
    )
