"""Long answers and long work are done in parts, so that nobody waits for all of it."""

from __future__ import annotations

import pytest

from mq_broker.core.commands import ConsumersPage, ListPage, Settings, Tick
from mq_broker.core.handlers import staging
from mq_broker.core.handlers.admin import list_page
from mq_wire.v1 import admin_pb2 as admin
from mq_wire.v1 import subscribe_pb2 as wire
from spark_tests.support.planting import Bug, Change
from spark_tests.support.worlds.lists import ListWorld
from spark_tests.support.worlds.scenes import Scene


def listed(world: ListWorld, prefix: str, effort: int) -> list[list[str]]:
    """Names, page by page."""
    pages: list[list[str]] = []
    after = ""
    while True:
        page = [stats.name for stats in world.handle(ListPage(prefix, after, effort)).destinations]
        if not page:
            return pages
        pages.append(page)
        after = page[-1]


@pytest.mark.parametrize("effort", [1, 20, 10_000])
def test_destinations_come_page_by_page_in_order(effort: int) -> None:
    world = ListWorld()
    names = [f"{kind}.{number}" for kind in ("b", "a", "c") for number in range(7)]
    for name in names:
        world.handle(admin.CreateDestinationRequest(name=name, partitions=2))
    pages = listed(world, "", effort)
    assert [name for page in pages for name in page] == sorted(names)
    assert max(map(len, pages)) <= max(effort // 6, 1)
    world.handle(admin.DeleteDestinationRequest(name="a.3"))
    world.handle(admin.CreateDestinationRequest(name="a.30", partitions=2))
    assert [name for page in listed(world, "a.", effort) for name in page] == [
        "a.0",
        "a.1",
        "a.2",
        "a.30",
        "a.4",
        "a.5",
        "a.6",
    ]
    assert listed(world, "d", effort) == []


def test_a_page_of_wide_queues_is_short() -> None:
    world = ListWorld()
    for number in range(5):
        world.handle(admin.CreateDestinationRequest(name=f"wide.{number}", partitions=1024))
    assert [len(page) for page in listed(world, "", 1500)] == [1] * 5


def test_the_length_of_a_page_is_what_bounds_it() -> None:
    world = ListWorld()
    for number in range(5):
        world.handle(admin.CreateDestinationRequest(name=f"wide.{number}", partitions=1024))
    endless = Change(list_page, "if left < 0 and response.destinations:", "if False:")
    with Bug("endless", "a page has all that there is", (endless,), "none").planted():
        assert [len(page) for page in listed(world, "", 1500)] == [5]


@pytest.mark.parametrize("effort", [1, 30, 10_000])
@pytest.mark.parametrize("destination", ["", "q"])
def test_consumers_come_page_by_page(effort: int, destination: str) -> None:
    scene = Scene(2)
    for name in ("o", "q", "r"):
        scene.handle(admin.CreateDestinationRequest(name=name))
    scene.publish(*[4] * 20)
    for number in range(10):
        scene.query(f"n{number}").plan(max_rows=1)
    sessions = [scene.connect(1) for _ in range(3)]
    found: list[wire.ConsumerInfo] = []
    page: ConsumersPage | None = ConsumersPage(destination, "", 0, effort)
    pages = 0
    while page is not None:
        answer, page = scene.handle(page)
        found += answer.consumers
        pages += 1
        assert len(answer.consumers) <= max(effort, 1)
    assert [info.consumer for info in found] == [*(f"n{number}" for number in range(10)), "", "", ""]
    assert [info.session for info in found][10:] == sessions
    assert found == [*scene.handle(wire.ListConsumersRequest(destination=destination)).consumers]
    assert pages > 10 or effort > 1


def test_a_tick_ends_some_staged_sets_and_the_next_ones_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "_EXPIRED_SETS_MAX", 2)
    scene = Scene(settings=Settings(default_partitions=1, staged_ttl_us=1000))
    for token in range(1, 11):
        scene.stage(token)
    scene.now_us += 2000
    left = []
    for _ in range(12):
        scene.handle(Tick())
        left.append(len(scene.broker.state.staged))
    assert left[0] == 8
    assert left[-1] == 0
