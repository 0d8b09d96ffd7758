"""The bounds by themselves."""

from __future__ import annotations

import threading

import pytest

from mq_broker.rpc.bounds import Budget, LiveStreams
from mq_wire.errors import BrokerUnavailable, Busy
from spark_tests.support.waiting import wait_until


def taker(budget: Budget, amount: int, results: list[bool]) -> threading.Thread:
    thread = threading.Thread(target=lambda: results.append(budget.take(amount)))
    thread.start()
    return thread


def test_who_wants_too_much_waits_until_enough_is_back() -> None:
    budget, results = Budget(10), list[bool]()
    assert budget.take(7)
    thread = taker(budget, 5, results)
    budget.give(1)
    assert not results
    budget.give(1)
    thread.join(10)
    assert results == [True]


def test_more_than_there_can_ever_be_is_given_alone() -> None:
    budget, results = Budget(10), list[bool]()
    assert budget.take(25)
    thread = taker(budget, 1, results)
    assert not results
    budget.give(25)
    thread.join(10)
    assert results == [True]


def test_closing_sends_everybody_away() -> None:
    budget, results = Budget(10), list[bool]()
    assert budget.take(10)
    threads = [taker(budget, 1, results) for _ in range(3)]
    budget.close()
    for thread in threads:
        thread.join(10)
    assert results == [False] * 3
    assert not budget.take(1)


def test_streams_are_counted_and_told() -> None:
    streams, told = LiveStreams(1), list[str]()
    with streams.counted(), pytest.raises(Busy, match="streams_max"), streams.counted():
        pass
    with streams.counted(), streams.told_to_stop(lambda: told.append("stop")):
        streams.stop()
        assert told == ["stop"]
    with pytest.raises(BrokerUnavailable), streams.counted():
        pass
    with streams.told_to_stop(lambda: told.append("late")):
        assert wait_until(lambda: told == ["stop", "late"])
