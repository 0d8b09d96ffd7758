"""The broker has done what it was asked to, and exactly that answer gets lost: asked again, everything is as
if it had come.
"""

from __future__ import annotations

import pathlib
import secrets
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from mq_broker import LocalBroker
from mq_wire.errors import BrokerUnavailable, SessionClosed
from mq_wire.limits import TOKEN_BYTES
from mq_wire.v1 import admin_pb2, produce_pb2, subscribe_pb2
from mq_wire.v1.common_pb2 import Positions
from pyspark_mq import Connection, Consumer, Producer
from pyspark_mq.client.run import Run
from spark_tests.support.proxy import Proxy
from spark_tests.support.waiting import wait_until

pytestmark = [pytest.mark.network]

_PATIENCE_S = 30.0


@dataclass
class Scene:
    """A broker, a way to it that loses answers, and one that does not."""

    proxy: Proxy
    direct: Connection
    queue: str

    def stats(self) -> admin_pb2.DestinationStats:
        stats: admin_pb2.DestinationStats = self.direct.call(
            "Stats", admin_pb2.StatsRequest(destination=self.queue)
        ).destination
        return stats

    def turns(self) -> int:
        return int(self.direct.call("Stats", admin_pb2.StatsRequest()).broker.turns)

    def lose_answer(self, ask: Callable[[], Any], is_done: Callable[[], Any]) -> Any:
        """Asks while answers are thrown away, until the broker has done it; then resets the connection.
        Returns what `ask` brings.
        """
        outcome: list[Any] = []

        def run() -> None:
            try:
                outcome.append(ask())
            except BaseException as error:  # raised below, on the thread of the test
                outcome.append(error)

        self.proxy.swallow()
        swallowed = self.proxy.swallowed
        thread = threading.Thread(target=run)
        thread.start()
        wait_until(
            lambda: is_done() and self.proxy.swallowed > swallowed, _PATIENCE_S, "the broker does not do it"
        )
        assert not outcome, f"an answer came through: {outcome}"
        self.proxy.heal()
        thread.join(_PATIENCE_S)
        assert outcome, "no answer, although the network has healed"
        if isinstance(outcome[0], BaseException):
            raise outcome[0]
        return outcome[0]


@pytest.fixture(scope="module")
def broker(module_path: pathlib.Path) -> Iterator[LocalBroker]:
    with LocalBroker(module_path / "broker", default_partitions=1) as started:
        yield started


@pytest.fixture
def scene(broker: LocalBroker, request: pytest.FixtureRequest) -> Iterator[Scene]:
    queue = f"lost.{zlib.crc32(request.node.name.encode())}"
    with Proxy(broker.address) as proxy, Connection(broker.address) as direct:
        direct.call("DescribeDestination", admin_pb2.DescribeDestinationRequest(name=queue, create=True))
        yield Scene(proxy, direct, queue)


def test_batches(scene: Scene) -> None:
    with Producer(scene.proxy.address, queue=scene.queue) as producer:
        producer.send_batch(pa.record_batch({"value": [b"0"]})).result(_PATIENCE_S)
        batch = pa.record_batch({"value": [b"1", b"2"]})
        first, second = producer.send_batch(batch), producer.send_batch(batch)
        scene.lose_answer(lambda: second.result(_PATIENCE_S), lambda: scene.stats().depth_rows == 5)
        assert [
            (base, rows, duplicates)
            for _, base, rows, duplicates in first.result(0).ranges + second.result(0).ranges
        ] == [
            (1, 2, 2),
            (3, 2, 2),
        ]
    assert scene.stats().depth_rows == 5


def test_a_single_message(scene: Scene) -> None:
    with Producer(scene.proxy.address, queue=scene.queue) as producer:
        producer.send(b"0").result(_PATIENCE_S)
        receipt = scene.lose_answer(
            lambda: producer.send(b"1").result(_PATIENCE_S), lambda: scene.stats().depth_rows == 2
        )
        assert receipt.offset == 1
    assert scene.stats().depth_rows == 2


