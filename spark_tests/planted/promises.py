"""What leaves an engine is a promise from the moment it leaves: requests come twice within one turn, and the
power fails within turns.
"""

from __future__ import annotations

import contextlib
import functools
import random
from typing import Any, Final

import numpy as np

from mq_broker.core.commands import HoldRun, Publish, ReleaseView, ResolveFetch, Settings
from mq_broker.core.model.facets import Facets
from mq_broker.engine.engine import Engine
from mq_broker.engine.opening import recover
from mq_broker.journal.settings import TINY
from mq_broker.testing.memory_disk import Crash, MemoryDisk, crash_at
from mq_wire.errors import MqError, UnknownDestination
from mq_wire.v1.common_pb2 import Positions
from mq_wire.v1.produce_pb2 import PublishHeader, Receipt
from mq_wire.v1.subscribe_pb2 import (
    ConsumerRef,
    OpenBrowseRequest,
    OpenFetch,
    OpenRangeRequest,
    PlanRequest,
    PlanResponse,
)
from spark_tests.oracle.history import History
from spark_tests.oracle.judge import Report, check
from spark_tests.oracle.marked import ids_of
from spark_tests.simulation.messages import lanes_of, piece_of, rows_of
from spark_tests.support.worlds.disks import JOURNAL
from spark_tests.support.worlds.lists import CLUSTER

_QUEUE: Final = "q"
_LIVES: Final = 6
#: Of one life at most.
_TURNS: Final = 12


class Promises:
    """One producer and one query of a broker that loses its power again and again."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._disks = MemoryDisk(rng=self._rng), MemoryDisk(rng=self._rng)
        self._history = History()
        self._created = False
        self._sent: list[Publish] = []
        self._rows = 0
        self._answered = 0  # of what was sent, in order
        self._who = ConsumerRef(destination=_QUEUE, consumer="night")
        self._end: dict[int, int] = {}

    def run(self) -> Report:
        """Returns the oracle's report."""
        for _ in range(_LIVES):
            engine = self._start()
            for disk in self._disks:
                disk.hook = crash_at(disk.steps + self._rng.randint(1, 16))
            with contextlib.suppress(Crash):
                for _ in range(_TURNS):
                    self._arrive(engine)
                    engine.turn()
            self._disks = self._disks[0].crash(self._rng), self._disks[1].crash(self._rng)
        self._look(self._start())
        return check(self._history)

    def _start(self) -> Engine:
        new_id = functools.partial(self._rng.randbytes, 16)
        opened = recover(
            *self._disks,
            CLUSTER,
            JOURNAL,
            Settings(default_partitions=1),
            TINY,
            created=self._created,
            new_id=new_id,
        )
        self._created = True
        return Engine(*opened, now_us=lambda: 1_700_000_000_000_000)

    def _arrive(self, engine: Engine) -> None:
        """What is not answered comes again, some of it twice; then something new; and a query asks for its
        next rows.
        """
        for number in range(self._answered, len(self._sent)):
            self._send(engine, number)
        for _ in range(self._rng.randint(0, 2)):
            self._new_batch()
            for _ in range(self._rng.choice([1, 1, 2])):
                self._send(engine, len(self._sent) - 1)
        if self._rng.random() < 0.3:
            engine.submit(HoldRun(0), lambda run: self._plan(engine, run))

    def _new_batch(self) -> None:
        rows = self._rng.randint(1, 20)
        ids = ids_of(1, range(self._rows, self._rows + rows))
        piece = piece_of(ids, np.full(rows, self._rng.choice([4, 4, 9])))
        assert piece.records is not None
        header = PublishHeader(
            destination=_QUEUE,
            producer_id="p" * 32,
            first_sequence=self._rows,
            rows=rows,
            columns=piece.columns,
            priority_plus_one=piece.priority_plus_one,
        )
        self._rows += rows
        self._history.attempted(ids)
        self._sent.append(Publish(header, piece.records, piece.crc32, Facets(lanes_of(piece))))

    def _send(self, engine: Engine, number: int) -> None:
        command = self._sent[number]

        def done(reply: Any) -> None:
            if isinstance(reply, Receipt):
                self._answered = max(self._answered, number + 1)
                first, rows = command.header.first_sequence, command.header.rows
                offsets = reply.base_offset + np.arange(rows)
                self._history.acknowledged(ids_of(1, range(first, first + rows)), _QUEUE, 0, offsets)

        engine.submit(command, done)

    def _plan(self, engine: Engine, run: Any) -> None:
        if isinstance(run, MqError):
            return
        self._who.run = run
        if self._end:
            engine.submit(OpenRangeRequest(who=self._who, end=Positions(next=self._end)), self._opened)
        engine.submit(PlanRequest(who=self._who, max_rows=5), self._planned)

    def _opened(self, reply: Any) -> None:
        if isinstance(reply, MqError):
            self._history.note(f"a boundary that was given is refused: {reply}")

    def _planned(self, reply: Any) -> None:
        if isinstance(reply, PlanResponse) and not reply.idle:
            self._who.cluster_id, self._who.destination_id = reply.cluster_id, reply.destination_id
            self._who.incarnation, self._end = reply.incarnation, dict(reply.end.next)

    def _look(self, engine: Engine) -> None:
        """Reads everything there is, planned or not, without taking it."""
        self._plan(engine, engine.answer(HoldRun(0)))
        engine.turn()
        try:
            opened = engine.answer(OpenBrowseRequest(destination=_QUEUE))
        except UnknownDestination:  # no batch reached the disk; the oracle knows whether one had to
            return
        for part in opened.parts:
            fetch = OpenFetch(browse=opened.browse, partition=part.partition, first=0, last=part.last)
            for view in engine.answer(ResolveFetch(fetch)):
                self._history.read(_QUEUE, rows_of(engine.read(view, 0, 0)), 0)
                engine.answer(ReleaseView(view))
