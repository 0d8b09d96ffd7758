"""Who takes part in a simulation: some of each kind, chosen by the seed."""

from __future__ import annotations

import random
from typing import Final

from spark_tests.simulation.client import Client, World
from spark_tests.simulation.consumers import Consumer
from spark_tests.simulation.named import NamedProducer
from spark_tests.simulation.operators import Administrator, Browser, Operator
from spark_tests.simulation.pipelines import Pipeline
from spark_tests.simulation.producers import Producer
from spark_tests.simulation.readers import Reader
from spark_tests.simulation.strangers import Stranger
from spark_tests.simulation.writers import Writer

#: Taken from by connected consumers; read by readers or pipelines; written by pipelines.
SHARED: Final = "shared"
RANGES: Final = "ranges"
TARGET: Final = "target"


def population(world: World, rng: random.Random) -> tuple[list[Client], list[str]]:
    """Returns the clients, and the queues that somebody has to drain in the end."""
    clients: list[Client] = []
    kind = rng.choice(["shared", "ranges", "both"])
    queues = [name for name, used in ((SHARED, kind != "ranges"), (RANGES, kind != "shared")) if used]
    for queue in queues:
        senders: list[Client] = [Producer(world, queue, number) for number in range(rng.randint(0, 2))]
        senders += [NamedProducer(world, queue, number) for number in range(rng.randint(0, 1))]
        senders += [Writer(world, queue, number) for number in range(rng.randint(0, 1))]
        senders = senders or [Producer(world, queue, 0)]
        world.senders += senders
        clients += senders
    drained = []
    if SHARED in queues:
        clients += [Consumer(world, SHARED, number) for number in range(rng.randint(1, 3))]
        clients += [Operator(world, SHARED, number + 10) for number in range(1) if rng.random() < 0.2]
        drained.append(SHARED)
    if RANGES in queues:
        clients += [Stranger(world, RANGES, number) for number in range(2) if rng.random() < 0.15]
        clients += [Operator(world, RANGES, number) for number in range(2) if rng.random() < 0.15]
        named = rng.random() < 0.5
        if rng.random() < 0.5:
            clients += [Reader(world, RANGES, number, named=named) for number in range(rng.randint(1, 2))]
        else:
            clients += [
                Pipeline(world, RANGES, TARGET, number, named=named) for number in range(rng.randint(1, 2))
            ]
            clients += [Consumer(world, TARGET, 9) for _ in range(rng.randint(0, 1))]
            drained.append(TARGET)
    clients += [Browser(world, queue, number) for number, queue in enumerate(queues) if rng.random() < 0.3]
    clients += [Administrator(world, number) for number in range(2) if rng.random() < 0.2]
    return clients, drained
