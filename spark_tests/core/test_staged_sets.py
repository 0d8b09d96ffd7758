"""Staged sets, writer epochs and commit markers: docs/rules.md, "Staged sets" and "Commit markers"."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from mq_broker.core.commands import Publish, Settings, Tick
from mq_broker.core.model.batches import Batches
from mq_broker.core.model.facets import Facets
from mq_broker.core.model.log import KeptPlace
from mq_wire.errors import (
    BatchMismatch,
    CheckpointTooOld,
    EpochFenced,
    InvalidRequest,
    LimitExceeded,
    OutOfOrder,
    OutOfWindow,
    SequenceReused,
    StagedSetUnknown,
    Unsupported,
)
from mq_wire.limits import AUDIT_RANGES
from mq_wire.store.v1.store_pb2 import Records, Staged
from mq_wire.v1 import produce_pb2 as produce
from mq_wire.v1.admin_pb2 import DeleteDestinationRequest, StatsRequest
from spark_tests.support.worlds import commands
from spark_tests.support.worlds.scenes import QUEUE, Scene


def token(number: int) -> bytes:
    return number.to_bytes(16, "big")


def values(scene: Scene, partition: int = 0) -> list[bytes]:
    session = scene.connect(1000)
    rows = [row.value for row in scene.received(session) if row.partition == partition]
    scene.disconnect(session)
    return rows


def test_staged_rows_are_invisible_until_committed_and_then_come_in_order() -> None:
    scene = Scene(2)
    scene.stage(1)
    scene.stage(2, partition=1)
    scene.stage(1, first=2)
    assert scene.handle(StatsRequest(destination=QUEUE)).destination.staged_rows == 6
    assert scene.destination.enqueued == 0
    scene.publish(4)
    reply = scene.commit((2, 2), (1, 4))
    assert (reply.already_committed, reply.rows) == (False, 6)
    assert values(scene) == [b"0:0", b"0", b"1", b"2", b"3"]
    assert values(scene, partition=1) == [b"0", b"1"]
    assert scene.handle(StatsRequest(destination=QUEUE)).destination.staged_rows == 0


def test_mixed_priorities_survive_the_commit_and_a_restart_before_it() -> None:
    scene = Scene()
    scene.stage(1, values=[(b"low", 1), (b"high", 9), (b"mid", 4)])
    scene.broker = scene.replayed()
    scene.commit((1, 3))
    assert values(scene) == [b"high", b"mid", b"low"]


def test_a_batch_staged_again_is_recognised() -> None:
    scene = Scene()
    assert scene.stage(1).duplicates == 0
    scene.stage(1, first=2)
    assert scene.stage(1).duplicates == 2
    assert scene.commit((1, 4)).rows == 4


def test_sequences_are_those_of_the_token_and_partition() -> None:
    scene = Scene(2)
    scene.stage(1)
    scene.stage(1, partition=1)
    with pytest.raises(OutOfOrder, match="misses sequence 2, got 4"):
        scene.stage(1, first=4)
    with pytest.raises(SequenceReused):
        scene.stage(1, values=[(b"other", 4)])
    with pytest.raises(SequenceReused):
        scene.stage(1, first=1, rows=1)
    for number in range(AUDIT_RANGES):
        scene.stage(1, first=2 + number, rows=1)
    with pytest.raises(OutOfWindow):
        scene.stage(1)


def test_a_set_that_is_gone_does_not_begin_in_its_middle() -> None:
    scene = Scene()
    scene.stage(1)
    scene.handle(produce.DiscardStagedRequest(tokens=[token(1)]))
    with pytest.raises(StagedSetUnknown):
        scene.stage(1, first=2)


@pytest.mark.parametrize("other", [{"epoch": 2}, {"batch": 1}, {"query": "q2"}])
def test_a_token_belongs_to_one_writer(other: dict[str, Any]) -> None:
    scene = Scene()
    scene.stage(1)
    with pytest.raises(InvalidRequest, match="new random token"):
        scene.stage(1, first=2, **other)
    assert scene.commit((1, 2)).rows == 2


def test_what_a_set_cannot_hold_is_refused() -> None:
    scene = Scene()
    with pytest.raises(InvalidRequest, match="3 bytes"):
        scene.handle(
            commands.publish(QUEUE, 0, ("", 0), 0, [(b"", 4)], staged=produce.StagedSet(token=b"abc"))
        )
    command = commands.publish(QUEUE, 0, ("", 0), 0, [(b"", 4)], staged=produce.StagedSet(token=token(1)))
    command.header.skip = True
    with pytest.raises(InvalidRequest, match="no gaps"):
        scene.handle(command)
    command.header.skip, command.header.schema_id = False, 7
    with pytest.raises(Unsupported):
        scene.handle(Publish(command.header, command.records, command.records_crc, Facets(4)))
    assert not scene.broker.state.staged


def test_a_commit_names_sets_that_are_there_and_whole_or_nothing_happens() -> None:
    scene = Scene()
    scene.stage(1)
    scene.stage(2)
    for wrong in ([(1, 2), (9, 2)], [(1, 2), (2, 1)]):
        with pytest.raises(StagedSetUnknown, match="nothing was committed"):
            scene.commit(*wrong)
    with pytest.raises(InvalidRequest, match="the sums must agree"):
        scene.commit((1, 2), (2, 2), rows=3)
    with pytest.raises(InvalidRequest, match="twice"):
        scene.commit((1, 2), (1, 2))
    assert scene.destination.enqueued == 0
    assert scene.commit((1, 2), (2, 2)).rows == 4


def test_the_same_version_again_is_a_no_op_also_when_its_tokens_are_gone() -> None:
    scene = Scene()
    scene.stage(1, batch=3)
    scene.commit((1, 2), version=3, run_id="r1")
    scene.broker = scene.replayed()
    reply = scene.commit((1, 2), version=3, run_id="r1")
    assert (reply.already_committed, reply.rows) == (True, 2)
    assert scene.destination.enqueued == 2


def test_the_same_version_with_other_rows_vanishes_only_where_that_is_wanted() -> None:
    scene = Scene()
    scene.stage(1, batch=3)
    scene.commit((1, 2), version=3)
    scene.stage(2, rows=3, batch=3)
    with pytest.raises(BatchMismatch, match=r"committed with 2 rows and now has 3.*batchMismatch=keep"):
        scene.commit((2, 3), version=3)
    assert scene.broker.state.staged
    assert scene.commit((2, 3), version=3, keep_mismatch=True).rows == 2
    assert not scene.broker.state.staged
    assert scene.destination.enqueued == 2


def test_a_lower_version_is_refused_and_forgetting_the_marker_allows_it() -> None:
    scene = Scene()
    scene.commit(version=5)
    scene.stage(1, batch=4)
    with pytest.raises(CheckpointTooOld, match="older than the queue"):
        scene.commit((1, 2), version=4)
    scene.handle(produce.ForgetMarkerRequest(owner="query:q1"))
    assert scene.commit((1, 2), version=4).rows == 2


def test_markers_are_those_of_owner_and_target() -> None:
    scene = Scene()
    scene.commit(version=5)
    assert not scene.commit(version=1, target=QUEUE).already_committed
    assert not scene.commit(version=1, owner="app:load").already_committed
    assert not scene.commit(version=1, owner="query:q2").already_committed
    assert scene.commit(version=5).already_committed


def test_without_an_owner_nothing_is_remembered() -> None:
    scene = Scene()
    for number in (1, 2):
        scene.stage(number, query="")
        assert not scene.commit((number, 2), owner="").already_committed
    assert not scene.broker.state.markers
    before = len(scene.sink.entries)
    scene.commit(owner="")
    assert len(scene.sink.entries) == before


def test_a_target_holds_for_all_rows() -> None:
    scene = Scene()
    scene.stage(1)
    scene.stage(1, queue="other")
    for target in (QUEUE, "nowhere"):
        with pytest.raises(InvalidRequest, match="other destinations"):
            scene.commit((1, 4), target=target)
    assert scene.commit((1, 4)).rows == 4
    assert scene.broker.state.by_name["other"].enqueued == 2


def test_a_commit_discards_all_other_sets_of_that_and_earlier_batches_of_the_query() -> None:
    scene = Scene()
    for number, batch in ((1, 3), (2, 3), (3, 2), (4, 4)):
        scene.stage(number, batch=batch)
    scene.stage(5, query="q2", batch=3)
    scene.commit((1, 2), version=3)
    assert set(scene.broker.state.staged) == {token(4), token(5)}


def test_a_committed_set_is_sealed() -> None:
    scene = Scene()
    scene.stage(1)
    scene.commit((1, 2))
    assert scene.handle(produce.DiscardStagedRequest(tokens=[token(1)])).rows == 0
    assert scene.destination.enqueued == 2
    with pytest.raises(StagedSetUnknown):
        scene.stage(1, first=2)


@pytest.mark.parametrize("again", ["commit", "discard"])
def test_a_token_named_twice_by_a_commit_or_abort_is_dropped_once(again: str) -> None:
    scene = Scene()
    scene.commit(version=3)
    scene.stage(1, batch=3)
    if again == "commit":
        scene.commit((1, 0), (1, 0), version=3)
    else:
        assert scene.handle(produce.DiscardStagedRequest(tokens=[token(1), token(1)])).rows == 2
    assert not scene.broker.state.staged
    assert not scene.replayed().state.staged


def test_a_newer_writer_discards_what_older_ones_staged_and_they_are_refused_also_after_a_restart() -> None:
    scene = Scene()
    scene.stage(1, epoch=1, batch=0)
    scene.stage(2, epoch=1, query="q2")
    scene.stage(3, epoch=2, batch=1)
    assert set(scene.broker.state.staged) == {token(2), token(3)}
    scene.handle(produce.DiscardStagedRequest(tokens=[token(3)]))
    scene.broker = scene.replayed()
    for first in (0, 2):
        with pytest.raises(EpochFenced, match="epoch 1 of query q1 is over, 2 is"):
            scene.stage(1, epoch=1, first=first)


@pytest.mark.parametrize("again", [False, True], ids=["committed", "committed again"])
def test_a_task_that_lost_writes_nothing_once_its_batch_is_committed(again: bool) -> None:
    """Speculation and retries leave attempts behind that go on: their rows would stay staged, since nobody
    commits them ever.
    """
    scene = Scene()
    scene.stage(1, epoch=1)
    scene.commit((1, 2))
    if again:  # the commit log was not written: the batch runs again, under an epoch of its own
        scene.stage(2, epoch=2)
        assert scene.commit((2, 2)).already_committed
    scene.broker = scene.replayed()
    with pytest.raises(EpochFenced, match="or whose batch is committed"):
        scene.stage(3, epoch=2 if again else 1)
    assert not scene.broker.state.staged
    scene.stage(4, epoch=3, batch=1)
    assert scene.commit((4, 2), version=1).rows == 2


def test_the_highest_epoch_of_all_ends_too() -> None:
    scene = Scene()
    scene.stage(1, epoch=2**64 - 1)
    assert scene.commit((1, 2)).rows == 2


def test_batch_writes_without_a_query_do_not_fence_each_other() -> None:
    scene = Scene()
    scene.stage(1, query="", epoch=1)
    scene.stage(2, query="", epoch=2)
    scene.stage(1, query="", epoch=1, first=2)
    assert scene.commit((1, 4), (2, 2), owner="app:load").rows == 6


def test_epochs_only_grow_also_over_a_restart() -> None:
    scene = Scene()
    epochs = [scene.handle(produce.TakeEpochRequest()).epoch, scene.run()]
    scene.broker = scene.replayed()
    epochs.append(scene.handle(produce.TakeEpochRequest()).epoch)
    assert epochs == [1, 2, 3]


def test_a_set_without_any_sign_of_life_expires_and_one_with_does_not() -> None:
    scene = Scene(settings=Settings(default_partitions=1, staged_ttl_us=1000))
    scene.stage(1)
    scene.stage(2, query="q2")
    scene.now_us += 800
    scene.stage(2, query="q2", first=2)
    scene.now_us += 800
    scene.handle(Tick())
    assert set(scene.broker.state.staged) == {token(2)}


def test_a_deleted_queue_takes_its_staged_sets_along() -> None:
    scene = Scene()
    scene.stage(1)
    scene.stage(2, queue="other")
    scene.handle(DeleteDestinationRequest(name=QUEUE))
    assert set(scene.broker.state.staged) == {token(2)}
    with pytest.raises(StagedSetUnknown):
        scene.commit((1, 2))


def test_committed_rows_are_ready_for_connected_consumers_at_once() -> None:
    scene = Scene()
    session = scene.connect(10)
    scene.stage(1)
    assert scene.received(session) == []
    scene.commit((1, 2))
    assert [row.value for row in scene.received(session)] == [b"0", b"1"]


def test_a_commit_of_very_many_sets_is_refused_before_anything_is_looked_at() -> None:
    scene = Scene(settings=Settings(default_partitions=1, commit_sets_max=2))
    for token in range(1, 4):
        scene.stage(token, rows=1)
    entries = scene.broker.ledger.entries
    with pytest.raises(LimitExceeded, match="commit_sets_max"):
        scene.commit((1, 1), (2, 1), (3, 1))
    assert scene.broker.ledger.entries == entries
    assert scene.commit((1, 1), (2, 1)).rows == 2


def test_many_batches_are_committed_as_they_would_be_one_by_one() -> None:
    """Sets that share partitions, in another order than they were staged in, with and without mixed
    priorities.
    """
    scene, rng = Scene(3), random.Random(1)
    first: Counter[tuple[int, int]] = Counter()
    expected: dict[int, list[tuple[bytes, int]]] = {0: [], 1: [], 2: []}
    staged: dict[int, list[tuple[int, list[tuple[bytes, int]]]]] = {1: [], 2: [], 3: []}
    for number in range(60):
        whose, partition = rng.randint(1, 3), rng.randrange(3)
        priorities = [rng.randrange(10)] * 3 if rng.random() < 0.5 else rng.sample(range(10), 3)
        rows = [(f"{number}:{at}".encode(), priority) for at, priority in enumerate(priorities)]
        scene.stage(whose, partition=partition, first=first[whose, partition], values=rows)
        first[whose, partition] += 3
        staged[whose].append((partition, rows))
    order = (2, 3, 1)
    for whose in order:
        for partition, rows in staged[whose]:
            expected[partition] += rows
    scene.commit(*((whose, 3 * len(staged[whose])) for whose in order))
    scene.broker = scene.replayed()
    session = scene.connect(1000)
    found: dict[int, dict[int, bytes]] = {0: {}, 1: {}, 2: {}}
    for row in scene.received(session):
        found[row.partition][row.offset] = row.value
    for partition, rows in expected.items():
        assert [value for _, value in sorted(found[partition].items())] == [value for value, _ in rows]


def test_a_batch_takes_little_memory_and_keeps_no_request() -> None:
    batches = Batches()
    entry = Staged(destination=1, partition=1, records=Records(rows=2), query_id="q" * 500)
    request = np.arange(1_000_000, dtype=np.int8)
    for number in range(1000):
        entry.first_sequence = 2 * number
        batches.add(entry, KeptPlace(1, number, 10, 0), Facets(request[:2]))
    assert batches.table.itemsize < 100
    assert all(known.base is None for known in batches.priorities.values())
    assert [first for first, _, _ in batches.newest(1, 1)] == list(range(1998, 1998 - 2 * AUDIT_RANGES, -2))
    assert (batches.next_sequence(1, 1), batches.next_sequence(1, 2)) == (2000, 0)
