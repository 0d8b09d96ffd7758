"""Commands to the core and to the model at once: same answers, same errors, same state, same rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant
from pyroaring import BitMap64

from mq_broker.core.commands import (
    ReleaseView,
    RowsView,
    Settings,
)
from mq_broker.core.model.subscription import Subscription
from mq_wire.errors import MqError
from mq_wire.limits import PRIORITIES
from spark_tests.model.model import Model
from spark_tests.support.worlds.dumps import check_same, dump_broker, dump_model
from spark_tests.support.worlds.lists import ListWorld, ReadRow

PARTITIONS = 2
SETTINGS = Settings(
    default_partitions=PARTITIONS,
    anonymous_producers_max=2,
    anonymous_producers_total_max=3,
    kept_boundaries=3,
    kept_batches=3,
    kept_ended=4,
    kept_returned=2,
    deliveries_of_a_turn=3,
    outbox_batches=4,
)
UNNAMED = ["a" * 32, "b" * 32, "c" * 32]
BYTES = 1 << 40

destinations = st.sampled_from(["eu", "us.east"])
partitions = st.integers(0, PARTITIONS - 1)
priorities = st.one_of(
    st.just([4]),
    st.lists(st.integers(0, 9), min_size=1, max_size=12),
    st.lists(st.just(7), min_size=1, max_size=9),
)
pick = st.integers(0, 1 << 30)
queries = st.sampled_from(["", "q0", "q1"])
versions = st.integers(0, 3)
targets = st.sampled_from([None, None, "", "eu", "us.east"])
jumps = st.sampled_from([0, 0, 0, 0, 1, 3])
newer_epochs = st.integers(0, 4)


def check_backlog(subscription: Subscription, number: int, quarantined: BitMap64) -> None:
    """Each unacknowledged row has one holder, and what is kept for checkpoints is what their plans say."""
    backlog, held = subscription.backlogs[number], BitMap64()
    for holder in subscription.holders(number):
        for _, offsets in holder.lanes:
            rows = offsets - quarantined
            assert not held & rows, f"{holder.who} holds what others hold too"
            held |= rows
    assert held == backlog.unacknowledged, "a row without a holder, or a holder that is not known"
    assert backlog.rows == len(held)
    kept = BitMap64()
    for _, plan in subscription.plans():
        if plan.acknowledged and not plan.returned and number in plan.assignments:
            kept |= plan.assignments[number][1].offsets() - quarantined
    assert kept == backlog.kept


@dataclass
class Checkpoint:
    """What a query remembers: whose offsets, and every boundary it was ever given; the batch number of a
    range is the place of its end.
    """

    destination: str
    name: str
    query: str = ""
    destination_id: bytes = b""
    incarnation: bytes = b""
    boundaries: list[dict[int, int]] = field(default_factory=lambda: [{}])


class BothSides(RuleBasedStateMachine):
    """Drives both. `world` is what subclasses vary."""

    world: ListWorld

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(
            partitions=PARTITIONS,
            anonymous_max=2,
            anonymous_total_max=3,
            kept_boundaries=3,
            kept_batches=3,
            kept_ended=4,
            kept_returned=2,
        )
        self.arrived: list[tuple[list[int], RowsView]] = []
        self.views: dict[int, list[RowsView]] = {}
        self.sent: list[tuple[str, int, tuple[str, int], int, list[tuple[bytes, int]], bool]] = []
        self.staged: list[
            tuple[tuple[str, int], bytes, tuple[int, str, int, str | None], int, list[tuple[bytes, int]]]
        ] = []
        self.checkpoints: list[Checkpoint] = []
        self.runs: list[int] = []
        self.deleted: list[tuple[str, bytes]] = []
        self.names: list[tuple[str, int]] = []
        self.values = 0

    # ---- both sides

    def both(self, expect: Callable[[], Any], command: Any, shown: Callable[[Any], Any]) -> Any:
        """Returns what both answer, None where both raise the same error."""
        self.prepare()
        expected: Any
        actual: Any
        try:
            expected = expect()
        except MqError as error:
            expected = type(error)
        try:
            actual = shown(self.world.handle(command))
        except MqError as error:
            actual = type(error)
        assert actual == expected, f"{actual} instead of {expected} for {command}"
        self.finish()
        return None if isinstance(expected, type) else expected

    def prepare(self) -> None:
        """Begins a command."""
        self.world.now_us += 1000

    def finish(self) -> None:
        """Ends a command."""
        self.dispatch()

    def dispatch(self) -> None:
        """Lets rows go, and checks each of them. What an outbox had no room for follows when what was in it
        is sent.
        """
        self.world.dispatch()
        while self.arrived:
            unsent = Counter(box[0] for box, _ in self.arrived)
            assert max(unsent.values()) <= SETTINGS.outbox_batches, (
                f"deliveries that no outbox has room for: {unsent}"
            )
            number, view = self.arrived.pop(0)
            for row in self.world.read(view, batch_rows_max=5):
                known = self.model.deliver(number[0], row.partition, row.offset)
                self.check_row(row, known, known.delivery_count)
            self.views.setdefault(number[0], []).append(view)
            self.world.handle(ReleaseView(view))
            if not self.arrived:
                self.world.dispatch()
        self.model.check_dispatched()
        self.check_running_counts()

    def check_running_counts(self) -> None:
        """What is counted as it comes and goes is what summing up would say."""
        state = self.world.broker.state
        for destination in state.by_number.values():
            queue = destination.queue
            lanes = [backlog.ready for backlog in queue.backlogs]
            assert queue.ready.counts == [sum(lane.counts[p] for lane in lanes) for p in range(PRIORITIES)]
            assert queue.ready.counts == [
                sum(len(lane.offsets[p]) for lane in lanes) for p in range(PRIORITIES)
            ]
            assert queue.ready.partitions == [
                {n for n, lane in enumerate(lanes) if lane.counts[p]} for p in range(PRIORITIES)
            ]
            for number, partition in enumerate(destination.partitions):
                check_backlog(queue, number, partition.quarantined)
                frames = partition.log.index().frames
                assert (partition.log.size_bytes, partition.log.span) == (
                    int(frames["size"].sum()),
                    int(frames["span"].sum()),
                )
        assert [*state.names("", "")] == sorted(state.by_name)

    @staticmethod
    def check_row(row: ReadRow, known: Any, delivery_count: int) -> None:
        assert (row.partition, row.offset, row.value) == (known.partition, known.offset, known.value)
        assert (row.priority, row.delivery_count) == (known.priority, delivery_count)
        assert (row.producer, row.sequence, row.time_us) == (known.producer, known.sequence, known.time_us)

    @property
    def now(self) -> int:
        """The time of the command in hand."""
        return self.world.now_us

    def fresh_rows(self, wanted: list[int]) -> list[tuple[bytes, int]]:
        self.values += 1
        return [(b"%d.%d" % (self.values, at) * (1 + at % 3), priority) for at, priority in enumerate(wanted)]

    @invariant()
    def same_state(self) -> None:
        if hasattr(self, "world"):
            check_same(dump_broker(self.world.broker), dump_model(self.model))
