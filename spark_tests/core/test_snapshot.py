"""Snapshots in parts: only what changed is written, what is gone vanishes, and a fresh core is as the old one
was.
"""

from __future__ import annotations

from pyroaring import BitMap64

from mq_broker.core.model.markers import bucket_of
from mq_wire.limits import RECORDS_ROWS_MAX
from mq_wire.v1.admin_pb2 import DeleteDestinationRequest
from spark_tests.support.chunks import chunks_of
from spark_tests.support.worlds import commands
from spark_tests.support.worlds.kept import Kept
from spark_tests.support.worlds.scenes import Scene


def test_only_what_changed_is_written() -> None:
    scene = Scene(2)
    scene.publish(4)
    kept = Kept(scene)
    assert kept.take() == {"broker", "log/1/0", "rows/1/0/0"}
    assert kept.take() == set()
    scene.publish(4, partition=1)
    assert kept.take() == {"log/1/1", "rows/1/1/0"}
    scene.stage(7, partition=1)
    assert kept.take() == {f"queries/{bucket_of('q1')}", f"staged/{7:032x}"}
    scene.stage(7, partition=1, first=2)
    assert kept.take() == {f"staged/{7:032x}"}
    query = scene.query()
    query.plan(max_rows=1)
    assert kept.take() == {"broker", "log/1/0", "rows/1/0/0", "consumers/1"}


def test_what_sessions_hold_is_ready_in_a_snapshot_and_stays_with_them_here() -> None:
    scene = Scene()
    scene.publish(4, 9)
    session = scene.connect(1)
    scene.received(session)
    kept = Kept(scene)
    kept.take()
    restored = kept.restored().state.by_name["q"].queue.backlogs[0]
    assert [*restored.ready.offsets[9], *restored.ready.offsets[4]] == [1, 0]
    assert scene.ready() == [0]


def test_parts_of_what_is_gone_vanish() -> None:
    scene = Scene()
    kept = Kept(scene)
    scene.publish(4, 4)
    scene.stage(7, queue="other")
    scene.query().plan()
    kept.take()
    scene.handle(DeleteDestinationRequest(name="q"))
    kept.take()
    query = f"queries/{bucket_of('q1')}"  # its writers' epoch outlives the queue
    assert sorted(kept.parts) == ["broker", query, f"staged/{7:032x}"]
    scene.handle(DeleteDestinationRequest(name="other"))
    kept.take()
    assert sorted(kept.parts) == ["broker", query]


def test_a_part_of_rows_vanishes_also_when_something_elsewhere_held_it_back() -> None:
    scene = Scene()
    rows = 9 * RECORDS_ROWS_MAX
    assert rows > 1 << 20
    for _ in range(9):
        scene.publish(*[4] * RECORDS_ROWS_MAX)
    session = scene.connect(rows)
    scene.dispatch()
    scene.acknowledge(session, (0, 0, 5), (0, 6, rows))
    kept = Kept(scene)
    kept.take()
    assert {"rows/1/0/0", "rows/1/0/1"} <= set(kept.parts)
    scene.acknowledge(session, (0, 5, 6))
    kept.take()
    assert sorted(kept.parts) == ["broker", "log/1/0"]


def test_attempts_survive_in_a_part_of_which_nothing_is_ready_and_where_no_frame_begins() -> None:
    with chunks_of():
        scene = Scene()
        scene.publish(*[4] * 12)
        session = scene.connect(12)
        scene.received(session)
        scene.credit(session, 12)
        scene.disconnect(session)
        scene.query().plan()
        kept = Kept(scene)
        kept.take()
        assert kept.restored().state.by_name["q"].queue.backlogs[0].counts == ((BitMap64(range(12)),),)


def test_producers_of_whom_nothing_is_left_are_forgotten_in_all_parts_at_once() -> None:
    scene = Scene()
    for number in range(1100):
        scene.handle(commands.publish("q", 0, (f"{number:032x}", 0), 0, [(b"v", 4)]))
    session = scene.connect(1099)
    scene.received(session)
    kept = Kept(scene)
    kept.take()
    scene.acknowledge(session, (0, 0, 1099))
    kept.take()
    restored = kept.restored().state.by_name["q"].partitions[0].log.index()
    assert [restored.producers[number] for number in restored.frames["producer"].tolist()] == [f"{1099:032x}"]


def test_attempts_plans_and_fences_survive() -> None:
    scene = Scene()
    scene.publish(4, 9, 4)
    kept = Kept(scene)
    session = scene.connect(1)
    scene.received(session)
    scene.credit(session, 1)
    scene.disconnect(session)
    old = scene.query("night")
    old.plan(max_rows=2)
    old.read({}, old.next, batch=("q1", 3))
    kept.take()
    old.copy(scene.run()).open({}, old.next)
    kept.take()
    scene.query("night").plan(max_rows=1)
    kept.take()
    scene.stage(1, epoch=5, batch=9)
    scene.commit((1, 2), version=9, target="q")
    kept.take()
    restored = kept.restored().state
    assert restored.queries["q1"].fenced_through == 3
    assert restored.queries["q1"].epochs == {None: 6}
