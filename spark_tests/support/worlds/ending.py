"""Histories of what ends by itself: staged sets, browse views, runs whose process is gone, rows that are kept
for nobody. A walk over everything says at each tick what must have ended.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from mq_broker.core.commands import HoldRun, ReleaseView, ResolveFetch, Settings, Tick
from mq_broker.core.model.durable_consumer import Consumer
from mq_wire.errors import MqError
from mq_wire.v1.produce_pb2 import DiscardStagedRequest
from mq_wire.v1.subscribe_pb2 import OpenBrowseRequest, OpenFetch, ReleaseConsumerRequest
from spark_tests.support.worlds.scenes import QUEUE, Query, Scene

_STEPS: Final = 150
_ITEMS: Final = 4
_SETTINGS: Final = Settings(
    default_partitions=1, staged_ttl_us=1000, browse_ttl_us=700, run_grace_us=300, kept_range_ttl_us=900
)


class Ending:
    """One history, and since when everything is as it is."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.scene = Scene(1, _SETTINGS)
        self.scene.publish(*[4] * 400)
        self.queries: list[Query] = []
        self.held: set[int] = set()
        #: Of each set the last sign of life, None where a start does not know it; the last batch; the rows.
        self.sets: dict[int, int | None] = {}
        self.staged_us: dict[int, int] = {}
        self.rows: dict[int, int] = {}
        #: When each view was used last.
        self.views: dict[bytes, int] = {}
        self.silent: dict[int, int] = {}
        self.alone: dict[bytes, int] = {}

    def run(self) -> None:
        """Makes the history.

        Raises:
            AssertionError: something ended too early, or did not end.
        """
        steps: list[Callable[[], None]] = [
            *[self.stage] * 5,
            self.discard,
            *[self.look] * 4,
            *[self.plan] * 6,
            *[self.acknowledge] * 3,
            *[self.turn] * 3,
            self.release,
            *[self.tick] * 8,
        ]
        for at in range(_STEPS):
            self.scene.now_us += self.rng.choice([0, 1, 50, 150, 299, 300, 301, 700])
            (self.restart if at % 60 == 59 else self.rng.choice(steps))()
        for _ in range(5):
            self.scene.now_us += 500
            self.tick()

    # -- what clients do

    def stage(self) -> None:
        """A set gets one batch more, or begins."""
        token = self.rng.randrange(1, _ITEMS + 1)
        self.scene.stage(token, first=self.rows.get(token, 0), query=f"q{token}")
        self.rows[token] = self.rows.get(token, 0) + 2
        self.sets[token] = self.staged_us[token] = self.scene.now_us

    def discard(self) -> None:
        token = self.rng.randrange(1, _ITEMS + 1)
        self.scene.handle(DiscardStagedRequest(tokens=[token.to_bytes(16, "big")]))
        self._over(token)

    def look(self) -> None:
        """A view is opened, or read."""
        if len(self.views) < _ITEMS and self.rng.random() < 0.5:
            self.views[self.scene.handle(OpenBrowseRequest(destination=QUEUE)).browse] = self.scene.now_us
        elif self.views:
            handle = self.rng.choice(list(self.views))
            for view in self.scene.handle(ResolveFetch(OpenFetch(browse=handle, first=0, last=1))):
                self.scene.handle(ReleaseView(view))
            self.views[handle] = self.scene.now_us

    def plan(self) -> None:
        """A query plans, and may read it."""
        if len(self.queries) < _ITEMS:
            self.queries.append(self.scene.query())
            self._hold(self.queries[-1].run)
        query = self.rng.choice(self.queries)
        with suppress(MqError):
            start = query.next
            query.plan(max_rows=2)
            if self.rng.random() < 0.7:
                query.read(start, query.next)

    def acknowledge(self) -> None:
        for query in self.rng.sample(self.queries, min(len(self.queries), 2)):
            with suppress(MqError):
                query.acknowledge(query.next)

    def turn(self) -> None:
        """A process ends, comes back, or is replaced by a newer one."""
        if not self.queries:
            return
        query = self.rng.choice(self.queries)
        if query.run in self.held:
            self.scene.close_run(query.run)
            self.held.discard(query.run)
            self.silent.pop(query.run, None)
        elif self.rng.random() < 0.5:
            self.scene.handle(HoldRun(query.run))
            self._hold(query.run)
        else:
            query.run = self.scene.run()
            self._hold(query.run)

    def _hold(self, run: int) -> None:
        self.held.add(run)
        self.silent.pop(run, None)

    def release(self) -> None:
        """An operator ends a consumer."""
        if self.queries and self.rng.random() < 0.3:
            query = self.queries.pop(self.rng.randrange(len(self.queries)))
            with suppress(MqError):
                self.scene.handle(ReleaseConsumerRequest(consumer=query.incarnation.hex()))

    def restart(self) -> None:
        """The broker starts anew: it knows what is on disk."""
        before, self.scene.broker = self.scene.broker, self.scene.replayed()
        self.scene.broker.ledger.sink, self.scene.broker.ledger.new_id = (
            before.ledger.sink,
            before.ledger.new_id,
        )
        self.sets = dict.fromkeys(self.sets)
        for known in (self.views, self.held, self.silent, self.alone):
            known.clear()

    # -- what must have ended

    def tick(self) -> None:
        """A tick, and what it must have done and left."""
        short = self.rng.random() < 0.3
        self._expire()
        consumers = list(self.scene.queue.consumers.values())
        returned = self._returned(consumers)
        forgotten = self._forgotten(consumers, returned, short)
        kept = {c.incarnation: set(c.plans) for c in consumers if c.incarnation not in forgotten}
        self.scene.handle(Tick(short))
        state = self.scene.broker.state
        assert {int.from_bytes(token, "big") for token in state.staged} == set(self.sets), "staged sets"
        assert set(state.browses) == set(self.views), "views"
        for consumer in consumers:
            given_back = returned.get(consumer.incarnation, set())
            assert not [p.number for p in consumer.pending() if p.number in given_back], (
                "plans of who is gone"
            )
            if consumer.incarnation in forgotten:
                assert not [n for n in consumer.plans if n <= consumer.acknowledged_plan], (
                    "rows kept for nobody"
                )
            else:
                assert set(consumer.plans) == kept[consumer.incarnation], "plans of who is there"
            pending = {p.number for p in consumer.plans.values() if not p.returned}
            assert not pending & given_back

    def _over(self, token: int) -> None:
        for known in (self.sets, self.rows, self.staged_us):
            known.pop(token, None)

    def _expire(self) -> None:
        now_us, ttl_us = self.scene.now_us, _SETTINGS.staged_ttl_us
        for token, seen_us in list(self.sets.items()):
            if seen_us is None:
                seen_us = self.sets[token] = now_us - min(now_us - self.staged_us[token], ttl_us // 2)
            if seen_us < now_us - ttl_us:
                self._over(token)
        for handle, used_us in list(self.views.items()):
            if used_us < now_us - _SETTINGS.browse_ttl_us:
                del self.views[handle]

    def _returned(self, consumers: list[Consumer]) -> dict[bytes, set[int]]:
        """Which plans of which consumers go back now."""
        now_us, found = self.scene.now_us, {}
        gone = {consumer.run for consumer in consumers} - self.held
        self.silent = {run: since for run, since in self.silent.items() if run in gone}
        for run in gone:
            if now_us - self.silent.setdefault(run, now_us) >= _SETTINGS.run_grace_us:
                self.silent[run] = now_us
                for consumer in consumers:
                    if consumer.run == run:
                        found[consumer.incarnation] = {
                            p.number for p in consumer.pending() if not p.read_by_run
                        }
        return found

    def _forgotten(
        self, consumers: list[Consumer], returned: dict[bytes, set[int]], short: bool
    ) -> set[bytes]:
        """Which consumers lose now what is kept for them."""
        now_us, limit_us = self.scene.now_us, _SETTINGS.run_grace_us if short else _SETTINGS.kept_range_ttl_us
        alone, found = {}, set()
        for consumer in consumers:
            left = {p.number for p in consumer.pending()} - returned.get(consumer.incarnation, set())
            first = next(iter(consumer.plans), consumer.next_plan)
            if left or first > consumer.acknowledged_plan or consumer.run in self.held:
                continue
            since = alone[consumer.incarnation] = self.alone.get(consumer.incarnation, now_us)
            if now_us - since >= limit_us:
                found.add(consumer.incarnation)
        self.alone = alone
        return found


def ending(seed: int) -> None:
    """Makes one history.

    Raises:
        AssertionError: something ended too early, or did not end.
    """
    Ending(seed).run()
