"""Plans, ranges read with credit, and runs: what a Spark query does, on the bare wire."""

from __future__ import annotations

import threading
import time
from typing import Any

import grpc
import pytest

from mq_wire import envelope
from mq_wire.v1.subscribe_pb2 import (
    AcknowledgeRangeRequest,
    FetchRequest,
    HoldRunRequest,
    OpenBrowseRequest,
)
from spark_tests.support.waiting import wait_until
from spark_tests.support.wire import Query, Wire, batch_of, error_code, fetched, open_fetch, values_of


def values(messages: Any) -> list[bytes]:
    return [value for message in messages for value in fetched(message)[1].column("value").to_pylist()]


def test_plan_open_fetch_acknowledge(wire: Wire, queue_name: str) -> None:
    publisher = wire.publisher(queue_name)
    for partition in range(4):
        publisher.send(batch_of(values_of(25, 25 * partition)), partition=partition)
    query = Query(wire, queue_name)
    plan = query.plan(max_rows=1000)
    assert (plan.idle, plan.rows) == (False, 100)
    parts = query.open(plan.end)
    assert sum(part.rows for part in parts) == 100
    assert sorted(value for part in parts for value in values(query.fetch(part))) == values_of(100)
    # As often as you like, and always the same.
    assert sorted(value for part in parts for value in values(query.fetch(part))) == values_of(100)
    done = wire.call("AcknowledgeRange", AcknowledgeRangeRequest(who=query.who, end=plan.end))
    assert done.rows == 100
    assert wire.stats(queue_name).depth_rows == 0


def test_only_the_columns_that_are_asked_for_are_sent(wire: Wire, queue_name: str) -> None:
    wire.publisher(queue_name).send(batch_of(values_of(10), key=values_of(10)))
    query = Query(wire, queue_name)
    part = query.open(query.plan().end)[0]
    header, batch = fetched(query.fetch(part, columns=envelope.VALUE).next())
    assert header.columns == envelope.VALUE
    assert batch.schema.names == ["value"]


def test_fetch_stops_where_credit_ends_and_goes_on_with_more(wire: Wire, queue_name: str) -> None:
    wire.publisher(queue_name).send(batch_of(values_of(100)))
    query = Query(wire, queue_name)
    part = query.open(query.plan().end)[0]
    stream = query.fetch(part, rows=20, batch_rows_max=10)
    assert values([stream.next(), stream.next()]) == values_of(20)
    arrived = threading.Event()
    rest: list[bytes] = []

    def read() -> None:
        for message in stream:
            rest.extend(values([message]))
            arrived.set()

    reader = threading.Thread(target=read)
    reader.start()
    # Nothing may come without credit. Time proves little, but a broker that ignores credit sends within
    # microseconds.
    assert not arrived.wait(0.2)
    stream.put(FetchRequest(credit_rows=80))
    reader.join(10)
    assert rest == values_of(80, 20)


def test_fetch_without_hope_for_credit_is_an_error_not_a_hang(wire: Wire, queue_name: str) -> None:
    wire.publisher(queue_name).send(batch_of(values_of(100)))
    query = Query(wire, queue_name)
    stream = query.fetch(query.open(query.plan().end)[0], rows=20, batch_rows_max=10)
    stream.end()
    with pytest.raises(grpc.RpcError) as caught:
        list(stream)
    assert error_code(caught.value) == "INVALID_REQUEST"


def test_credit_that_just_suffices_needs_no_more(wire: Wire, queue_name: str) -> None:
    wire.publisher(queue_name).send(batch_of(values_of(100)))
    query = Query(wire, queue_name)
    assert values(query.fetch(query.open(query.plan().end)[0], rows=100, batch_rows_max=10)) == values_of(100)


def test_a_fetch_begins_with_open(wire: Wire) -> None:
    stream = wire.stream("Fetch")
    stream.put(FetchRequest(credit_rows=5))
    with pytest.raises(grpc.RpcError) as caught:
        stream.next()
    assert error_code(caught.value) == "INVALID_REQUEST"


def test_browse_consumes_nothing(wire: Wire, queue_name: str) -> None:
    wire.publisher(queue_name).send(batch_of(values_of(50)))
    view = wire.call("OpenBrowse", OpenBrowseRequest(destination=queue_name))
    found = []
    for part in view.parts:
        found += values(
            open_fetch(
                wire, 1000, browse=view.browse, partition=part.partition, first=part.first, last=part.last
            )
        )
    assert found == values_of(50)
    assert wire.stats(queue_name).ready_rows == 50


def test_a_plan_waits_for_rows_and_comes_back_as_soon_as_there_are_some(wire: Wire, queue_name: str) -> None:
    query = Query(wire, queue_name)
    assert query.plan().idle
    plans: list[Any] = []
    waiter = threading.Thread(target=lambda: plans.append(query.plan(wait_ms=15_000)))
    began = time.monotonic()
    waiter.start()
    wire.publisher(queue_name).send(batch_of(values_of(10)))
    waiter.join(20)
    assert plans[0].rows == 10
    assert time.monotonic() - began < 10


def test_a_plan_that_waits_in_vain_is_idle(wire: Wire, queue_name: str) -> None:
    query = Query(wire, queue_name)
    began = time.monotonic()
    assert query.plan(wait_ms=150).idle
    assert time.monotonic() - began >= 0.15


def test_runs_have_numbers_that_grow(wire: Wire) -> None:
    streams = [wire.hold(HoldRunRequest()) for _ in range(2)]
    first = next(streams[0]).run
    streams.append(wire.hold(HoldRunRequest()))
    assert 0 < first < next(streams[2]).run


def test_what_a_run_planned_and_did_not_read_goes_back_when_it_ends(wire: Wire, queue_name: str) -> None:
    wire.publisher(queue_name).send(batch_of(values_of(10)))
    query = Query(wire, queue_name)
    query.plan()
    assert wire.stats(queue_name).assigned_rows == 10
    query.run_stream.cancel()
    wait_until(lambda: wire.stats(queue_name).ready_rows == 10)


def test_a_run_that_is_held_again_survives_the_end_of_its_first_stream(wire: Wire, queue_name: str) -> None:
    wire.publisher(queue_name).send(batch_of(values_of(10)))
    query = Query(wire, queue_name)
    query.plan()
    again = wire.hold(HoldRunRequest(run=query.run))
    assert next(again).run == query.run
    query.run_stream.cancel()
    # The end of the first stream has been seen when a later one's has.
    probe = Query(wire, queue_name + ".probe")
    wire.publisher(queue_name + ".probe").send(batch_of(values_of(1)))
    probe.plan()
    probe.run_stream.cancel()
    wait_until(lambda: wire.stats(queue_name + ".probe").ready_rows == 1)
    assert wire.stats(queue_name).assigned_rows == 10
    again.cancel()
    wait_until(lambda: wire.stats(queue_name).ready_rows == 10)
