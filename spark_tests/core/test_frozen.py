"""Browse views: what is equal is kept once, and all of them together have a budget."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from mq_broker.core.commands import Acknowledge, ResolveFetch, Settings, Tick
from mq_broker.core.model import frozen as frozen_module
from mq_broker.core.model.frozen import waiting
from mq_wire.errors import Busy
from mq_wire.v1 import subscribe_pb2 as wire
from spark_tests.support.worlds.scenes import QUEUE, Scene

OPEN = wire.OpenBrowseRequest(destination=QUEUE)


def mixed(rows: int, seed: int = 1) -> list[int]:
    priorities: list[int] = np.random.default_rng(seed).integers(0, 10, rows).tolist()
    return priorities


def test_views_of_a_queue_that_does_not_change_cost_next_to_nothing() -> None:
    scene = Scene(2)
    for partition in range(2):
        scene.publish(*mixed(50_000), partition=partition)
    shelf = scene.broker.state.shelf
    scene.handle(OPEN)
    first = shelf.size_bytes
    assert first > 2 * 50_000 / 8
    for _ in range(100):
        scene.handle(OPEN)
    assert shelf.size_bytes - first < 100 * 2000
    views = [*scene.broker.state.browses.values()]
    assert len({id(view.partitions[0]) for view in views}) == 1


def test_a_row_more_costs_a_view_what_has_changed() -> None:
    scene = Scene()
    scene.publish(*mixed(100_000))
    scene.publish(*mixed(100_000))
    scene.publish(*mixed(100_000))
    shelf = scene.broker.state.shelf
    scene.handle(OPEN)
    first = shelf.size_bytes
    for _ in range(10):
        before = shelf.size_bytes
        scene.publish(4)
        scene.handle(OPEN)
        assert shelf.size_bytes - before < first / 10


def test_beyond_the_budget_another_view_is_refused_until_others_have_expired() -> None:
    scene = Scene(settings=Settings(default_partitions=1, browse_bytes_max=40_000, browse_ttl_us=1000))
    scene.publish(*mixed(100_000))
    opened = scene.handle(OPEN)
    assert scene.broker.state.shelf.size_bytes > 40_000, "one may always be"
    with pytest.raises(Busy, match="browse_bytes_max"):
        scene.handle(OPEN)
    assert len(scene.broker.state.browses) == 1
    assert [
        view.selection.rows
        for view in scene.handle(ResolveFetch(wire.OpenFetch(browse=opened.browse, last=1 << 40)))
    ] == [100_000]
    scene.now_us += 1001
    scene.handle(Tick())
    assert scene.broker.state.shelf.size_bytes == 0
    scene.handle(OPEN)


def test_a_view_of_a_partition_shows_its_lanes_in_one_piece_again() -> None:
    """Chunks end in the middle of frames; rows leave as if they did not."""
    scene = Scene()
    for _ in range(4):
        scene.publish(*[4] * 100_000)
    opened = scene.handle(OPEN)
    (view,) = scene.handle(ResolveFetch(wire.OpenFetch(browse=opened.browse, last=1 << 40)))
    assert len(view.selection.lanes) > 1
    assert [header.rows for header, _ in scene._reader.read(view)] == [100_000] * 4


@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_any_view_is_what_was_there_when_it_was_opened(data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frozen_module, "_CHUNK_BITS", 3)
        scene = Scene(2, Settings(default_partitions=2, browse_ttl_us=10_000))
        session = scene.connect(1 << 40)
        expected: dict[bytes, dict[int, list[tuple[int, int]]]] = {}
        for _ in range(data.draw(st.integers(1, 12))):
            what = data.draw(
                st.sampled_from(["publish", "publish", "receive", "acknowledge", "open", "open", "time"])
            )
            partition = data.draw(st.integers(0, 1))
            if what == "publish":
                scene.publish(
                    *data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=30)), partition=partition
                )
            elif what == "receive" and QUEUE in scene.broker.state.by_name:
                scene.received(session)
            elif what == "acknowledge":
                held = scene.broker.state.sessions[session].held.get(partition)
                some = (
                    sorted(BitMap64().union(*held.offsets))[:: data.draw(st.integers(1, 4))]
                    if held is not None
                    else []
                )
                if some:
                    scene.handle(Acknowledge(session, [(partition, np.array(some), np.array(some) + 1)]))
            elif what == "open":
                opened = scene.handle(OPEN)
                expected[opened.browse] = {n: _rows(scene, n) for n in range(2)}
            else:
                scene.now_us += data.draw(st.sampled_from([3000, 8000]))
                scene.handle(Tick())
            for handle, view in scene.broker.state.browses.items():
                shown = {
                    n: [(p, o) for p, lane in view.partitions[n].selection.lanes for o in lane]
                    for n in view.partitions
                }
                assert shown == {n: rows for n, rows in expected[handle].items() if rows}
        scene.now_us += 20_000
        scene.handle(Tick())
        shelf = scene.broker.state.shelf
        assert (shelf.size_bytes, shelf._last, shelf._tables) == (0, {}, {})
        assert not scene.broker.state.pins


def _rows(scene: Scene, partition: int) -> list[tuple[int, int]]:
    return [
        (priority, offset)
        for priority, lane in waiting(scene.destination, partition).lanes
        for offset in lane
    ]
