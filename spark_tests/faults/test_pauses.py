"""Clients whose process stops for a while and goes on: they were replaced meanwhile and do not know it."""

from __future__ import annotations

import contextlib
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pytest

from mq_broker import LocalBroker
from mq_wire.v1 import admin_pb2, produce_pb2, subscribe_pb2
from mq_wire.v1.common_pb2 import Positions
from pyspark_mq import Connection, Consumer, Producer
from pyspark_mq.client.run import Run
from spark_tests.faults.holder import QUERY, TARGET
from spark_tests.faults.pause import stopped
from spark_tests.support.crew.load import linger
from spark_tests.support.tree import PROJECT
from spark_tests.support.waiting import wait_until

#: Silence is noticed after as many seconds instead of 30.
_QUICK_BROKER: Final = {"keepalive_ms": 1000, "keepalive_timeout_ms": 500}
_UNNOTICED_S: Final = 0.5
_PATIENCE_S: Final = 30.0

pytestmark = [pytest.mark.faults, pytest.mark.slow]


class Held:
    """A client process that holds something, and a broker that soon learns that it has stopped."""

    def __init__(self, broker: LocalBroker, kind: str, queue: str) -> None:
        self.queue = queue
        self._process = subprocess.Popen(
            [sys.executable, "-m", "spark_tests.faults.holder", kind, broker.address, queue],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=PROJECT,
        )  # fmt: skip
        assert self._line() == "holding"

    def stopped(self) -> contextlib.AbstractContextManager[None]:
        """The process stands still within the block."""
        return stopped(self._process.pid)

    def goes_on(self) -> str:
        """Returns what came of it."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        return self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


@pytest.fixture(scope="module")
def broker(module_path: pathlib.Path) -> Iterator[LocalBroker]:
    with LocalBroker(module_path / "broker", default_partitions=1, **_QUICK_BROKER) as started:
        yield started


@pytest.fixture
def direct(broker: LocalBroker) -> Iterator[Connection]:
    with Connection(broker.address) as opened:
        yield opened


def _stats(direct: Connection, queue: str) -> admin_pb2.DestinationStats:
    stats: admin_pb2.DestinationStats = direct.call(
        "Stats", admin_pb2.StatsRequest(destination=queue)
    ).destination
    return stats


def _fill(broker: LocalBroker, queue: str, rows: int) -> None:
    with Producer(broker.address, queue=queue) as producer:
        producer.send_batch(pa.record_batch({"value": [b"%d" % row for row in range(rows)]})).result(
            _PATIENCE_S
        )


def _drain(broker: LocalBroker, queue: str) -> list[bytes]:
    with Consumer(broker.address, queue=queue) as consumer:
        values = [message.value for message in _acknowledged(consumer)]
        consumer.flush(_PATIENCE_S)
    return values


def _acknowledged(consumer: Consumer) -> Iterator[Any]:
    for message in consumer.messages(timeout=0.5):
        consumer.acknowledge(message)
        yield message


def test_a_consumer_that_was_given_up_cannot_acknowledge(broker: LocalBroker, direct: Connection) -> None:
    queue = "pauses.consumer"
    _fill(broker, queue, 10)
    with contextlib.closing(Held(broker, "consumer", queue)) as held:
        with held.stopped():
            wait_until(
                lambda: _stats(direct, queue).ready_rows == 10, _PATIENCE_S, "the broker does not notice"
            )
            assert sorted(_drain(broker, queue)) == [b"%d" % row for row in range(10)]
        assert held.goes_on() == "SessionClosed"
    assert _stats(direct, queue).depth_rows == 0
    assert _drain(broker, queue) == []


def test_a_consumer_that_stops_for_a_moment_keeps_what_it_holds(
    broker: LocalBroker, direct: Connection
) -> None:
    queue = "pauses.moment"
    _fill(broker, queue, 10)
    with contextlib.closing(Held(broker, "consumer", queue)) as held:
        with held.stopped():
            linger(_UNNOTICED_S)
        assert held.goes_on() == "done"
    wait_until(lambda: _stats(direct, queue).ready_rows == 7, _PATIENCE_S)
    assert len(_drain(broker, queue)) == 7


def test_a_producer_whose_name_lives_on_elsewhere_cannot_send(broker: LocalBroker) -> None:
    queue = "pauses.producer"
    with contextlib.closing(Held(broker, "producer", queue)) as held:
        with held.stopped(), Producer(broker.address, queue=queue, name="holder") as producer:
            assert producer.stored == {0: (1, 0)}
            producer.send(b"new").result(_PATIENCE_S)
        assert held.goes_on() == "ProducerFenced"
    assert _drain(broker, queue) == [b"held", b"new"]


@pytest.mark.parametrize(("kind", "error"), [("writer", "EpochFenced"), ("driver", "StagedSetUnknown")])
def test_a_writer_whose_batch_was_taken_over_changes_nothing(
    broker: LocalBroker, direct: Connection, kind: str, error: str
) -> None:
    queue = f"pauses.{kind}"
    with contextlib.closing(Held(broker, kind, queue)) as held:
        with held.stopped():
            epoch = direct.call("TakeEpoch", produce_pb2.TakeEpochRequest()).epoch
            staged = produce_pb2.StagedSet(
                token=kind.encode().ljust(16), epoch=epoch, query_id=QUERY, batch_id=0, run_id="new"
            )
            with Producer(queue=queue, staged=staged, connection=direct) as producer:
                producer.send_batch(pa.record_batch({"value": [b"new"]})).result(_PATIENCE_S)
        assert held.goes_on() == error
    tokens = [produce_pb2.StagedToken(token=staged.token, rows=1)]
    request = produce_pb2.CommitStagedRequest(
        tokens=tokens, target=queue, rows=1, owner=TARGET, version=0, run_id="new"
    )
    direct.call("CommitStaged", request)
    assert _drain(broker, queue) == [b"new"]


def test_a_reader_that_was_replaced_can_neither_read_nor_acknowledge(
    broker: LocalBroker, direct: Connection
) -> None:
    queue = "pauses.reader"
    _fill(broker, queue, 5)
    with contextlib.closing(Held(broker, "reader", queue)) as held:
        with held.stopped():
            run = Run(direct)
            who = subscribe_pb2.ConsumerRef(destination=queue, consumer="holder", run=run.number())
            plan = direct.call(
                "Plan", subscribe_pb2.PlanRequest(who=who, start=Positions(), max_rows=5, max_bytes=1 << 20)
            )
            who.cluster_id, who.destination_id, who.incarnation = (
                plan.cluster_id,
                plan.destination_id,
                plan.incarnation,
            )
            wait_until(lambda: not _plan_is_empty(direct, who, plan), _PATIENCE_S)
        assert held.goes_on() in ("RunFenced", "IncarnationSuperseded")
        assert _stats(direct, queue).depth_rows == 5
        run.close()


def _plan_is_empty(
    direct: Connection, who: subscribe_pb2.ConsumerRef, plan: subscribe_pb2.PlanResponse
) -> bool:
    opened = direct.call(
        "OpenRange", subscribe_pb2.OpenRangeRequest(who=who, start=Positions(), end=plan.end)
    )
    return not any(part.rows for part in opened.parts)
