"""Clients that work, each on a thread of its own, until they are told to finish."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field
from typing import Final, cast

from mq_wire.v1 import admin_pb2
from pyspark_mq.client.connection import Connection
from spark_tests.oracle.history import History

#: A broker is away for seconds; a busy machine may need minutes to notice that a connection is dead. What
#: fails by a time limit all the same has not healed: that is a fault, not an unknown outcome.
PATIENCE_S: Final = 300.0


@dataclass
class World:
    """What the clients of one run share. They rest for `pause_s` seconds between two steps.

    Attributes:
        sessions_overlap: the broker may learn late that a connection is gone, when its client has long made
            another: then what the old one held comes back in the middle of the new one, and a run may be
                given back what it was about to read, for later.
    """

    address: str
    rng: random.Random
    pause_s: float = 0.0
    history: History = field(default_factory=History)
    stopping: threading.Event = field(default_factory=threading.Event)
    sessions_overlap: bool = False

    def random(self) -> random.Random:
        """Random numbers of one's own."""
        return random.Random(self.rng.getrandbits(64))

    def stats(self, queue: str) -> admin_pb2.DestinationStats:
        """What the broker says of a queue."""
        with Connection(self.address) as connection:
            stats = connection.call(
                "Stats", admin_pb2.StatsRequest(destination=queue), retry_timeout=PATIENCE_S
            )
            return cast("admin_pb2.DestinationStats", stats.destination)


class Actor:
    """One client program. Subclasses do one piece of work in `step`, again and again, and leave in order in
    `finish`.

    Attributes:
        progress: how many messages (or sets, or ranges) the broker has confirmed to it.
        error: what ended it, where nothing should have.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world, self.history, self.name = world, world.history, name
        self.rng = world.random()
        self.progress = 0
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)
        assert not self._thread.is_alive(), f"{self.name} did not come to its end within {timeout} s"
        self.check()

    def check(self) -> None:
        """Raises what ended it."""
        if self.error is not None:
            raise AssertionError(
                f"{self.name} did not heal: {type(self.error).__name__}: {self.error}"
            ) from self.error

    def step(self) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        raise NotImplementedError

    def _run(self) -> None:
        try:
            while not self.world.stopping.wait(self.world.pause_s):
                self.step()
            self.finish()
        except Exception as error:  # told by `check`, on the thread of the test
            self.error = error
