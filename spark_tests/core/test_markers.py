"""Commit markers: whose version it was that was committed, how many are remembered, and when they end."""

from __future__ import annotations

import pytest

from mq_broker.core.commands import Settings, Tick
from mq_broker.core.handlers.inventory import PAGE
from mq_broker.core.model.markers import WRITE_MARKER_TTL_US
from mq_wire.errors import BatchMismatch, InvalidRequest, LimitExceeded
from mq_wire.v1 import produce_pb2 as produce
from spark_tests.support.worlds.kept import Kept
from spark_tests.support.worlds.scenes import QUEUE, Scene

APP = "app:load"


def small() -> Scene:
    return Scene(settings=Settings(default_partitions=1, markers_max=2))


@pytest.mark.parametrize("again", ["as it is", "replayed", "from a snapshot"])
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("version", [0, 3])
def test_a_version_of_another_query_is_refused(again: str, keep: bool, version: int) -> None:
    """The checkpoint of a foreachBatch query is deleted: its successor counts from 0 again, and writes other
    rows under used numbers.
    """
    scene = Scene()
    scene.stage(1, query="")
    scene.commit((1, 2), owner=APP, version=3, query_id="q1")
    if again == "replayed":
        scene.broker = scene.replayed()
    elif again == "from a snapshot":
        kept = Kept(scene)
        kept.take()
        scene.broker = kept.restored()
    scene.stage(2, query="")
    with pytest.raises(
        BatchMismatch,
        match=r"comes from query q2, and version 3 was committed by query q1.*txnAppId of its own",
    ):
        scene.commit((2, 2), owner=APP, version=version, query_id="q2", keep_mismatch=keep)
    assert scene.commit((2, 2), owner="app:load2", version=version, query_id="q2").rows == 2
    assert scene.commit((1, 2), owner=APP, version=3, query_id="q1").already_committed


def test_nothing_is_lost_where_a_deleted_checkpoint_meets_its_old_transaction() -> None:
    """queue -> foreachBatch -> queue under one txnAppId and one consumer name; then the checkpoint is
    deleted.
    """
    scene = Scene()
    scene.publish(4, 4)
    old = scene.query("night")
    old.plan(max_rows=2)
    assert len(old.read({}, old.next, ("q1", 0))) == 2
    scene.stage(1, query="", queue="out")
    scene.commit((1, 2), owner=APP, version=0, query_id="q1", target="out")
    old.acknowledge(old.next)
    scene.publish(4, 4)
    new = scene.query("night")
    new.plan(max_rows=2)
    read = [row.value for row in new.read({}, new.next, ("q2", 0))]
    scene.stage(2, query="", queue="out")
    with pytest.raises(BatchMismatch):
        scene.commit((2, 2), owner=APP, version=0, query_id="q2", target="out")
    assert [row.value for row in new.read({}, new.next, ("q2", 0))] == read == [b"0:2", b"0:3"], (
        "they are held until they are written"
    )
    assert scene.commit((2, 2), owner="app:load2", version=0, query_id="q2", target="out").rows == 2


def test_another_count_of_the_same_query_is_kept_where_that_is_wanted() -> None:
    scene = Scene()
    scene.commit(owner=APP, version=3, query_id="q1")
    scene.stage(1, query="")
    with pytest.raises(BatchMismatch, match="batchMismatch=keep"):
        scene.commit((1, 2), owner=APP, version=3, query_id="q1")
    assert scene.commit((1, 2), owner=APP, version=3, query_id="q1", keep_mismatch=True).already_committed


@pytest.mark.parametrize(("first", "second"), [("", "q2"), ("q1", ""), ("", "")])
def test_counts_decide_where_one_side_does_not_say_which_query_it_is(first: str, second: str) -> None:
    scene = Scene()
    scene.commit(owner=APP, version=3, query_id=first)
    assert scene.commit(owner=APP, version=3, query_id=second).already_committed
    scene.stage(1, query="")
    with pytest.raises(BatchMismatch, match="committed with 0 rows and now has 2"):
        scene.commit((1, 2), owner=APP, version=3, query_id=second)
    assert scene.commit((1, 2), owner=APP, version=3, query_id=second, keep_mismatch=True).already_committed


def test_the_owner_of_a_streaming_sink_is_its_query() -> None:
    scene = Scene()
    with pytest.raises(InvalidRequest, match="they must be the same"):
        scene.commit(query_id="q2")
    scene.commit()
    assert scene.broker.state.markers["query:q1", ""].query_id == "q1"


@pytest.mark.parametrize("owner", ["query:q9", "app:new", "someone:else"])
def test_as_many_owners_as_may_be_are_remembered_and_those_go_on(owner: str) -> None:
    scene = small()
    scene.commit()
    scene.commit(owner=APP)
    scene.stage(1, query="q9" if owner == "query:q9" else "")
    with pytest.raises(
        LimitExceeded,
        match=rf"{owner} would be one more than markers_max = 2 .*mq markers forget OWNER TARGET",
    ):
        scene.commit((1, 2), owner=owner)
    with pytest.raises(LimitExceeded):
        scene.commit(target=QUEUE)
    assert not scene.commit(version=1).already_committed
    assert not scene.commit(owner=APP, version=1).already_committed
    scene.commit(owner="write:1")
    scene.handle(produce.ForgetMarkerRequest(owner=APP))
    assert scene.commit((1, 2), owner=owner).rows == 2


