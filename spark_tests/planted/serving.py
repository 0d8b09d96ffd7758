"""Histories of the serving layer: streams of large and small clients, threads, and room for bytes, taken and
given back.
"""

from __future__ import annotations

import contextlib
import random
import threading
from typing import Final

from mq_broker.rpc.bounds import LiveStreams
from mq_broker.rpc.room import Hold, Room
from mq_broker.rpc.threads import Workers
from mq_wire.errors import Busy

_STREAMS: Final = 60
_SHORT: Final = 2
_ROOM: Final = 1000


def serving(seed: int) -> None:
    """Makes one history.

    Raises:
        AssertionError: somebody was kept out, or something was not given back.
    """
    rng = random.Random(seed)
    _streams(rng)
    _room(rng)


def _streams(rng: random.Random) -> None:
    workers = Workers(_SHORT)
    streams = LiveStreams(_STREAMS, _STREAMS, workers)
    opened: list[contextlib.ExitStack] = []
    try:
        for _ in range(rng.randint(_STREAMS, 3 * _STREAMS)):
            if opened and rng.random() < 0.2:
                opened.pop(rng.randrange(len(opened))).close()
                continue
            stack = contextlib.ExitStack()
            with contextlib.suppress(Busy):
                stack.enter_context(streams.counted(f"ipv4:10.0.0.1:{rng.choice((1, 1, 2))}"))
                opened.append(stack)
            assert workers.made >= workers.reserved + _SHORT, "threads are promised that are not there"
        with streams.counted("ipv4:10.0.0.2:1"):
            pass  # a client that has none gets one, whatever the others do
        for stack in opened:
            stack.close()
        assert workers.reserved == 0, "threads are not given back"
    finally:
        workers.shutdown()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("mq-rpc_")], (
        "threads are left"
    )


def _room(rng: random.Random) -> None:
    room = Room(_ROOM, 1.0, 1.0)
    holds: list[Hold] = []
    for _ in range(100):
        if holds and rng.random() < 0.5:
            hold = holds.pop(rng.randrange(len(holds)))
            room.correct(hold, rng.randint(0, hold.amount))
            room.correct(hold, 0)
            continue
        amount = rng.randint(1, _ROOM // 4)
        if room.used + amount <= _ROOM:
            holds.append(Hold("a", lambda: None))
            room.take(holds[-1], amount, lambda: True)
        assert room.used <= _ROOM, "more is taken than there is"
    for hold in holds:
        room.correct(hold, 0)
    assert room.used == 0, "room is not given back"
