"""What must never begin anew: numbers after a repair that lost decisions, and a journal whose identity says
there is none yet.
"""

from __future__ import annotations

import pytest

from mq_broker.core import snapshot
from mq_broker.core.broker import Broker
from mq_broker.core.commands import HoldRun
from mq_broker.engine.opening import recover
from mq_broker.engine.rows import RowReader
from mq_broker.journal.settings import TINY
from mq_broker.repair.inspection import Inspection
from mq_broker.repair.repair import Folders, repair
from mq_broker.testing.memory_disk import MemoryDisk
from mq_wire.errors import DataDirectoryUnusable, OffsetsUnknown
from spark_tests.damage.small import SETTINGS, DiskScene, Opened, small
from spark_tests.support.worlds.disks import JOURNAL
from spark_tests.support.worlds.dumps import check_same, dump_broker
from spark_tests.support.worlds.lists import CLUSTER, ListSink, counted_ids
from spark_tests.support.worlds.scenes import QUEUE


class NumberedScene(DiskScene):
    """Remembers where each turn begins."""

    def __init__(self) -> None:
        self.starts: dict[int, int] = {}
        super().__init__(settings=SETTINGS)

    def settle(self) -> None:
        self.starts[self.journal.position.turn + 1] = self.journal.position.position
        super().settle()


def repaired(scene: NumberedScene, lost_turn: int) -> Opened:
    """The scene's directory without one turn, repaired."""
    journal, snapshots = scene.journal_disk.reopen(), scene.snapshot_disk.reopen()
    start = scene.starts[lost_turn]
    for position in range(start, start + 512, 64):
        journal.flip("segment-0000000001.mqj", position + 10)
    repair(Folders(journal, snapshots, MemoryDisk), Inspection(journal, snapshots, CLUSTER, JOURNAL))
    return Opened((journal, snapshots))


def test_what_is_known_of_commits_and_sets_survives_a_repair() -> None:
    scene = NumberedScene()
    scene.publish(4, 4)
    lost = scene.journal.position.turn
    scene.stage(1, target=QUEUE)
    scene.commit((1, 2), target=QUEUE, version=3, run_id="r1")
    scene.stage(2, query="")
    scene.commit((2, 2), owner="app:load", version=4, query_id="q2")
    committed_us = scene.now_us
    scene.now_us += 5000
    scene.stage(3, query="q3", target=QUEUE, epoch=5)
    scene.stage(4, query="q3", target=QUEUE, epoch=6)  # discards the other
    scene.stage(5, query="q3", target="", epoch=7)
    state = repaired(scene, lost).broker.state
    by_query, by_application = state.markers["query:q1", QUEUE], state.markers["app:load", ""]
    assert (by_query.version, by_query.rows, by_query.query_id, by_query.run_id, by_query.time_us) == (
        3,
        2,
        "q1",
        "r1",
        committed_us,
    )
    assert (by_application.query_id, by_application.time_us) == ("q2", committed_us)
    assert {held.token[-1]: (held.target, held.epoch, held.rows) for held in state.staged.values()} == {
        4: (QUEUE, 6, 2),
        5: ("", 7, 2),
    }
    assert state.queries["q3"].epochs == {QUEUE: 6, "": 7}


def test_a_lost_plan_is_not_made_again_under_its_numbers() -> None:
    scene = NumberedScene()
    scene.publish(4, 4, 4, 4)
    query = scene.query("night")
    first = dict(query.plan(max_rows=2).end.next)
    query.read({}, first, ("q1", 0))
    second = dict(query.plan(max_rows=2).end.next)
    lost = scene.journal.position.turn
    scene.publish(9, partition=1)
    opened = repaired(scene, lost)
    scene.broker, scene.journal, scene._reader = opened.broker, opened.journal, RowReader(opened.journal)

    run = opened.broker.handle(HoldRun(0), scene.now_us)
    assert run > query.run, "no run is given twice"
    resumed = query.copy(run)
    with pytest.raises(OffsetsUnknown, match="repaired"):
        resumed.open(first, second)
    third = resumed.plan(start=first)
    assert min(third.end.next.values()) > max(second.values()), "its numbers belong to nobody else"
    rows = resumed.read(first, dict(third.end.next))
    assert {(row.partition, row.offset) for row in rows} == {(0, 2), (0, 3), (1, 0)}, "its rows come again"

    for _ in range(3):  # the gap is behind what is kept, and a snapshot still tells the boundaries around it
        check_same(dump_broker(_from_snapshot(opened.broker)), dump_broker(opened.broker))
        scene.publish(4)
        start = dict(resumed.next)
        resumed.plan()
        resumed.read(start, resumed.next)
    assert opened.broker.state.by_name["q"].queue.consumers[query.incarnation].past[1].end == first
    assert resumed.plan(start=first).end.next == third.end.next


def _from_snapshot(broker: Broker) -> Broker:
    snapshot.mark_all(broker.state)
    parts, _ = snapshot.take(broker.state, ())
    restored = Broker(CLUSTER, SETTINGS, ListSink(), counted_ids())
    snapshot.restore(restored.state, iter(parts))
    return restored


def test_a_first_start_over_what_is_there_is_refused() -> None:
    """An identity from before the first start was over: the journal would be made anew, and everything in it
    removed.
    """
    disks = small().directory.disks()
    before = [disk.steps for disk in disks]
    with pytest.raises(DataDirectoryUnusable, match="never finished"):
        recover(*disks, CLUSTER, JOURNAL, SETTINGS, TINY, created=False)
    assert [disk.steps for disk in disks] == before
