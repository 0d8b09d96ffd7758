"""Parts of snapshots are cut into pieces: whatever a part holds, what is written is small, and reads back as
it was.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from mq_broker.core import consumer_parts, owners, parts, snapshot
from mq_broker.core.broker import Broker
from mq_broker.core.commands import Settings
from mq_broker.core.handlers.choosing import PLAN_BYTES_MAX
from mq_broker.core.model.audit import AuditMemory, ProducerMark, Range
from mq_broker.core.model.counts import RowCounts
from mq_broker.core.model.destination import Destination, Partition
from mq_broker.core.model.durable_consumer import Consumer, Plan, end_of, packed
from mq_broker.core.model.facets import Facets
from mq_broker.core.model.log import FRAME, KeptPlace
from mq_broker.core.model.markers import Marker
from mq_broker.core.model.query import Query, Reader
from mq_broker.core.model.selection import Selection
from mq_broker.core.model.staged import StagedSet
from mq_broker.core.model.state import State
from mq_broker.core.model.subscription import Ended
from mq_broker.journal.snapshots import PART_BYTES_MAX
from mq_wire.limits import (
    AUDIT_RANGES,
    ID_BYTES_MAX,
    NAME_BYTES_MAX,
    PARTITIONS_MAX,
    PRIORITIES,
    RECORDS_ROWS_MAX,
)
from mq_wire.store.v1 import store_pb2 as store
from mq_wire.v1.produce_pb2 import OpenProducerRequest
from spark_tests.support.chunks import PIECE_BYTES, chunks_of
from spark_tests.support.worlds.dumps import check_same, dump_broker
from spark_tests.support.worlds.lists import CLUSTER, ListSink, counted_ids
from spark_tests.support.worlds.scenes import Scene

MEMORY = AuditMemory(1000, 200_000)
LIMITS = Settings()
ID, NAME, LARGE = "i" * ID_BYTES_MAX, "n" * NAME_BYTES_MAX, (1 << 63) - 1
#: What a piece takes at most: it is full, or one element.
BOUND = max(parts.PIECE_BYTES, parts.ELEMENT_BYTES_MAX)


def test_what_is_written_is_far_below_what_any_reader_takes() -> None:
    assert PLAN_BYTES_MAX < parts.ELEMENT_BYTES_MAX <= PART_BYTES_MAX // 4
    assert parts.PIECE_BYTES + parts.ELEMENT_BYTES_MAX < PART_BYTES_MAX
    assert PART_BYTES_MAX < (1 << 31) // 16, "protobuf ends at 2 GiB"


@given(
    sizes=st.lists(st.one_of(st.integers(0, 40), st.integers(0, 400)), max_size=60),
    head=st.integers(0, 30),
)
def test_pieces_are_their_elements_in_order_and_small(sizes: list[int], head: int) -> None:
    with chunks_of():
        elements = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
        pieces = list(parts.cut("log/1/2", elements, b"h" * head))
    assert b"".join(body[head:] for _, body in pieces) == b"".join(elements)
    assert all(body[:head] == b"h" * head for _, body in pieces)
    assert all(len(body) <= head + max(PIECE_BYTES, *sizes, 0) for _, body in pieces)
    keys = [key for key, _ in pieces]
    assert keys[0] == "log/1/2"
    assert {parts.part_of(key) for key in keys} == {"log/1/2"}
    assert [parts.number_of(key) for key in keys] == list(range(len(pieces)))


def checked(pieces: Iterator[tuple[str, bytes]]) -> int:
    """Looks at pieces one by one, without keeping them; returns how many there are."""
    sizes = [(key, len(body)) for key, body in pieces]
    assert not [found for found in sizes if found[1] > BOUND]
    return len(sizes)


# -- at the limits that are the default --------------------------------------------------------------------


class ManyMarkers:
    """A bucket that has all markers, of the longest names: nobody can keep an owner's bucket from being this
    one.
    """

    def items(self) -> Iterator[tuple[tuple[str, str], Marker]]:
        marker = Marker(LARGE, ID, LARGE, ID, LARGE)
        return (((f"{number:0{ID_BYTES_MAX}d}", NAME), marker) for number in range(LIMITS.markers_max))


@pytest.mark.slow
def test_all_markers_in_one_bucket() -> None:
    assert checked(parts.cut("markers/0", owners._marker_elements(ManyMarkers()))) > 50  # type: ignore[arg-type]


def largest_query(number: int) -> Query:
    query = Query(f"{number:0{ID_BYTES_MAX}d}", fenced_through=LARGE)
    query.reads = dict.fromkeys(range(LARGE - LIMITS.kept_batches, LARGE), LARGE)
    query.epochs = {f"{target:0{NAME_BYTES_MAX}d}": LARGE for target in range(owners.EPOCH_TARGETS_MAX)}
    query.readers = dict.fromkeys(range(1 << 31, (1 << 31) + 5000), Reader(ID, LARGE, bytes(16)))
    return query


def test_large_queries() -> None:
    found = [
        part.SerializeToString()
        for number in range(20)
        for part in owners._query_parts(largest_query(number))
    ]
    assert max(map(len, found)) < parts.PIECE_BYTES
    assert checked(parts.cut("queries/0", found)) > 5


@pytest.mark.slow
def test_all_destinations_and_producers() -> None:
    state = State(CLUSTER, LIMITS)
    partitions = [Partition(MEMORY)] * PARTITIONS_MAX
    for number in range(LIMITS.destinations_max):
        state.by_number[number] = destination = Destination(
            number, f"{number:0{NAME_BYTES_MAX}d}", bytes(16), []
        )
        destination.partitions = partitions
    state.producers = {
        f"name/{number:0{NAME_BYTES_MAX}d}": LARGE >> 32 for number in range(LIMITS.named_producers_max)
    }
    assert checked(snapshot._export(state, "broker", ("broker",))) > 10


def test_a_log_with_as_many_producers_as_there_may_be() -> None:
    partition = Partition(MEMORY)
    ranges = [Range(LARGE, RECORDS_ROWS_MAX, (1 << 32) - 1, LARGE, LARGE)] * AUDIT_RANGES
    for number in range(3 * LIMITS.anonymous_producers_max):
        producer = f"name/{number:0{NAME_BYTES_MAX}d}"
        partition.log.number_of(producer)
        mark = ProducerMark((1 << 32) - 1, LARGE, LARGE, LARGE)
        for known in ranges:
            mark.note(known)
        partition.audit.restore(producer, mark)
    partition.quarantined = BitMap64(np.arange(0, 1 << 28, 8192).astype(np.uint64))
    assert checked(snapshot._log_pieces("log/1/0", partition)) > 10


def test_rows_of_a_chunk_in_single_frames_of_all_priorities_that_failed_in_all_ways(
    rng: random.Random,
) -> None:
    rows = 1 << 20
    partition = Partition(MEMORY)
    draw = np.random.default_rng(rng.randrange(1 << 30))
    destination = Destination(1, "q", bytes(16), [partition])
    backlog = destination.queue.backlogs[0]
    backlog.append(0, Facets(draw.integers(0, PRIORITIES, rows).astype(np.int8)), rows)
    frames = np.zeros(rows, FRAME)
    frames["base"], frames["span"] = np.arange(rows), 1
    partition.log.restore(frames, {})
    backlog.failed = backlog.handed_out = RowCounts(
        [BitMap64(np.flatnonzero(draw.integers(0, 2, rows)).astype(np.uint64))] * 8
    )
    assert checked(snapshot._rows_pieces("rows/1/0/0", destination, 0, 0)) > 20


def largest_plan(number: int, start: dict[int, int]) -> Plan:
    """Bitmaps as large as a plan may have them, in all partitions."""
    each = PLAN_BYTES_MAX // PARTITIONS_MAX
    offsets = BitMap64(range(0, each, 2))
    assert abs(len(offsets.serialize()) - each) < 64
    assignments = {at: (start.get(at, 0), Selection.of([(4, offsets)])) for at in range(PARTITIONS_MAX)}
    plan = Plan(
        number,
        LARGE,
        LARGE,
        assignments,
        packed(end_of(start, assignments)),
        opened_by_run=LARGE,
        read_by_run=LARGE,
        serial=LARGE,
    )
    plan.batches = {(ID, LARGE - batch) for batch in range(LIMITS.batches_per_plan_max)}
    return plan


def test_a_consumer_with_as_many_plans_of_as_many_partitions_as_there_may_be() -> None:
    destination = Destination(1, "q", bytes(16), [Partition(MEMORY) for _ in range(PARTITIONS_MAX)])
    destination.queue.ended = {
        number.to_bytes(16, "big"): Ended(bytes(16), NAME) for number in range(LIMITS.kept_ended)
    }
    consumer = destination.queue.consumers[bytes(16)] = Consumer(NAME, bytes(16), LARGE, LARGE, LARGE)
    consumer.floor = dict.fromkeys(range(PARTITIONS_MAX), LARGE >> 8)
    at = consumer.floor
    for number in range(1, LIMITS.kept_boundaries + 6):
        plan = largest_plan(number, at)
        consumer.add(plan)
        at = plan.end
        if number == LIMITS.kept_boundaries:
            consumer.forget(number, LIMITS.kept_boundaries)
    assert checked(consumer_parts.export("consumers/1", destination)) >= 6


def test_a_staged_set_of_many_batches_whose_priorities_differ() -> None:
    held = StagedSet(bytes(16), LARGE, ID, LARGE, ID, NAME)
    entry = store.Staged(
        token=bytes(16), query_id=ID, run_id=ID, target=NAME, records=store.Records(rows=RECORDS_ROWS_MAX)
    )
    place, facets = KeptPlace(LARGE, LARGE, 1 << 31, 1), Facets(np.zeros(RECORDS_ROWS_MAX, np.int8))
    for _ in range(500):
        held.add(entry, place, facets, 0)
    assert checked(snapshot._staged_pieces("staged/00", held)) > 10


# -- back again --------------------------------------------------------------------------------------------


def restored(scene: Scene) -> Broker:
    state = scene.broker.state
    snapshot.mark_all(state)
    found, _ = snapshot.take(state, ())
    assert max(parts.number_of(key) for key, _ in found) > 0, "nothing was cut"
    rng = random.Random(len(found))
    rng.shuffle(found)  # unchanged parts lie in several packs, in any order
    broker = Broker(CLUSTER, scene.settings, ListSink(), counted_ids())
    snapshot.restore(broker.state, iter(found))
    return broker


def test_every_kind_of_part_reads_back_from_many_pieces() -> None:
    with chunks_of():
        scene = Scene(3)
        for number in range(6):
            scene.publish(*[4, 9, 0] * 3, partition=number % 3)
        for token in (1, 0x1B, 2):  # in hexadecimal digits, of which some look like a number
            for first in range(0, 12, 2):
                scene.stage(token, first=first, batch=token % 3)
        for number in range(4):
            scene.commit(owner=f"app:{number}", target="q" * number)
            scene.handle(OpenProducerRequest(name=f"p{number}"))
        query = scene.query("night")
        for batch in range(8):
            start = dict(query.next)
            query.plan(max_rows=2)
            query.read(start, query.next, ("q1", batch))
        for _ in range(5):
            scene.query("again and again").plan(max_rows=3)
        session = scene.connect(9)
        for _ in range(3):
            scene.received(session)
            scene.credit(session, 9)
            scene.disconnect(session)
            session = scene.connect(9)
        partition = scene.destination.partitions[0]
        partition.quarantined = BitMap64([0, 2, 3])
        check_same(dump_broker(restored(scene)), dump_broker(scene.broker))
        assert restored(scene).state.by_name["q"].partitions[0].quarantined == partition.quarantined
