"""Bugs of the serving layer: one client takes what others need, or what was taken is not given back."""

from __future__ import annotations

from typing import Final

from mq_broker.rpc.bounds import LiveStreams
from mq_broker.rpc.room import Room
from mq_broker.rpc.threads import Workers
from spark_tests.support.planting import Bug, Change

_RUN: Final = "serving"

SERVING: Final = (
    Bug(
        "one host takes all streams",
        "nothing is kept for other connections and hosts",
        (
            Change(LiveStreams._check_room, "kept = self._limit // 5", "kept = 0"),
            Change(
                LiveStreams._check_room,
                "if theirs >= self._limit - self._limit // 10:",
                "if theirs >= self._limit + 1:",
            ),
        ),
        _RUN,
    ),
    Bug(
        "the thread of a stream stays reserved",
        "every stream costs a thread for good",
        (Change(LiveStreams.counted, "self._workers.release(1 + unused)", "self._workers.release(unused)"),),
        _RUN,
    ),
    Bug(
        "threads are promised before they are made",
        "calls that are answered at once find none where the system refuses more",
        (Change(Workers.reserve, "self._reserved + count + self._short", "self._reserved"),),
        _RUN,
    ),
    Bug(
        "what was reckoned stays taken",
        "a request that turns out small holds the room of a large one",
        (
            Change(
                Room.correct,
                "self._used += amount - hold.amount",
                "self._used += max(amount - hold.amount, -1)",
            ),
        ),
        _RUN,
    ),
)