def test_writes_have_a_bound_of_their_own() -> None:
    scene = small()
    for owner in ("write:1", "write:2", "query:q1", APP):
        scene.commit(owner=owner)
    with pytest.raises(LimitExceeded, match="2 batch writes are remembered"):
        scene.commit(owner="write:3")
    scene.handle(produce.ForgetMarkerRequest(owner="write:1"))
    scene.commit(owner="write:3")


@pytest.mark.parametrize("restart", [False, True])
def test_the_marker_of_a_write_ends_after_a_day_and_others_stay(restart: bool) -> None:
    scene = Scene()
    scene.commit(owner="write:old")
    scene.commit()
    scene.commit(owner=APP)
    scene.now_us += WRITE_MARKER_TTL_US // 2
    scene.commit(owner="write:young")
    if restart:
        kept = Kept(scene)
        kept.take()
        scene.broker = kept.restored()
    scene.now_us += WRITE_MARKER_TTL_US // 2
    scene.handle(Tick())
    assert len(scene.broker.state.markers) == 4
    scene.now_us += 1
    scene.handle(Tick())
    assert {owner for (owner, _), _ in scene.broker.state.markers.items()} == {"write:young", "query:q1", APP}


def test_of_many_writes_a_tick_ends_some_and_the_next_the_others() -> None:
    scene = Scene()
    for number in range(600):
        scene.commit(owner=f"write:{number}")
    scene.now_us += WRITE_MARKER_TTL_US + 1
    left = []
    while scene.broker.state.markers:
        scene.handle(Tick())
        left.append(len(scene.broker.state.markers))
    assert left == [344, 88, 0]


def test_markers_of_unknown_age_begin_to_age_when_they_are_first_seen() -> None:
    """The version before this one did not write down when it was."""
    scene = Scene()
    scene.commit(owner="write:1")
    markers = scene.broker.state.markers
    markers.passing[next(iter(markers.passing))] = 0
    scene.handle(Tick())
    assert len(markers) == 1
    scene.now_us += WRITE_MARKER_TTL_US + 1
    scene.handle(Tick())
    assert not len(markers)


def test_of_sets_that_expire_a_tick_takes_some_and_the_next_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mq_broker.core.handlers.staging._EXPIRED_SETS_MAX", 2)
    scene = Scene(settings=Settings(default_partitions=1, staged_ttl_us=1000))
    for number in range(3):
        scene.stage(number)
    scene.now_us += 2000
    scene.handle(Tick())
    assert len(scene.broker.state.staged) == 1
    scene.handle(Tick())
    assert not len(scene.broker.state.staged)


def test_operators_see_the_markers_page_by_page() -> None:
    scene = Scene()
    for number in range(PAGE + 5):
        scene.commit(owner=f"app:{number}", version=number)
    scene.commit(owner="query:q1", version=7, run_id="r1", target=QUEUE)
    scene.commit(owner="query:q1", version=8)
    found = []
    request = produce.ListMarkersRequest()
    pages = 0
    while True:
        page = scene.handle(request)
        found += page.markers
        pages += 1
        if not page.more:
            break
        request = produce.ListMarkersRequest(after_owner=found[-1].owner, after_target=found[-1].target)
    assert pages == 2
    assert len(found) == len({(known.owner, known.target) for known in found}) == PAGE + 7
    to_queue, to_all = sorted(
        scene.handle(produce.ListMarkersRequest(prefix="query:")).markers, key=lambda known: known.version
    )
    assert (to_queue.owner, to_queue.target, to_queue.version, to_queue.rows) == ("query:q1", QUEUE, 7, 0)
    assert (to_queue.run_id, to_queue.query_id, to_queue.time_us) == ("r1", "q1", scene.now_us)
    assert (to_all.target, to_all.version) == ("", 8)


def test_targets_of_one_owner_come_page_by_page_too() -> None:
    scene = Scene()
    for number in range(3):
        scene.commit(owner="app:x", target=f"t{number}")
    page = scene.handle(produce.ListMarkersRequest(after_owner="app:x", after_target="t1"))
    assert [known.target for known in page.markers] == ["t2"]


def test_forgetting_what_is_not_there_writes_nothing() -> None:
    scene = Scene()
    scene.commit()
    before = len(scene.sink.entries)
    scene.handle(produce.ForgetMarkerRequest(owner="query:q1", target=QUEUE))
    assert len(scene.sink.entries) == before


def test_pages_of_markers_keep_their_order_while_markers_come_and_go() -> None:
    scene = Scene()

    def listed(prefix: str = "") -> list[str]:
        return [known.owner for known in scene.handle(produce.ListMarkersRequest(prefix=prefix)).markers]

    for number in range(150):
        scene.commit(owner=f"app:{number}", version=1)
    assert len(listed()) == 150
    for number in range(0, 150, 3):
        scene.handle(produce.ForgetMarkerRequest(owner=f"app:{number}"))
    for number in range(150, 200):
        scene.commit(owner=f"app:{number}", version=1)
        scene.commit(owner=f"app:{number}", version=2)
    left = [f"app:{number}" for number in range(200) if number >= 150 or number % 3]
    assert sorted(listed()) == sorted(left)
    assert sorted(listed("app:19")) == sorted(owner for owner in left if owner.startswith("app:19"))
    fresh = Scene()
    for owner in left:
        fresh.commit(owner=owner, version=2)
    kept = [known.owner for known in fresh.handle(produce.ListMarkersRequest()).markers]
    assert listed() == kept
