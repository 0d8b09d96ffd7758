"""Attacks by consumers that share a stream."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Final

from mq_wire.v1.consume_pb2 import ConsumeRequest
from spark_tests.hostile import http2
from spark_tests.hostile.siege import Attack, Target
from spark_tests.support.waiting import wait_until

_ENDLESS: Final = {"rows": 1 << 62, "bytes": 1 << 62}
#: Messages that are sent together.
_TOGETHER: Final = 500
#: Of an answer to an opening, at least.
_ANSWER_BYTES: Final = 20


def say(target: Target, said: Iterable[ConsumeRequest], *, reads: bool) -> None:
    """Says all of it on one stream, as fast as it is taken; who reads waits for answers."""
    client = target.client(window=1 << 20 if reads else 0, reads=reads)
    stream, answers = 0, 0
    together: list[bytes] = []
    for request in said:
        answers += request.HasField("open")
        if not stream:
            stream = client.call("Consume", request.SerializeToString(), end=False)
            continue
        together.append(http2.message(request.SerializeToString()))
        if len(together) == _TOGETHER:
            try:
                client.send(stream, b"".join(together), timeout=5 if reads else 1)
            except (ConnectionError, TimeoutError):
                return  # it is read no further
            together.clear()
    if reads:
        wait_until(lambda: client.received[stream] >= answers * _ANSWER_BYTES, 30)


def opening(number: int, queue: str, *, create: bool = True) -> ConsumeRequest:
    return ConsumeRequest(consumer=number, open={"destination": queue, "credit": _ENDLESS, "create": create})


def openings(target: Target, *, reads: bool) -> None:
    """Very many consumers of a queue that does not exist."""
    count = target.times(100_000)
    say(target, (opening(number, "nowhere", create=False) for number in range(1, count)), reads=reads)


def places(target: Target) -> None:
    """Far more consumers than there are places, of a hundred queues."""
    for _ in range(target.times(5)):
        said = (opening(number, f"shared.{number % 100}") for number in range(1, 5000))
        say(target, said, reads=True)


def come_and_go(target: Target) -> None:
    """Consumers that open and close, one behind the other."""

    def said() -> Iterable[ConsumeRequest]:
        for number in range(1, target.times(20_000)):
            yield opening(number, "visited")
            yield ConsumeRequest(consumer=number, close=True)

    say(target, said(), reads=True)


def afterwards(target: Target) -> None:
    """Credit, questions and reports for a consumer that is closed."""
    late = ConsumeRequest(
        consumer=1,
        credit=_ENDLESS,
        ask={"request_id": 1},
        handed_over={"partitions": [{"partition": 0, "ranges": bytes(8) + b"\1" + bytes(7)}]},
    )

    def said() -> Iterable[ConsumeRequest]:
        yield opening(1, "left")
        yield ConsumeRequest(consumer=1, close=True)
        for _ in range(target.times(300_000)):
            yield late

    say(target, said(), reads=True)


ATTACKS: Final = (
    Attack("openings of nothing", functools.partial(openings, reads=True)),
    Attack("openings of nothing that nobody reads", functools.partial(openings, reads=False)),
    # 18,000 consumers, whose memory Python keeps for the next ones.
    Attack("more consumers than places", places, left_bytes_max=100 << 20),
    Attack("consumers that open and close", come_and_go),
    Attack("words for a consumer that is closed", afterwards),
)
