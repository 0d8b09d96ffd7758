"""Bytes that rot under a running broker: exactly their rows are set aside, said out loud and counted;
everything else goes on.
"""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from mq_wire.v1.consume_pb2 import ConsumeRequest
from mq_wire.v1.subscribe_pb2 import OpenBrowseRequest, OpenRangeRequest, ReleaseConsumerRequest
from spark_tests.support.rotten import BROKEN, FRAMES, LOST, ROWS, WHOLE
from spark_tests.support.waiting import wait_until
from spark_tests.support.wire import Query, Wire, consumed, error_code, fetched, open_consumer, open_fetch

if TYPE_CHECKING:
    from mq_broker import LocalBroker


def test_a_consumer_gets_everything_else(broker: LocalBroker, rotten: Wire) -> None:
    stream = open_consumer(rotten, "q", rows=FRAMES * ROWS)
    values: list[bytes] = []
    while len(values) < len(WHOLE):
        _, batch = consumed(stream.next())
        assert batch is not None
        values += batch.column("value").to_pylist()
    assert values == WHOLE
    wait_until(lambda: rotten.stats("q").quarantined_rows)
    counts = rotten.stats("q")
    assert (counts.quarantined_rows, counts.assigned_rows, counts.ready_rows) == (ROWS, len(WHOLE), 0)
    assert f"offsets {BROKEN[0]}-{BROKEN[-1]} of partition 0 of 'q'" in broker.stderr()
    assert "mq verify" in broker.stderr()


def test_credit_for_rows_that_never_came_is_not_lost(rotten: Wire) -> None:
    """As many rows are under way as there is credit; if the damaged ones kept theirs, the stream would stand
    still for ever.
    """
    stream = open_consumer(rotten, "q", rows=ROWS)
    values: list[bytes] = []
    while len(values) < len(WHOLE):
        _, batch = consumed(stream.next())
        assert batch is not None
        values += batch.column("value").to_pylist()
        stream.put(ConsumeRequest(credit={"rows": batch.num_rows, "bytes": batch.nbytes}))
    assert values == WHOLE


def test_what_is_set_aside_stays_so_after_a_crash(broker: LocalBroker, rotten: Wire) -> None:
    stream = open_consumer(rotten, "q", rows=FRAMES * ROWS)
    wait_until(lambda: rotten.stats("q").quarantined_rows)
    # A snapshot follows at once: without, the next start would have to read the damaged turn, and be refused.
    wait_until(lambda: list(pathlib.Path(broker.data_dir).glob("snapshots/manifest-*.mqm")))
    stream.cancel()
    broker.kill()
    broker.start()
    with Wire(broker.address) as wire:
        counts = wire.stats("q")
        assert (counts.quarantined_rows, counts.ready_rows) == (ROWS, len(WHOLE))


def test_a_range_names_what_is_lost_and_reads_on_where_that_is_accepted(rotten: Wire) -> None:
    query = Query(rotten, "q")
    plan = query.plan()
    assert plan.rows == FRAMES * ROWS
    (part,) = query.open(plan.end)
    for _ in range(2):  # found, and known already
        with pytest.raises(grpc.RpcError, match=LOST) as refused:
            list(query.fetch(part))
        assert error_code(refused.value) == "DATA_LOST"
    messages = [fetched(message) for message in query.fetch(part, accept_data_loss=True)]
    assert [v for _, batch in messages for v in batch.column("value").to_pylist()] == WHOLE
    numbers = [
        number
        for header, _ in messages
        for number in range(header.first_delivery, header.first_delivery + header.rows)
    ]
    assert numbers == [number for number in range(FRAMES * ROWS) if number not in BROKEN], (
        "numbers stay whose they were"
    )
    again = OpenRangeRequest(who=query.who, start=query.start, end=plan.end)
    with pytest.raises(grpc.RpcError, match=LOST):
        rotten.call("OpenRange", again)
    again.accept_data_loss = True
    assert rotten.call("OpenRange", again).data_loss


def test_a_range_that_is_read_for_the_first_time_reads_on_too(rotten: Wire) -> None:
    query = Query(rotten, "q")
    (part,) = query.open(query.plan().end)
    messages = [fetched(message) for message in query.fetch(part, accept_data_loss=True)]
    assert [v for _, batch in messages for v in batch.column("value").to_pylist()] == WHOLE


def test_rows_of_a_plan_that_comes_back_do_not_come_back_damaged(rotten: Wire) -> None:
    query = Query(rotten, "q")
    (part,) = query.open(query.plan().end)
    with pytest.raises(grpc.RpcError, match=LOST):
        list(query.fetch(part))
    rotten.call("ReleaseConsumer", _release(query))
    counts = rotten.stats("q")
    assert (counts.ready_rows, counts.quarantined_rows) == (len(WHOLE), ROWS)


def _release(query: Query) -> Any:
    return ReleaseConsumerRequest(destination="q", consumer=query.who.incarnation.hex())


def test_browsing_names_what_is_lost(rotten: Wire) -> None:
    opened = rotten.call("OpenBrowse", OpenBrowseRequest(destination="q"))
    (part,) = opened.parts
    asked = {"browse": opened.browse, "partition": 0, "first": part.first, "last": part.last}
    with pytest.raises(grpc.RpcError, match=LOST):
        list(open_fetch(rotten, 1000, **asked))
    messages = [fetched(message) for message in open_fetch(rotten, 1000, accept_data_loss=True, **asked)]
    assert [v for _, batch in messages for v in batch.column("value").to_pylist()] == WHOLE
