"""A whole broker with its clients, disks, clocks and network in one schedule, which follows from one number.

An operation is one decision of the schedule: a client goes a step further, the broker takes in what arrived
and makes a turn, the snapshot on its way comes to its next step of the disk, time passes, or something
breaks. Afterwards everything heals, all that is left is drained, and the one oracle of all runs judges.
"""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from mq_broker.core.commands import (
    Acknowledge,
    CloseSession,
    OpenSession,
    ReleaseView,
    RowsView,
    Settings,
    Tick,
)
from mq_broker.engine.engine import Engine
from mq_broker.engine.housekeeping import SnapshotSettings
from mq_broker.journal.settings import JournalSettings
from mq_wire.v1.admin_pb2 import StatsRequest
from mq_wire.v1.consume_pb2 import Credit, OpenConsumer
from spark_tests.oracle.history import History
from spark_tests.oracle.judge import Report, check
from spark_tests.simulation.bounds import check_bounds
from spark_tests.simulation.client import World
from spark_tests.simulation.consumers import ranges_of
from spark_tests.simulation.machine import Machine, Sizes
from spark_tests.simulation.messages import counts_of, rows_of
from spark_tests.simulation.network import Network
from spark_tests.simulation.pipelines import outputs_of
from spark_tests.simulation.population import population
from spark_tests.support.chunks import chunks_of
from spark_tests.support.unsaid import unsaid
from spark_tests.support.worlds.dumps import check_same, dump_broker

#: Operations after which all clients must have come to their end once nothing goes wrong any more.
_HEALING_MAX: Final = 20_000

#: Small parts of snapshots have edges that rows, frames and plans reach beyond.
_CHUNK_BITS: Final = (4, 7, 20)


@dataclass(frozen=True)
class Outcome:
    """What became of one simulation.

    Attributes:
        seed: that repeats it.
        report: of the oracle.
        counts: what has happened how often.
        trace: the operations in order, one line each.
        failure: what broke it off, where something did.
    """

    seed: int
    report: Report
    counts: Counter[str]
    trace: list[str] = field(repr=False)
    failure: BaseException | None = None

    @property
    def trace_hash(self) -> int:
        """The same for the same course of events."""
        return zlib.crc32("\n".join(self.trace).encode())

    @property
    def is_clean(self) -> bool:
        return self.failure is None and not self.report.wrong


def simulate(seed: int, operations: int = 1000) -> Outcome:
    """Runs one history and judges it."""
    simulation = Simulation(seed)
    failure: BaseException | None = None
    rng = random.Random(f"chunks of {seed}")
    with chunks_of(rng.choice(_CHUNK_BITS), small_pieces=rng.random() < 0.3), unsaid():
        try:
            simulation.run(operations)
        except Exception as error:  # it is the outcome
            failure = error
        finally:
            simulation.end()
    return Outcome(seed, check(simulation.history), simulation.counts, simulation.trace, failure)


