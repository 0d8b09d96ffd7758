"""Random commands to the core and to the model at once."""

from __future__ import annotations

from hypothesis.stateful import initialize

from spark_tests.support.machines.both_sides import SETTINGS
from spark_tests.support.machines.query_rules import QueryRules
from spark_tests.support.worlds.lists import ListWorld


class BrokerMachine(QueryRules):
    """All rules; begins with something to do. `make_world` is what subclasses vary."""

    @initialize()
    def begin(self) -> None:
        self.world = self.make_world()
        self.load("eu", [(0, [4, 4, 9]), (1, [0, 4, 7, 7])])
        self.hold_run(0)
        self.new_checkpoint("eu", "")
        self.new_checkpoint("eu", "night")

    def make_world(self) -> ListWorld:
        return ListWorld(SETTINGS)
