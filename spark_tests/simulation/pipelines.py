"""Queue to queue, exactly once: a reader whose batches are written to another queue under their number."""

from __future__ import annotations

from typing import Final

import numpy as np

from mq_wire.errors import CheckpointTooOld, EpochFenced, MqError, StagedSetUnknown, StoreFull
from mq_wire.v1 import produce_pb2
from spark_tests.oracle.marked import Ids, Rows, ids_of, producers_of
from spark_tests.simulation.client import Asking, World
from spark_tests.simulation.readers import Crashed, Reader, Refused
from spark_tests.simulation.writers import new_token, stage

_COUNTER_BITS: Final = 14
_OUTPUTS: Final = 1 << 22


def outputs_of(inputs: Ids) -> Ids:
    """Returns the ids of what comes of messages: each its own producer, since batches come in another order
    than their rows were sent.
    """
    counters = inputs - ids_of(0, 0) - (producers_of(inputs) << 40)
    assert (counters < 1 << _COUNTER_BITS).all(), "more messages of one producer than this has numbers for"
    return (_OUTPUTS | (producers_of(inputs) << _COUNTER_BITS) | counters) << 40


class Pipeline(Reader):
    """Each row that it reads becomes one of `target`."""

    def __init__(self, world: World, queue: str, target: str, number: int, *, named: bool) -> None:
        super().__init__(world, queue, number, named=named)
        self.name = f"pipeline of {self.name}"
        self.target = target
        self._older: list[Asking] = []

    def sink(self, query: str, batch: int, rows: Rows) -> Asking:
        self.world.inputs.append(rows.ids)
        writing = self._write(query, batch, rows)
        while True:
            try:
                waits_for = next(writing)
            except StopIteration as end:
                error = end.value
                break
            yield waits_for
            if self.rng.random() < self._crash_rate / 3 and not self.world.is_finishing:
                if self.rng.random() < 0.5:
                    self._older.append(writing)
                raise Crashed
        if error is None:
            return
        self.counts[f"pipeline: {type(error).__name__}"] += 1
        if isinstance(error, CheckpointTooOld) and self._has_lost_files:
            raise Refused
        if not isinstance(error, (EpochFenced, StagedSetUnknown, StoreFull)):
            self.history.note(f"{self.name}, batch {batch}: {type(error).__name__}: {error}")
        raise Crashed

    def work_as_before(self) -> Asking:
        for writing in list(self._older):
            if self.world.is_finishing:
                writing.close()
                self._older.remove(writing)
                continue
            try:
                yield next(writing)
            except StopIteration as end:
                self._older.remove(writing)
                self.counts[f"older pipelines that ended: {type(end.value).__name__}"] += 1

    def _write(self, query: str, batch: int, rows: Rows) -> Asking:
        """Returns why the batch is not written, None where it is."""
        taken = yield from self.ask(produce_pb2.TakeEpochRequest(query_id=query, target=self.target))
        if isinstance(taken, MqError):
            return taken
        tokens = []
        for part in np.array_split(np.arange(len(rows)), self.rng.randint(1, 3)):
            if not len(part):
                continue
            token = new_token(self)
            staged = produce_pb2.StagedSet(
                token=token,
                epoch=taken.epoch,
                query_id=query,
                batch_id=batch,
                run_id="run",
                target=self.target,
            )
            ids, priorities = outputs_of(rows.ids[part]), rows.priorities[part]
            self.history.attempted(ids)
            half = max(1, min(len(part) // 2, 40))
            messages = [(ids[at : at + half], priorities[at : at + half]) for at in range(0, len(ids), half)]
            error = yield from stage(self, self.target, staged, messages)
            if error is not None:
                return error
            tokens.append(produce_pb2.StagedToken(token=token, rows=len(part)))
        commit = produce_pb2.CommitStagedRequest(
            tokens=tokens,
            target=self.target,
            owner=f"query:{query}",
            version=batch,
            run_id="run",
            rows=len(rows),
        )
        reply = yield from self.ask(commit)
        if isinstance(reply, MqError):
            return reply
        self.counts["commits repeated"] += reply.already_committed
        self.counts["batches of pipelines committed"] += 1
        return None