class Simulation:
    """One history."""

    def __init__(self, seed: int) -> None:
        self._rng = rng = random.Random(seed)
        self.history = History()
        self.trace: list[str] = []
        self.counts: Counter[str] = Counter()
        self._machine = Machine(random.Random(rng.random()), _sizes(rng), self.counts)
        self._machine.on_death = self._on_death
        self._network = Network(random.Random(rng.random()), self.history, self.counts, self.trace)
        # Ten priorities cost ten times as much to read as one.
        priorities = rng.choice([[4], [4], [0, 9], [4, 4, 4, 7], [3, 4, 5], [*range(10)]])
        self._world = World(rng, self.history, self._network, self.counts, rng.choice([1, 2, 3]), priorities)
        self._clients, self._drained = population(self._world, rng)
        self._mishaps: list[tuple[int, Callable[[], None]]] = [
            (4, self._machine.kill),
            (4, self._machine.cut),
            (6, self._die_soon),
            (1, self._stop),
            (2, self._fail_soon),
            (3, self._fill),
            (2, self._jump),
            (6, self._rot),
        ]
        # Each history knows some kinds of trouble only: what is rare elsewhere is frequent there.
        self._mishaps = rng.sample(self._mishaps, rng.randint(1, len(self._mishaps)))
        self._mishap_rate = rng.choice([0.002, 0.006, 0.02])
        self._break_rate = rng.choice([0.002, 0.01, 0.04])

    def run(self, operations: int) -> None:
        """Makes the history."""
        if self._rng.random() < 0.1:
            self._die_soon()  # while it makes its journal
        for _ in range(operations):
            self._operation()
        self._heal()
        for queue in self._drained:
            self._drain(queue)
        self._judge_what_was_seen()
        self._check_recovery()

    def end(self) -> None:
        """Leaves no thread behind."""
        if self._machine.engine is not None:
            self._machine.kill()

    # -- operations ----------------------------------------------------------------------------------------

    def _operation(self) -> None:
        chance = self._rng.random()
        if chance < self._mishap_rate and not self._world.is_finishing:
            self._go_wrong()
        elif self._machine.engine is None and chance < 0.3:
            self._start()
        elif chance < 0.55:
            self._step_client()
        elif self._machine.writes_snapshot and chance < 0.7:
            self._machine.advance_snapshot()
            self.trace.append("snapshot")
        elif chance < 0.95:
            self._serve()
        elif chance < 0.95 + self._break_rate and not self._world.is_finishing:
            self._break_a_link()
        else:
            self._pass_time()

    def _start(self) -> None:
        machine = self._machine
        expected = machine.dump_of_copy() if machine.is_made and self._rng.random() < 0.1 else None
        self._network.is_up = machine.start()
        self.trace.append(f"start {self._network.is_up}")
        if expected is not None and machine.broker is not None:
            # Two starts make the same of the same disks.
            check_same(dump_broker(machine.broker), expected)
            self.counts["recoveries compared"] += 1

    def _step_client(self) -> None:
        ready = [client for client in self._clients if client.can_step and not client.is_finished]
        if ready:
            client = self._rng.choice(ready)
            client.step()
            self.trace.append(f"{client.name}")

    def _serve(self) -> None:
        """What has arrived becomes a turn, and rows leave."""
        engine = self._machine.engine
        if engine is not None:
            self._machine.does(lambda: self._serve_with(engine))
            turn = self._machine.journal.position.turn if self._machine.journal is not None else -1
            self.trace.append(f"turn {turn} {sum(disk.steps for disk in self._machine.disks)}")

    def _serve_with(self, engine: Engine) -> None:
        self._network.deliver(engine)
        self._machine.turn()

    def _break_a_link(self) -> None:
        links = [link for link in self._network.links if not link.is_broken]
        if links:
            for link in links if self._rng.random() < 0.1 else [self._rng.choice(links)]:
                self._network.break_link(link)
            self.trace.append("break")

    def _pass_time(self) -> None:
        self._machine.clock.advance(self._rng.choice([0.001, 0.02, 0.5, 2.0]))
        self._world.now_s = self._machine.clock.monotonic_ns() / 1e9

    # -- mishaps -------------------------------------------------------------------------------------------

    def _go_wrong(self) -> None:
        weights = [weight for weight, _ in self._mishaps]
        ((_, mishap),) = self._rng.choices(self._mishaps, weights)
        if self._machine.engine is None and mishap not in (self._die_soon, self._jump, self._rot):
            return
        self.trace.append(mishap.__name__)
        mishap()

    def _die_soon(self) -> None:
        steps, cut = self._rng.choice([0, 1, 2, 5, 12, 40]), self._rng.random() < 0.6
        self.trace.append(f"  {'power cut' if cut else 'kill'} in step {steps} of the disks from here")
        self._machine.die_after(steps, cut=cut)

    def _fail_soon(self) -> None:
        kind = self._rng.choice(
            ["sync", "sync", "sync", "write", "write", "rename", "remove", "create", "sync_directory"]
        )
        count, cut = self._rng.choice([0, 1, 3, 8]), self._rng.random() < 0.6
        self.trace.append(f"  {kind} number {count} from here fails")
        self._machine.fail_after(kind, count, cut=cut)

    def _stop(self) -> None:
        machine = self._machine
        assert machine.broker is not None
        broker, stops = machine.broker, self.counts["clean stops"]
        machine.stop()
        if self.counts["clean stops"] > stops and self._rng.random() < 0.3:
            # The state of an engine that has stopped is what a start finds.
            check_same(machine.dump_of_copy(), dump_broker(broker))
            self.counts["clean stops compared"] += 1

    def _fill(self) -> None:
        if self._machine.is_full:
            self._machine.heal()
        else:
            self._machine.fill(self._rng.choice([0, 10_000, 40_000]))

    def _rot(self) -> None:
        """One snapshot may rot: there are two. It shows at a start, so a kill goes before."""
        if self._machine.engine is not None:
            self._machine.kill()
        self._machine.rot_newest_snapshot()

    def _jump(self) -> None:
        self._machine.clock.jump_wall(self._rng.choice([-86_400.0, -5.0, 5.0, 3_600.0, 100_000.0]))

    def _on_death(self) -> None:
        self._network.is_up = False
        self._network.break_all()

    # -- the end -------------------------------------------------------------------------------------------

    def _heal(self) -> None:
        """Nothing goes wrong any more: all clients come to their end."""
        self._machine.heal()
        self._world.is_finishing = True
        for _ in range(_HEALING_MAX):
            if (
                all(client.is_finished for client in self._clients)
                and not self._network.busy
                and self._machine.engine is not None
            ):
                return
            self._operation()
        waiting = ", ".join(client.name for client in self._clients if not client.is_finished)
        self.history.note(
            f"not healed after {_HEALING_MAX} operations without trouble: {waiting or 'the network'}"
        )

    def _drain(self, queue: str) -> None:
        """Takes all that is left of a quiet queue."""
        views: list[RowsView] = []
        opening = OpenConsumer(destination=queue, credit=Credit(rows=1 << 40, bytes=1 << 40), create=True)
        began, stream = self.history.stamp(), self.history.new_stream()
        session = self._answer(OpenSession(opening, views.append)).session
        engine = self._machine.engine
        assert engine is not None
        engine.turn()
        for view in views:
            batches = [*engine.read(view, 0, 0)]
            rows = rows_of(batches)
            self.history.read(queue, rows, began, stream, falling=True, counts=counts_of(batches))
            self._answer(Acknowledge(session, ranges_of(rows)))
            self.history.confirmed(queue, rows)
            self._answer(ReleaseView(view))
        self._answer(CloseSession(session))
        depth = self._answer(StatsRequest(destination=queue)).destination.depth_rows
        if depth:
            self.history.note(f"{depth} rows of {queue} are left that nobody was given")

    def _judge_what_was_seen(self) -> None:
        """What pipelines read is in their target, and what browsers saw is what others read."""
        for inputs in self._world.inputs:
            self.history.acknowledged(outputs_of(inputs))
        attempted = np.unique(self.history.table("attempted")["id"])
        for queue, rows in self._world.browsed:
            if not np.isin(rows.ids, attempted).all():
                self.history.note(f"a browser of {queue} saw what nobody ever sent")

    def _answer(self, command: Any) -> Any:
        """Asks the broker directly."""
        engine = self._machine.engine
        assert engine is not None
        return engine.answer(command)

    def _check_recovery(self) -> None:
        """What two starts make of the same disks is the same, and is what was there before a clean stop."""
        machine = self._machine
        assert machine.broker is not None
        self._answer(Tick())  # what is only counted in memory is written down
        check_bounds(machine.broker.state, self.history)
        expected = dump_broker(machine.broker)
        check_same(machine.dump_of_copy(), expected)
        machine.stop()
        check_same(machine.dump_of_copy(), expected)
        self._start()
        assert machine.broker is not None
        check_same(dump_broker(machine.broker), expected)


def _sizes(rng: random.Random) -> Sizes:
    segment_kib, sector_bytes = rng.choice([(16, 512), (16, 512), (32, 512), (64, 512), (64, 4096)])
    return Sizes(
        Settings(
            default_partitions=3,
            staged_ttl_us=600_000_000,
            browse_ttl_us=20_000_000,
            run_grace_us=5_000_000,
            anonymous_producers_max=1000,
            kept_range_ttl_us=1 << 60,
            kept_boundaries=6,
            kept_batches=8,
            kept_ended=50,
            queries_max=200,
            kept_returned=6,
        ),
        JournalSettings(
            segment_bytes=segment_kib << 10,
            pool_segments=2,
            sector_bytes=sector_bytes,
            fill_in_background=False,
            maps_max=3,
        ),
        SnapshotSettings(
            bytes=rng.choice([4, 16, 64]) << 10, interval_us=rng.choice([1_000_000, 60_000_000])
        ),
    )
