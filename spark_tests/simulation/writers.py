"""Clients that write in transactions: staged sets, epochs, commits whose answer is lost, attempts that nobody
waits for any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mq_wire.errors import MqError
from mq_wire.limits import TOKEN_BYTES
from mq_wire.v1 import produce_pb2
from pyspark_mq.client.window import Window
from spark_tests.oracle.marked import Ids
from spark_tests.simulation.client import Asking, Client, Steps, World
from spark_tests.simulation.producers import Batch, Outlet, Sender

Messages = Sequence[tuple[Ids, NDArray[np.int64]]]


def stage(client: Client, queue: str, staged: produce_pb2.StagedSet, messages: Messages) -> Asking:
    """Stages batches under one token. Returns the error that ended it, or None when all of them are there."""
    outlet = Outlet(client, queue, Window(queue, staged.token.hex(), 0, staged), is_counted=False)
    for ids, priorities in messages:
        outlet.add(Batch(client.rng.randrange(client.world.partitions), ids, priorities))
    while not outlet.window.idle and outlet.broken is None:
        outlet.work()
        yield None
    outlet.close()
    return outlet.broken


def new_token(client: Client) -> bytes:
    return client.rng.randbytes(TOKEN_BYTES)


class Attempt:
    """One attempt to write a batch."""

    def __init__(self, group: int) -> None:
        self.group = group
        self.tokens: list[produce_pb2.StagedToken] = []
        self.ids: list[int] = []
        self.is_asked_for = False  # a commit is on its way
        self.error: MqError | None = None


class Writer(Sender):
    """Writes batch after batch, as Spark's sinks do: sets staged by tasks, committed by the driver, again
    where it started anew.

    Half of them are streaming queries, the others batch writes of an application that numbers its versions.
    """

    def __init__(self, world: World, queue: str, number: int) -> None:
        super().__init__(world, queue, f"writer {number}")
        self._query = f"query-{queue}-{number}" if self.rng.random() < 0.5 else ""
        self._owner = f"query:{self._query}" if self._query else f"app:{queue}-{number}"
        self._names_target = self.rng.random() < 0.5
        self._batch = 0
        self._attempts: list[Attempt] = []  # of this batch
        self._committed: int | None = None  # group that is certain to be the batch
        self._zombies: list[Asking] = []

    def body(self) -> Steps:
        while not self.world.is_finishing:
            yield from self._attempt()
            for zombie in [z for z in self._zombies if self.rng.random() < 0.7]:
                yield from self._run_zombie(zombie)
        for zombie in self._zombies:
            zombie.close()
        self._give_up()

    def _attempt(self) -> Asking:
        epoch = 0
        if self._query:
            # As today's clients do: for a target, at once; or as those before them.
            target = self.queue if self._names_target else None
            reply = yield from self.ask(
                produce_pb2.TakeEpochRequest(
                    query_id=self._query if self._names_target else "", target=target
                )
            )
            if isinstance(reply, MqError):
                yield None
                return
            epoch = reply.epoch
        attempt = Attempt(self.history.group())
        self._attempts.append(attempt)
        tasks = [self._task(attempt, epoch) for _ in range(self.rng.randint(1, 3))]
        for task in tasks:
            if self.rng.random() < 0.1:
                # A task that hangs: its attempt is over, and it goes on all the same.
                next(task, None)
                self._zombies.append(task)
                self.counts["zombie tasks"] += 1
                return
            yield from task
            if attempt.error is not None:
                self.counts[f"staging failed: {type(attempt.error).__name__}"] += 1
                return
        yield from self._end(attempt)

    def _task(self, attempt: Attempt, epoch: int) -> Asking:
        self.number, self.sent = self.world.new_producer(), 0
        staged = produce_pb2.StagedSet(token=new_token(self), epoch=epoch)
        if self._query:
            staged.query_id, staged.batch_id, staged.run_id = self._query, self._batch, "run"
        if self._names_target:
            staged.target = self.queue
        messages = [self.new_messages() for _ in range(self.rng.randint(1, 3))]
        for ids, _ in messages:
            self.history.attempted(ids, attempt.group)
            attempt.ids += ids.tolist()
        self.world.hidden.update(attempt.ids)
        attempt.tokens.append(
            produce_pb2.StagedToken(token=staged.token, rows=sum(len(ids) for ids, _ in messages))
        )
        attempt.error = yield from stage(self, self.queue, staged, messages)

    def _run_zombie(self, zombie: Asking) -> Asking:
        try:
            yield next(zombie)
        except StopIteration:
            self._zombies.remove(zombie)

    def _end(self, attempt: Attempt) -> Asking:
        fate = self.rng.random()
        if fate < 0.1:  # the driver dies before the commit
            return
        if fate < 0.2:
            request = produce_pb2.DiscardStagedRequest(tokens=[token.token for token in attempt.tokens])
            yield from self.ask(request)
            return
        rows = sum(token.rows for token in attempt.tokens)
        commit = produce_pb2.CommitStagedRequest(tokens=attempt.tokens, target=self.queue, rows=rows)
        self.world.hidden.difference_update(attempt.ids)
        self.history.group_committing(attempt.group)
        attempt.is_asked_for = True
        if fate < 0.35:
            yield from self._commit_once(commit, attempt)
            return
        commit.owner, commit.version, commit.run_id, commit.keep_mismatch = (
            self._owner,
            self._batch,
            "run",
            True,
        )
        commit.query_id = self._query
        for _ in range(self.rng.randint(1, 2)):
            reply = yield from self.ask(
                commit, retry=fate < 0.9, answered=lambda reply: self._answered(attempt, reply)
            )
            if isinstance(reply, MqError):
                self.counts[f"commit failed: {type(reply).__name__}"] += 1
                return  # the batch is written anew
            self.counts["commits repeated"] += reply.already_committed
        self._next_batch()

    def _answered(self, attempt: Attempt, reply: Any) -> None:
        """The broker has answered a commit, whether anybody hears it or not."""
        if isinstance(reply, produce_pb2.CommitStagedResponse) and not reply.already_committed:
            self.history.group_ended(attempt.group, committed=True)
            if attempt in self._attempts:
                self._committed = attempt.group

    def _commit_once(self, commit: produce_pb2.CommitStagedRequest, attempt: Attempt) -> Asking:
        """Without a marker there is one try; where the answer is missing, all is there or nothing."""
        self._attempts.remove(attempt)
        yield from self.ask(commit, retry=False, answered=lambda reply: self._answered(attempt, reply))

    def _next_batch(self) -> None:
        self.counts["batches committed"] += 1
        for attempt in self._attempts:
            # Who of those that asked was heard is certain only where the broker has said so.
            if attempt.group != self._committed and (self._committed is not None or not attempt.is_asked_for):
                self.history.group_ended(attempt.group, committed=False)
        self._attempts, self._committed = [], None
        self._batch += 1

    def _give_up(self) -> None:
        for attempt in self._attempts:
            if not attempt.is_asked_for:
                self.history.group_ended(attempt.group, committed=False)
