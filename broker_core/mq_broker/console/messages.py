"""`mq send` and `mq receive`."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator

from mq_broker.console.output import put
from mq_wire.errors import FixTheCall, InvalidOption, InvalidRequest
from pyspark_mq import Consumer, Message, Producer

_PREFETCH_MAX = 1000
#: More than any queue can hold.
_UNLIMITED = 1 << 62


def send(options: argparse.Namespace) -> int:
    """Sends the values, or the lines of a file, and waits until all are durable."""
    key = None if options.key is None else options.key.encode()
    headers = {name: value.encode() for name, value in options.header} or None
    sent, refused = 0, None
    with Producer(options.broker, queue=options.queue, send_timeout=options.timeout) as producer:
        for value in _values(options):
            try:
                producer.send(value, key=key, priority=options.priority, headers=headers)
            except FixTheCall as error:
                refused = error
                break
            sent += 1
    if refused is not None:
        what = "value" if options.values else "line"
        before = f"the {sent:,} before it are stored" if sent else "nothing was stored"
        raise InvalidRequest(f"{what} {sent + 1:,}: {refused}; {before}, and nothing after it was sent")
    put(f"sent {sent:,} {'message' if sent == 1 else 'messages'} to {options.queue}")
    return 0


def receive(options: argparse.Namespace) -> int:
    """Prints values as they come. Each message is acknowledged when its line has been written."""
    # No more than --count is fetched: messages that are fetched and not printed would count as delivered.
    prefetch = min(options.count or _PREFETCH_MAX, _PREFETCH_MAX)
    # With --no-ack all of them stay unacknowledged until the command ends.
    unacknowledged = prefetch if options.ack else options.count or _UNLIMITED
    received = 0
    with Consumer(
        options.broker, queue=options.queue, prefetch=prefetch, max_unacknowledged=unacknowledged
    ) as consumer:
        while not options.count or received < options.count:
            message = consumer.receive(timeout=options.timeout)
            if message is None:
                break
            received += 1
            put(_line(message, verbose=options.verbose), flush=True)
            if options.ack:
                consumer.acknowledge(message)
    if received < options.count:
        print(
            f"mq: {received} of {options.count} messages came: "
            f"no further message within {options.timeout:g} s (--timeout)",
            file=sys.stderr,
        )
    return 0 if received or not options.count else 1


def _values(options: argparse.Namespace) -> Iterator[bytes]:
    if options.values:
        yield from (value.encode() for value in options.values)
        return
    path = options.file or "-"
    if path == "-" and sys.stdin is None:
        raise InvalidOption("stdin is closed: give values, or --file")
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if path == "-" else open(path, "rb") as file:
            yield from (line.rstrip(b"\r\n") for line in file)
    except OSError as error:
        name = "stdin" if path == "-" else f"--file {path!r}"
        raise InvalidOption(f"{name} cannot be read: {error.strerror}") from None


def _line(message: Message, *, verbose: bool) -> str:
    value = _shown(message.value)
    if not verbose:
        return value
    headers = " ".join(f"{name}={_shown(content or b'')}" for name, content in _header_pairs(message))
    key = "-" if message.key is None else _shown(message.key)
    place = f"partition={message.partition} offset={message.offset}"
    facts = f"{place} priority={message.priority} deliveries={message.delivery_count} key={key}"
    return f"{facts}{' ' if headers else ''}{headers}\t{value}"


def _header_pairs(message: Message) -> list[tuple[str, bytes | None]]:
    headers = message.headers or {}
    return list(headers.items())


def _shown(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")
