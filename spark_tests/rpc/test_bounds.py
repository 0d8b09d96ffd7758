"""The bounds by themselves."""

from __future__ import annotations

import threading

import grpc
import pytest

from mq_broker.rpc.bounds import Budget, LiveStreams
from mq_broker.rpc.first_requests import FirstRequests
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
    streams, told = LiveStreams(1, 1), list[str]()
    with streams.counted("a"), pytest.raises(Busy, match=r"\(streams_max\)"), streams.counted("b"):
        pass
    with streams.counted("a"), streams.told_to_stop(lambda: told.append("stop")):
        streams.stop()
        assert told == ["stop"]
    with pytest.raises(BrokerUnavailable), streams.counted("a"):
        pass
    with streams.told_to_stop(lambda: told.append("late")):
        assert wait_until(lambda: told == ["stop", "late"])


def test_no_connection_gets_all_streams() -> None:
    streams = LiveStreams(3, 2)
    with streams.counted("a"), streams.counted("a"):
        for _ in range(2):  # one that is refused takes nothing
            with pytest.raises(Busy, match="streams_per_connection_max"), streams.counted("a"):
                pass
            with streams.counted("b"):
                pass
    with streams.counted("a"), streams.counted("a"):
        pass


def test_what_may_not_wait_is_told_at_once() -> None:
    budget = Budget(10)
    assert budget.try_take(7)
    assert not budget.try_take(4)
    assert budget.try_take(3)
    budget.give(10)
    assert budget.try_take(25)  # alone
    assert not budget.try_take(1)


class SilentCall:
    """A call whose request comes when the test says so."""

    def __init__(self, peer: str = "a") -> None:
        self.arrived = threading.Event()
        self.cancelled = False
        self._peer = peer

    def peer(self) -> str:
        return self._peer

    def __next__(self) -> bytes:
        self.arrived.wait(10)
        if self.cancelled:
            raise grpc.RpcError
        return b"request"

    def cancel(self) -> None:
        self.cancelled = True
        self.arrived.set()


def cancelled_of(peers: str, limit: int) -> list[bool]:
    """Which of the calls, made one after the other by these peers, must go; the others are answered."""
    first, results = FirstRequests(limit), dict[int, object]()
    calls = [SilentCall(peer) for peer in peers]

    def ask(number: int) -> None:
        try:
            results[number] = first.of(calls[number], calls[number])  # type: ignore[arg-type]
        except grpc.RpcError as error:
            results[number] = error

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(calls))]
    for number, thread in enumerate(threads):
        thread.start()
        wait_until(lambda: first.silent + len(results) == number + 1)  # noqa: B023 - asked at once
        assert first.silent <= limit
    gone = [call.cancelled for call in calls]
    for call in calls:
        call.arrived.set()
    for thread in threads:
        thread.join(10)
    assert [results[number] == b"request" for number in range(len(calls))] == [not one for one in gone]
    assert first.silent == 0
    return gone


def test_the_call_that_was_silent_for_longest_goes_first() -> None:
    assert cancelled_of("aaaa", 2) == [True, True, False, False]


def test_of_the_connection_that_has_most_of_them() -> None:
    assert cancelled_of("baaaa", 3) == [False, True, True, False, False]
    assert cancelled_of("aabbb", 4) == [False, False, True, False, False]
