"""What all simulated clients are: programs whose every step the schedule decides on."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Protocol

from mq_wire.errors import BrokerUnavailable, Busy
from spark_tests.oracle.history import History
from spark_tests.oracle.marked import Ids, Rows
from spark_tests.simulation.network import Network


class Waiting(Protocol):
    """What a client waits for."""

    @property
    def done(self) -> bool:
        """Whether it can go on."""


#: A client goes on when what it yields is done, or at any time where it yields None.
Steps = Generator[Waiting | None, None, None]
#: The same inside of a client, with a result.
Asking = Generator[Waiting | None, None, Any]


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
    #: Messages in staged sets that nobody has begun to commit.
    hidden: set[int] = field(default_factory=set)
    #: Messages that pipelines were given: what comes of them must be in their target.
    inputs: list[Ids] = field(default_factory=list)
    #: What browsers saw.
    browsed: list[tuple[str, Rows]] = field(default_factory=list)
    now_s: float = 0.0
    #: Those that put messages into queues.
    senders: list[Client] = field(default_factory=list)
    _producers: int = field(default=0)

    @property
    def is_quiet(self) -> bool:
        """Whether nobody sends any more, and nothing is late: who reads all that is left need not wait for
        more.
        """
        return (
            self.is_finishing
            and all(sender.is_finished for sender in self.senders)
            and not self.network.is_late
        )

    def random(self) -> random.Random:
        """Random numbers of one's own."""
        return random.Random(self.rng.getrandbits(64))

    def new_producer(self, count: int = 1) -> int:
        """Returns the first of so many numbers of producers that there were not yet."""
        self._producers += count
        return self._producers - count + 1

    def saw(self, rows: Rows) -> Rows:
        """To be called with everything that any client is given; returns it."""
        if self.hidden and not self.hidden.isdisjoint(rows.ids.tolist()):
            self.history.note("rows of a staged set that nobody has begun to commit")
        return rows


class Client:
    """One program. Subclasses say in `body` what it does, and yield wherever others may come between."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.history, self.network, self.counts = (
            world,
            world.history,
            world.network,
            world.counts,
        )
        self.name = name
        self.rng = world.random()
        self.is_finished = False
        self._waits_for: Waiting | None = None
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

    def ask(
        self, request: Any, *, retry: bool = True, answered: Callable[[Any], None] | None = None
    ) -> Asking:
        """Calls, and where no answer comes calls again, unless told not to. Returns the reply, an error as a
        value.

        Args:
            request: the command.
            retry: whether it may be made twice.
            answered: told of each reply when it leaves the broker, whether it arrives or not.
        """
        while True:
            call = self.network.call(request, answered)
            yield call
            self.network.close(call)
            if not (retry and isinstance(call.reply, (BrokerUnavailable, Busy))):
                return call.reply
            self.counts["calls repeated"] += 1
