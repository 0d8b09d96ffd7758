"""Two counts of a row, and what becomes of rows that a consumer gives back (docs/rules.md, "Two counts of a
row").
"""

from __future__ import annotations

import pytest

from mq_broker.core.commands import CloseSession, Drain, OpenSession, RowsView, SessionEnd
from mq_broker.core.model.counts import counts_of
from mq_broker.core.model.selection import offsets_array
from mq_wire.errors import InvalidRequest, NotAssigned
from mq_wire.v1.consume_pb2 import Drained, OpenConsumer
from spark_tests.support.worlds.scenes import QUEUE, Scene

GOODBYE, LOST, BROKER = SessionEnd.GOODBYE, SessionEnd.LOST, SessionEnd.BROKER


def counted(scene: Scene) -> dict[int, tuple[int, int]]:
    """Returns (failed, handed out) by offset, of those that have any."""
    backlog = scene.queue.backlogs[0]
    offsets = offsets_array(backlog.unacknowledged)
    failed, handed_out = (counts_of(c.bits, offsets) for c in (backlog.failed, backlog.handed_out))
    found = zip(offsets.tolist(), failed.tolist(), handed_out.tolist(), strict=True)
    return {offset: (f, h) for offset, f, h in found if f or h}


def consumer(scene: Scene, rows: int) -> int:
    session = scene.connect(rows)
    scene.received(session)
    return session


@pytest.mark.parametrize(
    ("end", "handed", "expected"),
    [
        (GOODBYE, [], {}),
        (GOODBYE, [(0, 1, 2)], {1: (1, 0)}),
        (GOODBYE, [(0, 0, 2)], {0: (0, 1), 1: (0, 1)}),
        (BROKER, [(0, 1, 2)], {1: (0, 1)}),
        (BROKER, [], {}),
        (LOST, [], {0: (0, 1), 1: (0, 1), 2: (0, 1)}),
        (LOST, [(0, 1, 2)], {0: (0, 1), 1: (0, 1), 2: (0, 1)}),
        (LOST, [(0, 0, 3)], {0: (0, 1), 1: (0, 1), 2: (0, 1)}),
    ],
)
def test_who_is_counted_when_a_consumer_ends(
    end: SessionEnd, handed: list[tuple[int, int, int]], expected: dict[int, tuple[int, int]]
) -> None:
    scene = Scene()
    scene.publish(4, 4, 4)
    session = consumer(scene, 3)
    scene.hand_over(session, *handed)
    scene.disconnect(session, end)
    assert counted(scene) == expected
    scene.broker = scene.replayed()
    assert counted(scene) == expected, "counts are on disk"


@pytest.mark.parametrize(("handed", "expected"), [(True, (1, 0)), (False, (0, 1))])
def test_the_only_row_of_a_consumer_that_died_failed_if_it_was_handed_over(
    handed: bool, expected: tuple[int, int]
) -> None:
    scene = Scene()
    scene.publish(4, 4)
    session = consumer(scene, 2)
    if handed:
        scene.hand_over(session, (0, 0, 2))
    scene.acknowledge(session, (0, 0, 1))
    scene.disconnect(session, LOST)
    assert counted(scene) == {1: expected}


def test_a_row_that_kills_its_consumer_at_once_is_counted_each_time_and_its_neighbours_never_failed() -> None:
    scene = Scene()
    scene.publish(*[4] * 1000)
    for times in (1, 2, 3, 4):
        session = scene.connect(1000)
        assert {row.delivery_count for row in scene.received(session)} == {times}
        scene.disconnect(session, LOST)
    assert {failed for failed, _ in counted(scene).values()} == {0}


def test_what_the_broker_had_not_sent_is_not_counted() -> None:
    scene = Scene()
    scene.publish(4, 4, 4)
    views: list[RowsView] = []
    opened = OpenConsumer(destination=QUEUE, batch_rows_max=1)
    opened.credit.rows, opened.credit.bytes = 3, 1 << 40
    session = scene.handle(OpenSession(opened, views.append)).session
    scene.dispatch()
    assert [view.selection.rows for view in views] == [1, 1, 1]
    scene.handle(CloseSession(session, LOST, tuple(views[1:])))
    assert counted(scene) == {0: (0, 1)}
    assert scene.ready() == [0, 1, 2]


def test_released_rows_come_again_at_once_and_have_failed() -> None:
    scene = Scene(2)
    scene.publish(4, 4, 9)
    session = consumer(scene, 3)
    scene.hand_over(session, (0, 0, 3))
    assert scene.release(session, (0, 0, 1), (0, 2, 3)) == 2
    scene.credit(session, 9)
    assert [(row.offset, row.delivery_count) for row in scene.received(session)] == [(2, 2), (0, 2)]
    assert scene.release(session, (0, 0, 1), uncounted=True) == 1
    assert [(row.offset, row.delivery_count) for row in scene.received(session)] == [(0, 2)]
    assert counted(scene) == {0: (1, 0), 2: (1, 0)}
    scene.disconnect(session, GOODBYE)
    assert counted(scene) == {0: (1, 0), 1: (1, 0), 2: (1, 0)}, "only row 1 was in its hands still"


@pytest.mark.parametrize("wrong", [(0, 0, 1), (0, 2, 4), (1, 0, 1), (7, 0, 1)])
def test_a_release_of_rows_that_the_session_does_not_hold_is_refused_whole(
    wrong: tuple[int, int, int],
) -> None:
    scene = Scene(2)
    scene.publish(4, 4, 4)
    session = consumer(scene, 3)
    scene.acknowledge(session, (0, 0, 1))
    with pytest.raises(NotAssigned):
        scene.release(session, (0, 1, 2), wrong)
    with pytest.raises(InvalidRequest):
        scene.release(session, (0, 2, 1))
    assert scene.ready() == []
    assert counted(scene) == {}


def test_hand_over_of_what_is_settled_or_was_never_given_does_not_count() -> None:
    scene = Scene()
    scene.publish(4, 4, 4)
    session = consumer(scene, 2)
    scene.acknowledge(session, (0, 0, 1))
    scene.hand_over(session, (0, 0, 3))
    scene.disconnect(session)
    assert counted(scene) == {1: (1, 0)}
    with pytest.raises(NotAssigned, match="never given"):
        scene.hand_over(consumer(scene, 9), (0, 0, 1 << 40))


def test_after_a_drain_nothing_comes_until_there_is_new_credit() -> None:
    scene = Scene()
    heard: list[object] = []
    opened = OpenConsumer(destination=QUEUE, create=True)
    opened.credit.rows, opened.credit.bytes = 5, 1 << 40
    session = scene.handle(OpenSession(opened, heard.append, heard.append)).session
    scene.publish(4)
    scene.dispatch()
    scene.handle(Drain(session, 7))
    scene.publish(4)
    scene.dispatch()
    assert isinstance(heard[0], RowsView)
    assert heard[1:] == [Drained(request_id=7)]
    scene.credit(session, 1, 1 << 40)
    scene.dispatch()
    assert len(heard) == 3
