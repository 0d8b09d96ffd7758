"""The core against the model; and what its entries, or its snapshots, make of a fresh core."""

from __future__ import annotations

from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis.stateful import invariant, rule, run_state_machine_as_test
from pyroaring import BitMap64

from mq_broker.core import snapshot
from mq_broker.core.broker import Broker
from mq_broker.core.handlers.views import unpin
from mq_broker.core.model.counts import RowCounts
from spark_tests.support.durable import guarded
from spark_tests.support.machines.both_sides import SETTINGS
from spark_tests.support.machines.lists import BrokerMachine
from spark_tests.support.worlds.dumps import check_same, dump_broker
from spark_tests.support.worlds.lists import CLUSTER, ListSink, counted_ids

#: MQ_HYPOTHESIS_PROFILE=deep takes minutes.
pytestmark = [pytest.mark.timeout(3600), pytest.mark.usefixtures("small_chunks")]


class CoreMachine(BrokerMachine):
    """With snapshots at random moments, of which each holds only what changed."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: dict[str, bytes] = {}

    @rule()
    def take_snapshot(self) -> None:
        snapshot.tidy(self.world.broker.state)
        changed, unchanged = snapshot.take(self.world.broker.state, self.parts.keys())
        self.parts = {**{key: self.parts[key] for key in unchanged}, **dict(changed)}
        restored = Broker(CLUSTER, SETTINGS, ListSink(), counted_ids())
        snapshot.restore(restored.state, iter(self.parts.items()))
        check_same(dump_broker(restored), dump_broker(self.world.broker))

    def teardown(self) -> None:
        if hasattr(self, "world"):
            check_same(dump_broker(self.world.replayed()), dump_broker(self.world.broker))
            state = self.world.broker.state
            for view in state.browses.values():
                unpin(state, view.pins)
            assert not state.pins, "a view was left pinned"


class WatchedMachine(BrokerMachine):
    """Looks after each command whether anything but an entry has changed durable state."""

    outside: ClassVar[list[str]] = []

    @invariant()
    def entries_alone_change_what_is_durable(self) -> None:
        assert not self.outside, f"changed without an entry: {sorted(set(self.outside))}"


def test_entries_alone_change_what_is_durable() -> None:
    with guarded() as found:
        WatchedMachine.outside = found
        run_state_machine_as_test(WatchedMachine, settings=settings(stateful_step_count=60))


def test_a_change_without_an_entry_is_seen() -> None:
    with guarded() as found:
        RowCounts().add(BitMap64([1]))
    assert found == ["RowCounts.add"]


CoreMachine.TestCase.settings = settings(max_examples=4 * settings().max_examples, stateful_step_count=50)
TestCore = CoreMachine.TestCase
