"""Random commands with clean stops, kills, power failures and snapshots among them."""

from __future__ import annotations

import pickle
import random

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from spark_tests.model.model import Model
from spark_tests.support.machines.both_sides import SETTINGS
from spark_tests.support.machines.lists import BrokerMachine
from spark_tests.support.worlds.disks import DiskWorld
from spark_tests.support.worlds.dumps import check_same, dump_broker, dump_model


class DiskMachine(BrokerMachine):
    """Turns of several commands; `synced` is the model as of the last turn that is surely on the disk."""

    world: DiskWorld

    def __init__(self) -> None:
        super().__init__()
        self._synced = b""
        self._sync()
        self.turn_commands = 1
        self.in_turn = 0

    def make_world(self) -> DiskWorld:
        return DiskWorld(SETTINGS, snapshot_bytes=4 << 10)

    @property
    def synced(self) -> Model:
        """A copy of its own, as often as it is asked for."""
        model: Model = pickle.loads(self._synced)
        return model

    def _sync(self) -> None:
        """Keeps the model as it is now, as bytes: twice in each command, and seldom looked at."""
        self._synced = pickle.dumps(self.model, pickle.HIGHEST_PROTOCOL)

    def prepare(self) -> None:
        super().prepare()
        self.world.make_room()
        self._look_at_turn()

    def finish(self) -> None:
        self.in_turn += 1
        if self.in_turn >= self.turn_commands:
            self.dispatch()
            self.world.keep_house()
        self._look_at_turn()

    def _look_at_turn(self) -> None:
        """A turn ends when its commands are there, when there is no room for more, and when rows are read."""
        if self.world.turn_is_empty():
            self.in_turn = 0
            self._sync()

    @rule(commands=st.integers(1, 6))
    def change_turns(self, commands: int) -> None:
        self.turn_commands = commands

    @rule()
    def take_snapshot(self) -> None:
        self.world.take_snapshot()
        self._sync()

    @rule()
    def restart(self) -> None:
        self.world.restart(self.model.identities)
        self._come_up(self.model)

    @rule()
    def die(self) -> None:
        self.world.die(self.synced.identities)
        self._come_up(self.synced)

    @rule(seed=st.integers(0, 1 << 32))
    def crash(self, seed: int) -> None:
        self.world.crash(random.Random(seed), self.synced.identities)
        self._come_up(self.synced)

    @precondition(lambda self: self.in_turn)
    @rule(seed=st.integers(0, 1 << 32), steps=st.integers(1, 3))
    def crash_in_turn(self, seed: int, steps: int) -> None:
        done = self.world.settle_until(steps)
        self.world.crash(random.Random(seed), self.model.identities)
        written = dump_broker(self.world.broker) == dump_model(self.model.after_crash())
        assert written or not done, "a turn that was synced is gone"
        self._come_up(self.model if written else self.synced)

    def _come_up(self, left: Model) -> None:
        """Goes on as the clients of a broker do that came back: all streams are broken, all rows can
        be read.
        """
        self.model = left.after_crash()
        check_same(dump_broker(self.world.broker), dump_model(self.model))
        self.world.restart_ids(self.model.identities)
        self._sync()
        self.arrived.clear()
        self.views.clear()  # numbers of sessions begin anew
        self.in_turn = 0
        self.names = [
            (name, epoch) for name, epoch in self.names if epoch <= self.model.producers.get(name, 0)
        ]
        self.runs = [run for run in self.runs if run <= self.model.epoch]
        for checkpoint in self.checkpoints:
            destination = self.model.destinations.get(checkpoint.destination)
            consumer = destination.consumers.get(checkpoint.incarnation) if destination is not None else None
            known = [{}, *(plan.end for plan in consumer.plans)] if consumer is not None else [{}]
            checkpoint.boundaries = [boundary for boundary in checkpoint.boundaries if boundary in known]
        for name in self.model.destinations:
            self.browse(name)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.die()
            self.world.journal.close()
