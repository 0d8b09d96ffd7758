"""Connected consumers: exact prefetch, order, exact acknowledgement, and what a lost one leaves behind
(docs/rules.md, "Prefetch and credit", "Two counts of a row").
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mq_broker.core.commands import Acknowledge, AddCredit, Ask, OpenSession
from mq_wire.errors import InvalidRequest, NotAssigned, SessionClosed, UnknownDestination
from mq_wire.v1 import subscribe_pb2 as wire
from mq_wire.v1.admin_pb2 import DeleteDestinationRequest
from mq_wire.v1.consume_pb2 import Asked, OpenConsumer
from spark_tests.support.worlds.scenes import QUEUE, Scene


def test_no_more_than_the_credit_is_ever_delivered() -> None:
    scene = Scene(3)
    session = scene.connect(5)
    for partition in range(3):
        scene.publish(4, 4, 4, partition=partition)
    rows = scene.received(session)
    assert len(rows) == 5
    scene.acknowledge(session, (rows[0].partition, rows[0].offset, rows[0].offset + 1))
    assert scene.received(session) == [], "an acknowledgement alone is no credit"
    scene.credit(session, 2)
    assert len(scene.received(session)) == 2


def test_without_credit_nothing_comes() -> None:
    scene = Scene()
    scene.publish(4)
    session = scene.connect(0)
    assert scene.received(session) == []
    scene.credit(session, 1)
    assert len(scene.received(session)) == 1


def test_a_delivered_row_belongs_to_its_consumer() -> None:
    scene = Scene()
    scene.publish(4, 4)
    slow, other = scene.connect(1), scene.connect(9)
    assert [row.offset for row in scene.received(slow)] == [0]
    assert [row.offset for row in scene.received(other)] == [1]
    scene.disconnect(slow)
    assert [row.offset for row in scene.received(other)] == [0]


def test_bytes_are_a_limit_too_and_may_be_overdrawn_by_one_row() -> None:
    scene = Scene()
    for _ in range(6):
        scene.publish(4, size=1000)
    size = int(scene.destination.partitions[0].log.index().frames["size"][0])
    session = scene.connect(100, size=2 * size + 1)
    assert len(scene.received(session)) == 3
    assert scene.received(session) == []
    scene.credit(session, 0, size)
    assert len(scene.received(session)) == 1, "what was overdrawn is owed"


def test_one_row_larger_than_the_window_is_delivered() -> None:
    scene = Scene()
    scene.publish(4, size=1000)
    assert len(scene.received(scene.connect(10, size=1))) == 1


def test_deliveries_are_sorted_by_priority_across_partitions_and_by_arrival_within() -> None:
    scene = Scene(2)
    scene.publish(1, 9, 4, 9)
    scene.publish(4, 9, 0, partition=1)
    rows = scene.received(scene.connect(100))
    assert [row.priority for row in rows] == [9, 9, 9, 4, 4, 1, 0]
    assert [row.offset for row in rows if (row.priority, row.partition) == (9, 0)] == [1, 3]


def test_few_bytes_do_not_let_a_lower_priority_pass() -> None:
    scene = Scene(2)
    scene.publish(*[9] * 4, size=1000)
    scene.publish(*[0] * 4, partition=1, size=1000)
    size = int(scene.destination.partitions[0].log.index().frames["size"][0]) // 4
    assert [row.priority for row in scene.received(scene.connect(100, size=3 * size + 10))] == [9, 9, 9, 9]


def test_with_a_prefetch_of_one_the_urgent_overtakes_what_waits() -> None:
    scene = Scene()
    scene.publish(4, 4)
    session = scene.connect(1)
    scene.received(session)
    scene.publish(9)
    scene.credit(session, 1)
    assert [row.priority for row in scene.received(session)] == [9]


def test_a_row_that_came_back_is_older_than_fresh_ones_of_its_priority() -> None:
    scene = Scene()
    scene.publish(9, 4)
    first = scene.connect(1)
    scene.received(first)
    scene.publish(9)
    scene.disconnect(first)
    assert [row.offset for row in scene.received(scene.connect(9))] == [0, 2, 1]


def test_batches_are_no_larger_than_asked_for() -> None:
    scene = Scene()
    scene.publish(*[4] * 10)
    batches = scene.deliveries(scene.connect(9, batch=4))
    assert [len(batch) for batch in batches] == [4, 4, 1]


def test_consumers_take_turns() -> None:
    scene = Scene()
    one, two = scene.connect(100, batch=2), scene.connect(100, batch=2)
    scene.publish(*[4] * 8)
    got = [row.offset for row in scene.received(one)], [row.offset for row in scene.received(two)]
    assert got == ([0, 1, 4, 5], [2, 3, 6, 7])
    scene.publish(4, 4)
    assert (len(scene.received(one)), len(scene.received(two))) == (0, 2), (
        "who was first is last the next time"
    )


def test_acknowledge_means_exactly_these_rows() -> None:
    scene = Scene(2)
    scene.publish(*[4] * 6)
    scene.publish(4, partition=1)
    session = scene.connect(100)
    scene.received(session)
    named = [(0, np.array([1, 4]), np.array([3, 5])), (1, np.array([0]), np.array([1]))]
    assert scene.handle(Acknowledge(session, named)) == 4
    scene.disconnect(session)
    assert scene.ready() == [0, 3, 5]
    assert scene.ready(1) == []


@pytest.mark.parametrize("wrong", [(0, 3, 4), (0, 2, 5), (0, 3, 1 << 62), (1, 0, 1), (7, 0, 1)])
def test_rows_that_the_session_does_not_hold_are_refused_whole(wrong: tuple[int, int, int]) -> None:
    scene = Scene(2)
    scene.publish(4, 4, 4, 4)
    session = scene.connect(3)
    scene.received(session)
    scene.acknowledge(session, (0, 0, 1))
    with pytest.raises(NotAssigned):
        scene.acknowledge(session, (0, 1, 2), wrong)
    assert scene.acknowledge(session, (0, 1, 3)) == 2


def test_a_row_that_is_acknowledged_twice_does_not_cost_the_others() -> None:
    scene = Scene()
    scene.publish(*[4] * 5)
    session = scene.connect(5)
    scene.received(session)
    assert scene.acknowledge(session, (0, 0, 2)) == 2
    assert scene.acknowledge(session, (0, 0, 5)) == 3
    assert scene.acknowledge(session, (0, 0, 5)) == 0
    scene.disconnect(session)
    assert scene.ready() == []


@pytest.mark.parametrize("wrong", [(-1, 1), (1, 1), (2, 1)])
def test_ranges_that_are_none_are_refused(wrong: tuple[int, int]) -> None:
    scene = Scene()
    scene.publish(4, 4)
    session = scene.connect(2)
    scene.received(session)
    with pytest.raises(InvalidRequest):
        scene.acknowledge(session, (0, *wrong))


def test_a_partition_named_twice_counts_each_row_once() -> None:
    scene = Scene()
    scene.publish(4, 4)
    session = scene.connect(2)
    scene.received(session)
    assert scene.acknowledge(session, (0, 0, 1), (0, 0, 2)) == 2
    assert scene.broker.state.totals.acknowledged == 2
    assert scene.acknowledge(session) == 0


def test_a_closed_session_can_neither_acknowledge_nor_ask_for_more() -> None:
    scene = Scene()
    scene.publish(4)
    session = scene.connect(1)
    scene.received(session)
    scene.disconnect(session)
    with pytest.raises(SessionClosed):
        scene.acknowledge(session, (0, 0, 1))
    with pytest.raises(SessionClosed):
        scene.credit(session, 1)
    scene.disconnect(session)


def test_only_rows_that_the_application_saw_count_as_failed() -> None:
    scene = Scene()
    scene.publish(*[4] * 6)
    session = scene.connect(4)
    scene.received(session)
    scene.credit(session, 2)
    scene.received(session)
    scene.acknowledge(session, (0, 0, 1))
    scene.disconnect(session)
    rows = scene.received(scene.connect(10))
    assert [(row.offset, row.delivery_count) for row in rows] == [(1, 2), (2, 1), (3, 1), (4, 1), (5, 1)]


def test_rows_acknowledged_out_of_order_do_not_shift_the_blame() -> None:
    scene = Scene()
    scene.publish(*[4] * 6)
    session = scene.connect(3, batch=1)
    scene.received(session)
    scene.acknowledge(session, (0, 0, 1), (0, 1, 2))
    scene.credit(session, 3)
    scene.received(session)
    scene.disconnect(session)
    assert [row.delivery_count for row in scene.received(scene.connect(10))] == [2, 1, 1, 1], (
        "three were seen: 0, 1 and 2"
    )


def test_failures_add_up_and_are_forgotten_with_the_row() -> None:
    scene = Scene()
    scene.publish(4)
    for attempt in (1, 2, 3):
        session = scene.connect(1)
        assert [row.delivery_count for row in scene.received(session)] == [attempt]
        scene.credit(session, 1)
        scene.disconnect(session)
    scene.broker = scene.replayed()
    session = scene.connect(1)
    assert [row.delivery_count for row in scene.received(session)] == [4]
    scene.acknowledge(session, (0, 0, 1))
    assert scene.queue.backlogs[0].counts == ()


def test_after_a_restart_what_was_held_is_ready_and_nobody_has_failed() -> None:
    scene = Scene()
    scene.publish(4, 4)
    session = scene.connect(2)
    scene.received(session)
    scene.credit(session, 2)
    scene.acknowledge(session, (0, 0, 1))
    scene.broker = scene.replayed()
    assert [(row.offset, row.delivery_count) for row in scene.received(scene.connect(9))] == [(1, 1)]


def test_the_sessions_of_a_deleted_queue_end_and_one_made_anew_is_another() -> None:
    scene = Scene()
    scene.publish(4)
    session = scene.connect(5)
    scene.received(session)
    scene.handle(DeleteDestinationRequest(name=QUEUE))
    scene.sequences.clear()
    scene.publish(4)
    assert scene.received(session) == []
    for call in (lambda: scene.acknowledge(session, (0, 0, 1)), lambda: scene.credit(session, 1)):
        with pytest.raises(SessionClosed):
            call()
    scene.disconnect(session)
    assert scene.ready() == [0]


# -- questions, and sessions that end from this side -------------------------------------------------------


def told(scene: Scene, rows: int) -> tuple[int, list[Any]]:
    """A session, and everything that it is sent, in order."""
    heard: list[Any] = []
    opened = OpenConsumer(destination=QUEUE, create=True)
    opened.credit.rows, opened.credit.bytes = rows, 1 << 40
    return scene.handle(OpenSession(opened, heard.append, heard.append)).session, heard


def test_an_answer_stands_behind_what_was_ready_when_it_was_asked() -> None:
    scene = Scene()
    session, heard = told(scene, 0)
    other, heard_by_other = told(scene, 0)
    scene.publish(4, 4, 9)
    scene.handle(Ask(session, 1))
    scene.handle(AddCredit(session, 2, 0))
    assert heard == [], "nothing leaves before the turn is on disk"
    scene.dispatch()
    assert [getattr(what, "request_id", None) for what in heard] == [None, None, 1]
    assert sum(view.selection.rows for view in heard[:-1]) == 2, "within its credit"
    scene.handle(Ask(other, 1))
    scene.handle(Ask(session, 2))
    scene.dispatch()
    assert heard_by_other == [Asked(request_id=1)]
    assert heard[3:] == [Asked(request_id=2)]
    scene.disconnect(session)
    with pytest.raises(SessionClosed):
        scene.handle(Ask(session, 3))


def test_who_asked_and_left_is_not_answered() -> None:
    scene = Scene()
    session, heard = told(scene, 1)
    scene.handle(Ask(session, 1))
    scene.disconnect(session)
    scene.dispatch()
    assert heard == []


def test_deleting_a_queue_is_told_once_it_is_on_disk() -> None:
    scene = Scene()
    _, heard = told(scene, 1)
    scene.handle(DeleteDestinationRequest(name=QUEUE))
    assert heard == []
    scene.dispatch()
    (error,) = heard
    assert isinstance(error, UnknownDestination)
    assert "was deleted" in str(error)


def test_an_operator_ends_a_session_and_charges_what_was_seen() -> None:
    scene = Scene()
    scene.publish(4, 4, 4)
    session, heard = told(scene, 2)
    scene.dispatch()
    scene.credit(session, 1)
    released = scene.handle(wire.ReleaseConsumerRequest(session=session))
    assert released.returned_rows == 2
    scene.dispatch()
    assert isinstance(heard[-1], SessionClosed)
    again = scene.received(scene.connect(9))
    assert [(row.offset, row.delivery_count) for row in again] == [(0, 2), (1, 1), (2, 1)]
    with pytest.raises(UnknownDestination, match=f"no consumer session {session}"):
        scene.handle(wire.ReleaseConsumerRequest(session=session))


def test_a_late_release_spares_who_has_the_name_now() -> None:
    scene = Scene()
    scene.publish(4, 4)
    query = scene.query("report")
    query.plan()
    late = wire.ReleaseConsumerRequest(destination=QUEUE, consumer="report", incarnation=query.incarnation)
    assert scene.handle(late).returned_rows == 2
    successor = scene.query("report")
    successor.plan()
    assert successor.incarnation not in (b"", query.incarnation)
    assert scene.handle(late).returned_rows == 0, "it had its effect: that counts as success"
    (info,) = scene.handle(wire.ListConsumersRequest()).consumers
    assert (info.incarnation, info.unacknowledged_rows) == (successor.incarnation, 2)
    scene.handle(DeleteDestinationRequest(name=QUEUE))
    assert scene.handle(late).returned_rows == 0
