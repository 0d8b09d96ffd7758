"""How rows are handed out: a bounded number of deliveries a turn, no more than an outbox takes, and little
memory for each of them.
"""

from __future__ import annotations

from typing import Any

from mq_broker.core.commands import Ask, OpenSession, ReleaseView, RowsView, Settings
from mq_broker.core.model.session import _DELIVERIES_MAX
from mq_wire.v1.consume_pb2 import Asked, OpenConsumer
from spark_tests.support.worlds import commands
from spark_tests.support.worlds.lists import ListWorld
from spark_tests.support.worlds.scenes import QUEUE, Scene

EVERYTHING = 1 << 62


class Consumer:
    """A session whose outbox is in the hands of the test."""

    def __init__(
        self, world: ListWorld, queue: str = QUEUE, batch: int = 1, credit: int = EVERYTHING
    ) -> None:
        self.world = world
        self.outbox: list[RowsView] = []
        self.told: list[Any] = []
        opened = OpenConsumer(destination=queue, batch_rows_max=batch, create=True)
        opened.credit.rows, opened.credit.bytes = credit, EVERYTHING
        self.number: int = world.handle(OpenSession(opened, self.outbox.append, self.told.append)).session

    @property
    def rows(self) -> int:
        return sum(view.selection.rows for view in self.outbox)

    def send(self) -> int:
        """Lets what is in the outbox leave; returns how many rows."""
        views = self.outbox.copy()
        self.outbox.clear()
        for view in views:
            self.world.handle(ReleaseView(view))
        return sum(view.selection.rows for view in views)


def publish(
    world: ListWorld, rows: int, queue: str = QUEUE, partition: int = 0, producer: str = "a" * 32, **more: Any
) -> None:
    known = world.broker.state.by_name.get(queue)
    mark = known.partitions[partition].audit.mark(producer) if known is not None else None
    values = [(b"%d" % at, more.get("priority", 4)) for at in range(rows)]
    world.handle(
        commands.publish(
            queue, partition, (producer, 0), mark.next_sequence if mark is not None else 0, values
        )
    )


def one_turn(world: ListWorld) -> bool:
    world.settle()
    return bool(world.broker.dispatch(world.now_us))


def test_a_turn_makes_so_many_deliveries_and_the_next_one_goes_on() -> None:
    world = ListWorld(Settings(default_partitions=1, deliveries_of_a_turn=10))
    consumer = Consumer(world)
    publish(world, 25)
    assert one_turn(world)
    assert len(consumer.outbox) == 10
    assert one_turn(world)
    assert not one_turn(world)
    assert consumer.rows == 25


def test_every_session_has_its_turn_before_one_has_a_second_one() -> None:
    world = ListWorld(Settings(default_partitions=1, deliveries_of_a_turn=3))
    consumers = [Consumer(world) for _ in range(5)]
    publish(world, 10)
    served = [0] * 5
    for turn in range(1, 4):
        one_turn(world)
        served = [len(consumer.outbox) for consumer in consumers]
        assert sum(served) == min(turn * 3, 10)
        assert max(served) - min(served) <= 1
    one_turn(world)
    assert [len(consumer.outbox) for consumer in consumers] == [2] * 5


def test_every_queue_has_its_turn() -> None:
    world = ListWorld(Settings(default_partitions=1, deliveries_of_a_turn=4))
    greedy = Consumer(world, "greedy")
    modest = Consumer(world, "modest", credit=1)
    publish(world, 60, "greedy")
    publish(world, 1, "modest")
    turns = 0
    while not modest.outbox:
        one_turn(world)
        turns += 1
        world.broker.state.stir("greedy")
        greedy.send()
    assert turns <= 2


def test_an_outbox_takes_no_more_batches_than_it_may_until_half_of_them_are_sent() -> None:
    world = ListWorld(Settings(default_partitions=1, outbox_batches=8))
    consumer = Consumer(world, batch=2)
    publish(world, 100)
    while one_turn(world):
        pass
    assert consumer.rows == 16
    session = world.broker.state.sessions[consumer.number]
    assert session.outbox.batches == 8
    for view in consumer.outbox[:3]:
        world.handle(ReleaseView(view))
    one_turn(world)
    assert consumer.rows == 16, "less than half of it was sent"
    world.handle(ReleaseView(consumer.outbox[3]))
    del consumer.outbox[:4]
    while one_turn(world):
        pass
    assert consumer.rows == 16
    while consumer.send():
        while one_turn(world):
            pass
    assert session.held_rows == 100
    assert (session.outbox.batches, session.outbox.bytes) == (0, 0)


def test_an_outbox_takes_no_more_bytes_than_it_may() -> None:
    world = ListWorld(Settings(default_partitions=1, outbox_bytes=20_000))
    consumer = Consumer(world, batch=0)
    scene_values = [(b"x" * 1000, 4) for _ in range(100)]
    world.handle(commands.publish(QUEUE, 0, ("a" * 32, 0), 0, scene_values))
    while one_turn(world):
        pass
    assert 15 <= consumer.rows <= 30, "one delivery more than fits, at most"
    assert len(consumer.outbox) >= 2, "the next delivery is there while one is sent"
    received = 0
    while sent := consumer.send():
        received += sent
        while one_turn(world):
            pass
    assert received == 100


def test_a_row_larger_than_an_outbox_is_delivered() -> None:
    world = ListWorld(Settings(default_partitions=1, outbox_bytes=100))
    consumer = Consumer(world)
    world.handle(commands.publish(QUEUE, 0, ("a" * 32, 0), 0, [(b"x" * 10_000, 4)] * 2))
    one_turn(world)
    assert consumer.send() == 1
    one_turn(world)
    assert consumer.send() == 1


def test_an_answer_waits_for_what_the_outbox_has_no_room_for() -> None:
    world = ListWorld(Settings(default_partitions=1, outbox_batches=2))
    consumer = Consumer(world)
    publish(world, 3)
    world.handle(Ask(consumer.number, 7))
    one_turn(world)
    assert (consumer.rows, consumer.told) == (2, [])
    consumer.send()
    one_turn(world)
    assert (consumer.rows, consumer.told) == (1, [Asked(request_id=7)])


def test_small_batches_are_handed_out_many_at_a_time_where_very_many_rows_are_ready() -> None:
    world = ListWorld(Settings(default_partitions=1, outbox_batches=256))
    consumer = Consumer(world)
    for _ in range(8):
        publish(world, 10_000)
    one_turn(world)
    assert consumer.rows == 256
    assert len(consumer.outbox) == 1


def test_what_is_remembered_of_deliveries_is_bounded_and_charges_as_many_rows_as_were_seen() -> None:
    scene = Scene(2)
    session = scene.connect(EVERYTHING, batch=1)
    rows = 3 * _DELIVERIES_MAX
    for _ in range(0, rows, 64):
        for partition in range(2):
            scene.publish(*[4] * 32, partition=partition)
        scene.received(session)
    known = scene.broker.state.sessions[session]
    assert known.held_rows == rows
    assert len(known.delivered) <= _DELIVERIES_MAX
    scene.credit(session, rows // 2)
    scene.disconnect(session)
    again = scene.received(scene.connect(rows))
    assert len(again) == rows
    assert sum(row.delivery_count == 2 for row in again) == rows // 2
    last = {
        partition: max(row.offset for row in again if row.partition == partition) for partition in range(2)
    }
    assert all(row.delivery_count == 1 for row in again if row.offset == last[row.partition]), (
        "the last ones were not seen"
    )
