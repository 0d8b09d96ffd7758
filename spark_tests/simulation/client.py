"""What all simulated clients are: programs whose every step the schedule decides on."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from mq_wire.errors import BrokerUnavailable, Busy
from spark_tests.oracle.history import History
from spark_tests.simulation.network import Call, Network

#: A client goes on when the call that it yields is done, or at any time where it yields None.
Steps = Generator[Call | None, None, None]
#: The same inside of a client, with a result.
Asking = Generator[Call | None, None, Any]


@dataclass
class World:
    """What the clients of one simulation share."""

    rng: random.Random
    history: History
    network: Network
    counts: Counter[str]
    partitions: int
    #: Of these the senders choose.
    priorities: list[int]
    is_finishing: bool = False
    now_s: float = 0.0
    _producers: int = field(default=0)

    def random(self) -> random.Random:
        """Random numbers of one's own."""
        return random.Random(self.rng.getrandbits(64))

    def new_producer(self) -> int:
        """Returns the number of a producer that there was not yet."""
        self._producers += 1
        return self._producers


class Client:
    """One program. Subclasses say in `body` what it does, and yield wherever others may come between."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.history, self.network, self.counts = world, world.history, world.network, world.counts
        self.name = name
        self.rng = world.random()
        self.is_finished = False
        self._waits_for: Call | None = None
        self._steps = self.body()

    def body(self) -> Steps:
        raise NotImplementedError

    @property
    def can_step(self) -> bool:
        return self._waits_for is None or self._waits_for.done

    def step(self) -> None:
        """Goes on to the next place where others may come between."""
        try:
            self._waits_for = next(self._steps)
        except StopIteration:
            self.is_finished = True

    def ask(self, request: Any, *, retry: bool = True) -> Asking:
        """Calls, and where no answer comes calls again, unless told not to. Returns the reply, an error as a value."""
        while True:
            call = self.network.call(request)
            yield call
            self.network.close(call)
            if not (retry and isinstance(call.reply, (BrokerUnavailable, Busy))):
                return call.reply
            self.counts["calls repeated"] += 1
