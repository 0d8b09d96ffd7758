"""What tests of queries begin with: batches, restarts of the broker in between, and checkpoints that lost
their last files.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mq_broker.core import snapshot
from mq_broker.core.broker import Broker
from spark_tests.support.worlds.dumps import check_same, dump_broker
from spark_tests.support.worlds.lists import CLUSTER, ListSink, counted_ids
from spark_tests.support.worlds.scenes import Query, Scene

Restart = Callable[[Scene], None]


def _not_at_all(scene: Scene) -> None:
    """Goes on."""


def replayed(scene: Scene) -> None:
    _go_on_with(scene, scene.replayed())


def _from_snapshot(scene: Scene) -> None:
    snapshot.mark_all(scene.broker.state)
    parts, _ = snapshot.take(scene.broker.state, ())
    restored = Broker(CLUSTER, scene.settings, ListSink(), counted_ids())
    snapshot.restore(restored.state, iter(parts))
    _go_on_with(scene, restored)


def _go_on_with(scene: Scene, broker: Broker) -> None:
    check_same(dump_broker(broker), dump_broker(scene.broker))
    broker.ledger.sink, broker.ledger.new_id = scene.sink, scene.broker.ledger.new_id
    scene.broker = broker


restarts = pytest.mark.parametrize("restart", [_not_at_all, replayed, _from_snapshot])


def batches(scene: Scene, query: Query, count: int, first: int = 0) -> list[dict[int, int]]:
    """Runs batches of one row each, and an idle poll; returns their boundaries."""
    boundaries = [dict(query.next)]
    for batch in range(first, first + count):
        scene.publish(4)
        query.plan()
        query.read(boundaries[-1], query.next, ("q1", batch))
        boundaries.append(dict(query.next))
    assert query.plan().idle
    return boundaries


def lost(scene: Scene, query: Query, start: dict[int, int]) -> Query:
    """The query starts anew with a checkpoint that ends at `start`."""
    scene.close_run(query.run)
    again = query.copy(scene.run())
    again.next = start
    return again
