"""Programs that mean another broker, which had this address before."""

from __future__ import annotations

from typing import Final

from mq_wire.errors import MqError, WrongBroker
from mq_wire.v1 import subscribe_pb2 as wire
from spark_tests.simulation.client import Client, Steps, World
from spark_tests.simulation.links import RunLink

_OTHER: Final = b"another broker 1"
_RUNS: Final = 30


class Stranger(Client):
    """Goes on with a run of its own broker, whose number may be one of this broker too: whatever it asks for
    is refused.
    """

    def __init__(self, world: World, queue: str, number: int) -> None:
        super().__init__(world, f"stranger {number}")
        self.queue = queue

    def body(self) -> Steps:
        while not self.world.is_finishing:
            for _ in range(self.rng.randint(1, 20)):
                yield None
            run = self.rng.randint(1, _RUNS)
            link: RunLink = self.network.opened(RunLink(self.network, run, _OTHER))
            yield link
            self._judge("hold a run", link.run or link.error)
            link.end()
            who = wire.ConsumerRef(destination=self.queue, cluster_id=_OTHER, run=run)
            reply = yield from self.ask(wire.PlanRequest(who=who, max_rows=5), retry=False)
            self._judge("plan", reply)

    def _judge(self, what: str, reply: object) -> None:
        if isinstance(reply, WrongBroker):
            self.counts["strangers refused"] += 1
        elif reply is not None and not isinstance(reply, MqError):
            self.history.note(f"{self.name} of another broker could {what}")
