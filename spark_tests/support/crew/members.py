"""One client of every kind on three queues, and how they come to their end: the load of all runs against a
real process.
"""

from __future__ import annotations

from typing import Final

from mq_wire.v1.admin_pb2 import CreateDestinationRequest
from pyspark_mq import Connection
from spark_tests.support.crew.actor import PATIENCE_S, Actor, World
from spark_tests.support.crew.checkpointed import RangeReader
from spark_tests.support.crew.receivers import BatchReceiver, MessageReceiver, drain
from spark_tests.support.crew.senders import (
    BatchSender,
    HastySender,
    NamedSender,
    SingleSender,
    StagingSender,
)
from spark_tests.support.waiting import wait_until

SHARED: Final = "crash.shared"
ALONE: Final = "crash.alone"
RANGES: Final = "crash.ranges"
QUEUES: Final = (SHARED, ALONE, RANGES)


def clients(world: World) -> tuple[list[Actor], list[Actor]]:
    """Returns those who send and those who receive."""
    with Connection(world.address) as connection:
        for queue in QUEUES:  # consumers make none
            connection.call(
                "CreateDestination", CreateDestinationRequest(name=queue), retry_timeout=PATIENCE_S
            )
    named = bool(world.rng.getrandbits(1))
    senders = [
        BatchSender(world, SHARED, 1),
        BatchSender(world, RANGES, 2),
        SingleSender(world, SHARED, 3),
        StagingSender(world, ALONE, 4),
        StagingSender(world, RANGES, 5),
        HastySender(world, ALONE, 6),
        NamedSender(world, ALONE, 100),
    ]
    receivers = [
        MessageReceiver(world, SHARED, 1),
        BatchReceiver(world, SHARED, 2),
        BatchReceiver(world, ALONE, 3, alone=True),
        RangeReader(world, RANGES, 4, named=named),
    ]
    return [*senders], [*receivers]


def finish(world: World, senders: list[Actor], receivers: list[Actor]) -> None:
    """Lets everybody come to an end, and takes what is left."""
    world.stopping.set()
    for actor in senders + receivers:
        actor.join(PATIENCE_S)
    for queue in (SHARED, ALONE):
        wait_until(
            lambda q=queue: not world.stats(q).assigned_rows,  # type: ignore[misc]
            PATIENCE_S,
            f"{queue} has rows of consumers that have ended",
        )
        drain(world, queue)
        assert world.stats(queue).depth_rows == 0, f"{queue} has rows that nobody was given"
    assert world.stats(RANGES).depth_rows == 0
