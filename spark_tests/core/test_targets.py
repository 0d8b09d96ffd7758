"""One query that writes to several queues: each target has writers and sets of its own, and who names no
target means all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mq_broker.core import owners
from mq_broker.core.commands import Settings
from mq_broker.core.handlers.inventory import PAGE
from mq_wire.errors import EpochFenced, InvalidRequest, LimitExceeded, StagedSetUnknown
from mq_wire.v1 import produce_pb2 as produce
from spark_tests.support.worlds.kept import Kept
from spark_tests.support.worlds.scenes import QUEUE, Scene

OTHER = "other"


def token(number: int) -> bytes:
    return number.to_bytes(16, "big")


def stage(scene: Scene, number: int, epoch: int, queue: str = QUEUE, **more: Any) -> None:
    scene.stage(number, epoch=epoch, queue=queue, target=queue, **more)


def open_sets(scene: Scene) -> set[int]:
    return {int.from_bytes(known, "big") for known in scene.broker.state.staged}


def take_epoch(scene: Scene, query: str = "", target: str | None = None) -> int:
    epoch: int = scene.handle(produce.TakeEpochRequest(query_id=query, target=target)).epoch
    return epoch


@pytest.fixture(params=["as it is", "replayed", "from a snapshot"])
def again(request: pytest.FixtureRequest) -> Callable[[Scene], None]:
    """What becomes of a scene before it goes on."""

    def go_on(scene: Scene) -> None:
        if request.param == "replayed":
            scene.broker = scene.replayed()
        if request.param == "from a snapshot":
            kept = Kept(scene)
            kept.take()
            scene.broker = kept.restored()

    return go_on


def test_two_sinks_under_one_query_id_both_commit(again: Callable[[Scene], None]) -> None:
    """A checkpoint that was copied for a second sink: the first commit of one must not find its sets
    discarded by the other.
    """
    scene = Scene()
    stage(scene, 1, epoch=1)
    stage(scene, 2, epoch=2, queue=OTHER)
    stage(scene, 1, epoch=1, first=2)
    again(scene)
    assert scene.commit((1, 4), target=QUEUE).rows == 4
    stage(scene, 2, epoch=2, queue=OTHER, first=2)
    assert scene.commit((2, 4), target=OTHER).rows == 4


def test_a_newer_writer_ends_the_older_ones_of_its_target(again: Callable[[Scene], None]) -> None:
    scene = Scene()
    stage(scene, 1, epoch=1)
    stage(scene, 2, epoch=1, queue=OTHER)
    scene.stage(3, epoch=1)  # by a client that names no target
    stage(scene, 4, epoch=2, batch=1)
    assert open_sets(scene) == {2, 4}
    again(scene)
    with pytest.raises(EpochFenced, match="epoch 1 of query q1 is over, 2 is"):
        stage(scene, 1, epoch=1)
    with pytest.raises(EpochFenced):
        scene.stage(3, epoch=1)
    stage(scene, 2, epoch=1, queue=OTHER, first=2)


def test_a_newer_writer_without_a_target_ends_all(again: Callable[[Scene], None]) -> None:
    scene = Scene()
    stage(scene, 1, epoch=1)
    stage(scene, 2, epoch=1, queue=OTHER)
    scene.stage(3, epoch=2)
    assert open_sets(scene) == {3}
    again(scene)
    for queue in (QUEUE, OTHER):
        with pytest.raises(EpochFenced):
            stage(scene, 4, epoch=1, queue=queue)


def test_an_epoch_that_names_its_query_discards_at_once(again: Callable[[Scene], None]) -> None:
    """Also where a full disk refuses what the new writer would publish: the dead sets of the old one are what
    fills it.
    """
    scene = Scene()
    stage(scene, 1, epoch=take_epoch(scene))
    stage(scene, 2, epoch=take_epoch(scene), queue=OTHER)
    scene.stage(3, epoch=take_epoch(scene), query="q2")
    take_epoch(scene)
    assert open_sets(scene) == {1, 2, 3}, "as an old client asks"
    epoch = take_epoch(scene, "q1", QUEUE)
    assert open_sets(scene) == {2, 3}
    again(scene)
    with pytest.raises(EpochFenced):
        stage(scene, 4, epoch=epoch - 1)
    stage(scene, 4, epoch=epoch)
    take_epoch(scene, "q1")
    assert open_sets(scene) == {3}


def test_a_commit_takes_sets_of_its_target_or_of_none_and_no_others() -> None:
    scene = Scene()
    scene.stage(9, queue=OTHER, query="")
    scene.stage(1, target="")
    for target in (QUEUE, OTHER):
        with pytest.raises(InvalidRequest, match=f"for target '': it cannot be committed to '{target}'"):
            scene.commit((1, 2), target=target)
    assert scene.commit((1, 2)).rows == 2
    scene.stage(2, query="q2")
    assert scene.commit((2, 2), owner="query:q2", target=QUEUE).rows == 2


def test_a_commit_ends_its_own_batch_and_leaves_other_targets_alone(again: Callable[[Scene], None]) -> None:
    scene = Scene()
    stage(scene, 1, epoch=1)
    stage(scene, 2, epoch=1)
    stage(scene, 3, epoch=1, queue=OTHER)
    scene.commit((1, 2), target=QUEUE)
    assert open_sets(scene) == {3}
    again(scene)
    with pytest.raises(EpochFenced, match="or whose batch is committed"):
        stage(scene, 4, epoch=1)
    stage(scene, 3, epoch=1, queue=OTHER, first=2)


def test_rows_go_where_their_set_says_or_are_refused() -> None:
    scene = Scene()
    with pytest.raises(InvalidRequest, match="for target 'other' gets rows for 'q'"):
        scene.stage(1, target=OTHER)
    scene.stage(1, target=QUEUE)
    with pytest.raises(InvalidRequest, match="new random token"):
        scene.stage(1, first=2)
    assert scene.broker.state.staged[token(1)].rows == 2


def test_the_newest_epochs_of_a_thousand_targets_are_remembered() -> None:
    scene = Scene()
    for number in range(owners.EPOCH_TARGETS_MAX + 5):
        take_epoch(scene, "q1", f"t{number}")
    take_epoch(scene, "q1")
    epochs = scene.broker.state.queries["q1"].epochs
    assert len(epochs) == owners.EPOCH_TARGETS_MAX
    assert None in epochs
    assert "t0" not in epochs
    assert f"t{owners.EPOCH_TARGETS_MAX + 4}" in epochs


def test_what_discards_many_sets_is_a_small_entry() -> None:
    """The room that a publish, a commit or an epoch asks the journal for does not depend on how many sets
    there are.
    """
    scene = Scene()
    for number in range(3000):
        scene.stage(number, rows=1)
    before = len(scene.sink.entries)
    stage(scene, 5000, epoch=2, batch=1)
    assert open_sets(scene) == {5000}
    scene.stage(5001, epoch=2, batch=0, target=QUEUE)
    scene.commit((5000, 2), target=QUEUE, version=1)
    assert open_sets(scene) == set()
    assert all(len(header) < 300 for header, _, _ in scene.sink.entries[before:])


def test_open_sets_have_a_bound_and_those_that_are_open_go_on() -> None:
    scene = Scene(settings=Settings(default_partitions=1, staged_sets_max=2))
    scene.stage(1)
    scene.stage(2)
    with pytest.raises(
        LimitExceeded, match=r"2 staged sets are open, the limit \(staged_sets_max\) is 2.*mq staged discard"
    ):
        scene.stage(3)
    scene.stage(2, first=2)
    scene.stage(3, epoch=2, batch=1)  # discards the others
    scene.stage(4, epoch=2, batch=1)
    with pytest.raises(LimitExceeded):
        scene.stage(5, epoch=2, query="q2")
    assert open_sets(scene) == {3, 4}
    assert scene.commit((3, 2), (4, 2), version=1).rows == 4
    scene.stage(5)


def test_operators_see_the_open_sets_page_by_page() -> None:
    scene = Scene()
    for number in range(PAGE + 3):
        scene.stage(number, rows=1, query="", target=QUEUE)
    scene.stage(PAGE + 3, query="q9", queue=OTHER, batch=4, epoch=3)
    scene.stage(PAGE + 3, query="q9", batch=4, epoch=3)
    scene.now_us += 5000
    page = scene.handle(produce.ListStagedRequest())
    assert (len(page.sets), page.more) == (PAGE, True)
    rest = scene.handle(produce.ListStagedRequest(after=page.sets[-1].token))
    assert (len(rest.sets), rest.more) == (4, False)
    assert [known.token for known in (*page.sets, *rest.sets)] == [
        token(number) for number in range(PAGE + 4)
    ]
    (of_query,) = scene.handle(produce.ListStagedRequest(query_id="q9")).sets
    assert of_query == rest.sets[-1]
    assert (of_query.batch_id, of_query.epoch, of_query.rows, list(of_query.destinations)) == (
        4,
        3,
        4,
        [OTHER, QUEUE],
    )
    assert of_query.bytes > 0
    assert (of_query.age_ms, of_query.HasField("target"), page.sets[0].target) == (5, False, QUEUE)
    assert not scene.handle(produce.ListStagedRequest(query_id="nobody")).sets
    assert scene.handle(produce.DiscardStagedRequest(tokens=[of_query.token])).rows == 4
    with pytest.raises(StagedSetUnknown):
        scene.commit((PAGE + 3, 4), owner="query:q9")
