"""Long requests by themselves: one at a time, connections in turn, nobody waits who is gone, and no turn is
lost.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from mq_broker.rpc.long_requests import LongRequests
from mq_broker.rpc.threads import Waits, Workers
from mq_wire.errors import Busy
from spark_tests.support.waiting import wait_until


@pytest.fixture
def workers() -> Iterator[Workers]:
    workers = Workers(1)
    yield workers
    workers.shutdown()


class Line:
    """Callers that come one after another, and what became of each."""

    def __init__(self, workers: Workers, waits: int = 8) -> None:
        self._workers = workers
        self.requests = LongRequests(Waits(waits, workers))
        self._gone: set[str] = set()
        self.log: list[str] = []

    def first(self) -> threading.Event:
        """Takes the turn until the event is set."""
        end, began = threading.Event(), threading.Event()

        def work() -> None:
            with self.requests.turn("first", lambda: False):
                began.set()
                assert end.wait(10)

        threading.Thread(target=work, daemon=True).start()
        assert began.wait(10)
        return end

    def come(self, name: str) -> threading.Thread:
        """Another one, whose peer is its first letter; returns when it waits."""
        before = self._workers.reserved

        def work() -> None:
            try:
                with self.requests.turn(name[0], lambda: name in self._gone):
                    self.log.append(name)
            except Busy:
                self.log.append(f"{name} is gone")

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        wait_until(lambda: self._workers.reserved == before + 1)
        return thread

    def leave(self, name: str) -> None:
        self._gone.add(name)


def test_connections_have_their_turn_one_after_another(workers: Workers) -> None:
    line = Line(workers)
    end = line.first()
    threads = [line.come(name) for name in ("a1", "a2", "a3", "b1", "c1", "b2")]
    assert not line.log
    end.set()
    for thread in threads:
        thread.join(10)
    assert line.log == ["a1", "b1", "c1", "a2", "b2", "a3"]
    assert workers.reserved == 0


def test_who_is_gone_waits_no_longer_and_takes_nobodys_turn(workers: Workers) -> None:
    line = Line(workers)
    end = line.first()
    gone, waits = line.come("a1"), line.come("b1")
    line.leave("a1")
    gone.join(10)
    assert line.log == ["a1 is gone"]
    end.set()
    waits.join(10)
    assert line.log == ["a1 is gone", "b1"]
    line.first().set()  # the turn is free again


def test_too_many_who_wait_are_refused(workers: Workers) -> None:
    line = Line(workers, waits=1)
    end = line.first()
    thread = line.come("a1")
    with pytest.raises(Busy, match="waits_max"), line.requests.turn("b", lambda: False):
        pass
    end.set()
    thread.join(10)
    assert line.log == ["a1"]


def test_an_error_in_a_turn_ends_it(workers: Workers) -> None:
    line = Line(workers)
    with pytest.raises(ValueError, match="wrong"), line.requests.turn("a", lambda: False):
        raise ValueError("wrong")
    line.first().set()


def test_one_connection_has_few_that_wait_and_others_still_come_in(workers: Workers) -> None:
    line = Line(workers, waits=40)
    end = line.first()
    waiting = [line.come(f"a{number}") for number in range(16)]
    with (
        pytest.raises(Busy, match="16 calls of this connection wait"),
        line.requests.turn("a", lambda: False),
    ):
        pass
    waiting.append(line.come("b"))
    end.set()
    for thread in waiting:
        thread.join(10)
    assert line.log.index("b") < 2
    assert len(line.log) == 17