@pytest.mark.parametrize("owner", ["query:lost", ""])
def test_a_commit(scene: Scene, owner: str) -> None:
    token = secrets.token_bytes(TOKEN_BYTES)
    with Connection(scene.proxy.address) as connection:
        epoch = connection.call("TakeEpoch", produce_pb2.TakeEpochRequest()).epoch
        staged = produce_pb2.StagedSet(token=token, epoch=epoch, query_id="lost", batch_id=0, run_id="run")
        with Producer(queue=scene.queue, staged=staged, connection=connection) as producer:
            producer.send_batch(pa.record_batch({"value": [b"1", b"2"]}))
        request = produce_pb2.CommitStagedRequest(
            tokens=[produce_pb2.StagedToken(token=token, rows=2)],
            target=scene.queue,
            rows=2,
            owner=owner,
            run_id="run",
        )
        retry_timeout = _PATIENCE_S if owner else None

        def commit() -> Any:
            return connection.call("CommitStaged", request, retry_timeout=retry_timeout)

        if owner:
            assert scene.lose_answer(commit, lambda: scene.stats().depth_rows == 2).rows == 2
        else:
            with pytest.raises(BrokerUnavailable):
                scene.lose_answer(commit, lambda: scene.stats().depth_rows == 2)
    assert scene.stats().depth_rows == 2


def test_an_acknowledgement(scene: Scene) -> None:
    with Producer(scene.proxy.address, queue=scene.queue) as producer:
        producer.send_batch(pa.record_batch({"value": [b"1", b"2"]})).result(_PATIENCE_S)
    with Consumer(scene.proxy.address, queue=scene.queue) as consumer:
        message = consumer.receive(_PATIENCE_S)
        assert message is not None

        def acknowledge() -> None:
            consumer.acknowledge(message)
            consumer.flush(_PATIENCE_S)

        with pytest.raises(SessionClosed, match="may be delivered again"):
            scene.lose_answer(acknowledge, lambda: scene.stats().depth_rows == 1)
        other = consumer.receive(_PATIENCE_S)
        assert other is not None
        assert other.value == b"2", "what was acknowledged does not come again"
        consumer.acknowledge(other)
        consumer.flush(_PATIENCE_S)
    assert scene.stats().depth_rows == 0


def test_plans_ranges_and_their_acknowledgement(scene: Scene) -> None:
    with Producer(scene.proxy.address, queue=scene.queue) as producer:
        producer.send_batch(pa.record_batch({"value": [b"1", b"2", b"3"]})).result(_PATIENCE_S)
    with Connection(scene.proxy.address) as connection:
        run = Run(connection)
        who = subscribe_pb2.ConsumerRef(destination=scene.queue, consumer="lost", run=run.number())

        def lose(method: str, request: Any) -> Any:
            connection.hello()  # whose answer is not the one to get lost
            before = scene.turns()
            return scene.lose_answer(
                lambda: connection.call(method, request, retry_timeout=_PATIENCE_S),
                lambda: scene.turns() > before,
            )

        request = subscribe_pb2.PlanRequest(who=who, start=Positions(), max_rows=2, max_bytes=1 << 20)
        plan = lose("Plan", request)
        who.cluster_id, who.destination_id, who.incarnation = (
            plan.cluster_id,
            plan.destination_id,
            plan.incarnation,
        )
        rows, done = 0, Positions()
        while scene.stats().depth_rows:
            opened = connection.call(
                "OpenRange", subscribe_pb2.OpenRangeRequest(who=who, start=done, end=plan.end)
            )
            rows += sum(part.rows for part in opened.parts)
            done = plan.end
            lose("AcknowledgeRange", subscribe_pb2.AcknowledgeRangeRequest(who=who, end=done))
            # A run whose connection breaks gives back what it has not opened: those numbers read as nothing,
            # and the rows come again.
            plan = connection.call(
                "Plan", subscribe_pb2.PlanRequest(who=who, start=done, max_rows=2, max_bytes=1 << 20)
            )
        assert rows == 3
        run.close()
