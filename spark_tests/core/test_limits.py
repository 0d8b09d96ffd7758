"""Everything that a client can make grow is filled up: the next one is refused with an error that says what
to do, what is there goes on, and a restart with all of it finds it again.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mq_broker.core import owners, snapshot
from mq_broker.core.commands import CloseRun, HoldRun, Settings, Tick
from mq_broker.core.model.counts import COUNT_MAX
from mq_broker.core.model.state import State
from mq_wire.errors import Busy, InvalidRequest, LimitExceeded, MqError
from mq_wire.v1 import produce_pb2 as produce
from mq_wire.v1.admin_pb2 import CreateDestinationRequest, DeleteDestinationRequest
from mq_wire.v1.produce_pb2 import OpenProducerRequest, TakeEpochRequest
from mq_wire.v1.subscribe_pb2 import OpenBrowseRequest, PlanRequest, ReleaseConsumerRequest
from spark_tests.support.worlds import commands
from spark_tests.support.worlds.dumps import check_same, dump_broker
from spark_tests.support.worlds.kept import Kept
from spark_tests.support.worlds.scenes import Query, Scene

#: Snapshots in small pieces.
pytestmark = pytest.mark.usefixtures("small_chunks")

SMALL = Settings(
    default_partitions=1,
    destinations_max=4,
    partitions_total_max=6,
    named_producers_max=3,
    anonymous_producers_max=3,
    staged_sets_max=4,
    staged_batches_max=6,
    markers_max=3,
    browses_max=2,
    consumers_max=4,
    queries_max=4,
    query_ends_max=6,
    kept_boundaries=3,
    kept_returned=3,
    unread_plans_max=3,
    batches_per_plan_max=3,
    kept_batches=3,
    kept_ended=3,
)


def checked(scene: Scene) -> None:
    """Replays the journal, and takes a snapshot in small pieces: both have what the broker has."""
    check_same(dump_broker(scene.replayed()), dump_broker(scene.broker))
    snapshot.mark_all(scene.broker.state)
    Kept(scene).take()


def ready(rows: int = 60) -> Scene:
    scene = Scene(settings=SMALL)
    for at in range(0, rows, 4):
        scene.publish(*[4] * min(rows - at, 4))
    return scene


def planned(scene: Scene, name: str = "") -> Query:
    query = scene.query(name)
    query.plan(max_rows=1)
    return query


def fill(step: Callable[[int], object], count: int, error: type[MqError], says: str) -> None:
    """`count` steps are done, the next ones are refused."""
    for number in range(count):
        step(number)
    for number in range(count, count + 3):
        with pytest.raises(error, match=says):
            step(number)


def test_queues_and_partitions() -> None:
    scene = ready()
    fill(lambda n: scene.handle(CreateDestinationRequest(name=f"a{n}")), 3, LimitExceeded, "destinations_max")
    scene.handle(DeleteDestinationRequest(name="a0"))
    with pytest.raises(LimitExceeded, match="partitions_total_max"):
        scene.handle(CreateDestinationRequest(name="wide", partitions=4))
    checked(scene)


def test_named_producers() -> None:
    scene = ready()
    fill(lambda n: scene.handle(OpenProducerRequest(name=f"p{n}")), 3, LimitExceeded, "named_producers_max")
    assert scene.handle(OpenProducerRequest(name="p0")).epoch == 2
    checked(scene)


def test_producers_without_a_name_are_forgotten_and_not_refused() -> None:
    scene = ready(1)
    for number in range(10):
        scene.handle(commands.publish("q", 0, (f"{number:032x}", 0), 0, [(b"v", 4)]))
    assert len([*scene.destination.partitions[0].audit.marks()]) == 3
    checked(scene)


def test_markers() -> None:
    scene = ready(1)
    fill(lambda n: scene.commit(owner=f"app:{n}"), 3, LimitExceeded, "markers_max")
    fill(lambda n: scene.commit(owner=f"write:{n}"), 3, LimitExceeded, "markers_max")
    assert not scene.commit(owner="app:0", version=1).already_committed
    checked(scene)


def test_staged_sets() -> None:
    scene = ready(1)
    fill(lambda n: scene.stage(n), 4, LimitExceeded, "staged_sets_max.*mq staged discard")
    scene.stage(0, first=2)
    checked(scene)


def test_batches_of_staged_sets() -> None:
    scene = ready(1)
    says = r"6 batches, the limit \(staged_batches_max\) is 6"
    fill(lambda n: scene.stage(n % 2, query="", first=min(n // 2, 3) * 2), 6, LimitExceeded, says)
    assert scene.stage(1, query="", first=4).duplicates == 2, "what is there is recognised"
    scene.commit((0, 6), owner="app:1")
    scene.stage(1, query="", first=6)
    checked(scene)


def test_epochs_that_are_taken_for_invented_queries() -> None:
    """The root of it: whoever is ended so was remembered without a limit, and each one more looked through
    all of them.
    """
    scene = ready()
    for number in range(4):
        reader = planned(scene, f"c{number}")
        reader.read({}, reader.next, (f"q{number}", 0))
    held = set(scene.broker.state.queries)
    for number in range(3):
        with pytest.raises(LimitExceeded, match=r"queries_max.*mq consumers release"):
            scene.handle(TakeEpochRequest(query_id=f"invented {number}"))
        with pytest.raises(LimitExceeded, match="queries_max"):
            scene.stage(number, query=f"invented {number}")
        with pytest.raises(LimitExceeded, match="queries_max"):
            scene.commit(owner=f"query:invented {number}")
    epoch = scene.broker.state.epoch
    assert set(scene.broker.state.queries) == held
    assert not scene.broker.state.staged
    assert scene.handle(TakeEpochRequest()).epoch == epoch + 1, "a refused one took none"
    scene.handle(TakeEpochRequest(query_id="q0"))
    scene.stage(9, query="q1")
    checked(scene)


def test_invented_queries_push_out_nobody_who_holds_anything() -> None:
    scene = ready()
    reader = planned(scene)
    reader.read({}, reader.next, ("q0", 0))
    for number in range(30):
        scene.handle(TakeEpochRequest(query_id=f"invented {number}"))
    assert "q0" in scene.broker.state.queries
    assert len(scene.broker.state.queries) <= 4
    checked(scene)


def test_targets_and_queues_of_queries() -> None:
    scene = ready()
    reader = planned(scene)
    reader.read({}, reader.next, ("q0", 0))
    scene.stage(1, query="q0", target="")
    fill(
        lambda n: scene.handle(TakeEpochRequest(query_id="q0", target=f"t{n}")),
        4,
        LimitExceeded,
        r"6 queues.*query_ends_max",
    )
    scene.handle(TakeEpochRequest(query_id="q0", target="t0"))
    with pytest.raises(LimitExceeded, match="query_ends_max"):
        scene.handle(TakeEpochRequest(query_id="q1"))
    scene.handle(CreateDestinationRequest(name="other"))
    assert scene.broker.state.query_ends == 6
    checked(scene)


def test_many_targets_of_idle_queries_make_room() -> None:
    scene = ready()
    for number in range(30):
        scene.handle(TakeEpochRequest(query_id=f"q{number % 3}", target=f"t{number}"))
        assert scene.broker.state.query_ends <= 6
    checked(scene)


def test_nobody_is_looked_for_twice_where_nobody_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = ready()
    readers = []
    for number in range(4):
        readers.append(planned(scene))
        readers[-1].read({}, readers[-1].next, (f"q{number}", 0))
    looked = []
    idle_queries = owners.idle_queries

    def look(state: State) -> list[str]:
        looked.append(1)
        return idle_queries(state)

    monkeypatch.setattr(owners, "idle_queries", look)
    for number in range(20):
        with pytest.raises(LimitExceeded):
            scene.handle(TakeEpochRequest(query_id=f"invented {number}"))
    assert len(looked) == 1
    scene.handle(ReleaseConsumerRequest(consumer=readers[0].incarnation.hex()))
    scene.handle(TakeEpochRequest(query_id="invented"))


def test_durable_consumers() -> None:
    scene = ready()
    fill(lambda n: planned(scene), 4, LimitExceeded, "consumers_max")
    scene.handle(commands.publish("other", 0, ("c" * 32, 0), 0, [(b"v", 4)]))
    run, elsewhere = scene.run(), PlanRequest(max_rows=1)
    elsewhere.who.CopyFrom(commands.who("other", b"", "", b"", run))
    with pytest.raises(LimitExceeded, match="the broker has 4 durable consumers"):
        scene.handle(elsewhere)
    checked(scene)
    scene.handle(DeleteDestinationRequest(name="q"))
    assert not scene.handle(elsewhere).idle
    checked(scene)


def test_takeovers() -> None:
    scene = ready()
    for _ in range(20):
        planned(scene, "night")
    assert len(scene.queue.consumers) == 1
    assert len(scene.queue.ended) == 3
    checked(scene)


def test_plans_that_are_given_back_again_and_again() -> None:
    """Who plans and never reads: each plan is cut anew, and the one before was kept with all of its rows."""
    scene = ready()
    query = scene.query()
    boundaries = []
    for _ in range(20):
        query.plan(start={})
        boundaries.append(dict(query.next))
    (consumer,) = scene.queue.consumers.values()
    assert len(consumer.plans) == 4
    assert all(not plan.assignments for plan in consumer.plans.values() if plan.returned)
    checked(scene)
    assert query.copy().open({}, boundaries[-2]) == [(0, 0, boundaries[-2][0], 0)], "the last ones are known"
    with pytest.raises(InvalidRequest, match="given back unread long ago"):
        query.open({}, boundaries[3])
    query.read({}, query.next)
    checked(scene)


def test_a_run_that_ends_again_and_again() -> None:
    scene = ready()
    query = planned(scene, "night")
    for _ in range(20):
        scene.handle(CloseRun(query.run))
        query = query.copy(scene.run())
        query.plan(start={}, max_rows=1)
    (consumer,) = scene.queue.consumers.values()
    assert len(consumer.plans) == 4
    query.read({}, query.next)
    query.plan()
    query.plan()
    query.acknowledge(query.next)
    assert len(consumer.plans) + len(consumer.past) <= 8
    checked(scene)


def test_plans_one_behind_the_other_that_nobody_reads() -> None:
    scene = ready()
    query = scene.query()
    fill(
        lambda n: query.plan(max_rows=1),
        3,
        LimitExceeded,
        "planned 3 batches and read none.*mq consumers release",
    )
    checked(scene)
    start = dict(query.next)
    query.read({}, start)
    query.plan(max_rows=1)
    checked(scene)


def test_batches_of_one_plan() -> None:
    scene = ready()
    query = planned(scene)
    fill(lambda n: query.read({}, query.next, ("q0", n)), 3, LimitExceeded, "was read in 3 batches")
    query.read({}, query.next, ("q0", 2))
    checked(scene)


def test_failed_attempts_are_counted_so_far_and_no_further() -> None:
    scene = ready(2)
    for _ in range(COUNT_MAX + 3):
        session = scene.connect(1)
        scene.dispatch()
        scene.credit(session, 1)
        scene.disconnect(session)
    session = scene.connect(2)
    assert [row.delivery_count for row in scene.received(session)] == [COUNT_MAX + 1, 1]
    scene.disconnect(session)
    checked(scene)


def test_browse_views() -> None:
    scene = ready()
    fill(lambda n: scene.handle(OpenBrowseRequest(destination="q")), 2, Busy, "browses_max")


def test_runs_that_are_over_are_forgotten() -> None:
    scene = ready()
    for _ in range(10):
        query = planned(scene, "night")
        scene.handle(CloseRun(query.run))
        scene.now_us += 1
        scene.handle(Tick())
    scene.handle(HoldRun(0))
    scene.handle(Tick())
    assert len(scene.broker.state.presence.silent) == 1


def test_what_is_kept_is_measured_by_the_clock_that_only_grows() -> None:
    """The wall clock jumps a week ahead: rows that are kept for a checkpoint stay."""
    scene = ready(1)
    query = planned(scene)
    query.read({}, query.next)
    query.plan()
    scene.handle(CloseRun(query.run))
    kept = next(iter(scene.queue.consumers.values()))
    assert kept.keeps
    for now_us in (0, 7 * 86_400_000_000):
        scene.broker.handle(Tick(), scene.now_us + now_us, 1_000_000)
    assert kept.keeps
    scene.broker.handle(Tick(), scene.now_us, 1_000_000 + SMALL.kept_range_ttl_us)
    assert not kept.keeps


def test_a_set_keeps_what_is_the_same_in_all_of_its_batches_once() -> None:
    scene = Scene()
    for first in range(0, 6, 2):
        scene.stage(1, first=first, query="q" * 500, target="q")
    (held,) = scene.broker.state.staged.values()
    assert max(frame.entry.ByteSize() for frame in held.frames) < 40
    assert scene.handle(produce.ListStagedRequest()).sets[0].query_id == "q" * 500
