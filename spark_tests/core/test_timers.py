"""When what is due: the heap against a plain dict, and what a tick costs where nothing is due."""

from __future__ import annotations

import random
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq_broker.core.commands import CloseRun, ReleaseView, ResolveFetch, Settings, Tick
from mq_broker.core.model.timers import Timers
from mq_wire.v1.subscribe_pb2 import OpenBrowseRequest, OpenFetch
from spark_tests.support.worlds.ending import ending
from spark_tests.support.worlds.scenes import QUEUE, Scene

KEYS = st.integers(0, 5)
TIMES = st.integers(0, 50)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("set"), KEYS, TIMES),
            st.tuples(st.just("drop"), KEYS, st.just(0)),
            st.tuples(st.just("due"), st.integers(0, 20), st.sampled_from([1, 2, 99])),
        ),
        max_size=300,
    )
)
def test_it_is_as_a_dict_that_is_searched(steps: list[tuple[str, int, int]]) -> None:
    timers: Timers[int] = Timers()
    known: dict[int, tuple[int, int]] = {}
    now_us = 0
    for at, (step, what, more) in enumerate(steps):
        if step == "set":
            timers.set(what, now_us + more)
            known[what] = (now_us + more, at)
        elif step == "drop":
            timers.drop(what)
            known.pop(what, None)
        else:
            now_us += what
            over = sorted((due, key) for key, due in known.items() if due[0] <= now_us)
            expected = [key for _, key in over][:more]
            assert timers.due(now_us, more) == expected
            assert timers.due(now_us, more) == expected, "they stay due"
            for key in expected[::2]:
                timers.drop(key)
                del known[key]
        assert sorted(timers) == sorted(known)
        assert len(timers) == len(known)


@pytest.mark.parametrize("drop", [False, True])
def test_what_was_touched_takes_no_room(drop: bool) -> None:
    timers: Timers[int] = Timers()
    for number in range(50_000):
        timers.set(number % 100, number)
        if drop:
            timers.drop(number % 100)
    assert len(timers._heap) <= 300
    assert timers.due(1 << 60) == ([] if drop else list(range(100)))


def test_what_ends_is_what_a_walk_over_everything_says(rng: random.Random) -> None:
    for _ in range(20):
        ending(rng.getrandbits(32))


def calls_of(scene: Scene, tick: Tick) -> int:
    """How many functions a tick calls."""
    count = 0

    def note(frame: Any, event: str, what: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        scene.handle(tick)
    finally:
        sys.setprofile(None)
    return count


def crowded(items: int) -> Scene:
    """A queue with so many staged sets, browse views, durable consumers, and consumers that keep rows."""
    scene = Scene(1, Settings(default_partitions=1))
    scene.publish(*[4] * 4 * items)
    for number in range(items):
        scene.stage(number + 1, query=f"q{number}")
        scene.handle(OpenBrowseRequest(destination=QUEUE))
        query = scene.query()
        query.plan(max_rows=2)
        if number % 2:
            query.read({}, query.next, (f"q{number}", 0))
            query.acknowledge(query.next)
        if number % 3:
            scene.handle(CloseRun(query.run))
    scene.handle(Tick())
    scene.now_us += 1_000_000
    scene.handle(Tick())
    return scene


@pytest.mark.parametrize("short", [False, True])
def test_a_tick_costs_what_is_due_and_not_what_there_is(short: bool) -> None:
    few, many = crowded(2), crowded(200)
    assert calls_of(few, Tick(short)) == calls_of(many, Tick(short)) < 100


def test_what_is_due_ends_and_the_rest_stays() -> None:
    scene = crowded(6)
    state = scene.broker.state
    used = next(iter(state.browses))
    scene.now_us += state.settings.browse_ttl_us - 1_000_000
    scene.handle(Tick())
    assert len(state.browses) == 6
    opened = OpenFetch(browse=used, partition=0, first=0, last=1)
    for view in scene.handle(ResolveFetch(opened)):
        scene.handle(ReleaseView(view))
    scene.now_us += 1
    scene.handle(Tick())
    assert list(state.browses) == [used]
    kept = len(state.presence.alone)
    assert kept == 2
    scene.now_us += state.settings.staged_ttl_us - state.settings.browse_ttl_us
    scene.handle(Tick())
    assert (len(state.browses), len(state.staged), len(state.presence.alone)) == (0, 0, kept)
