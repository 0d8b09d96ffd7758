"""Producers that nobody closes: what they took is sent at the end of the process or when they are collected,
and what is not is told.
"""

from __future__ import annotations

import subprocess
import sys
import uuid

import pytest

from mq_broker import LocalBroker
from pyspark_mq import Connection, Consumer
from spark_tests.support.waiting import wait_until

_BEGIN = """
import gc, os, signal, sys, threading, time, warnings
from pyspark_mq import Connection, Producer
address, queue = sys.argv[1:3]
producer = Producer(address, queue=queue)
for i in range(5000):
    producer.send(b"%d" % i)
"""


def run(
    script: str, address: str, queue: str, *rest: str, options: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *options, "-c", script, address, queue, *rest]
    return subprocess.run(command, timeout=60, check=False, capture_output=True, text=True)


@pytest.fixture
def queue() -> str:
    return f"unclosed.{uuid.uuid4().hex[:8]}"


def stored(broker: LocalBroker, queue: str) -> list[int]:
    values: list[int] = []
    with Consumer(broker.address, queue=queue) as consumer:
        for batch in consumer.batches(timeout=0.5):
            values += [int(value) for value in batch.column("value").to_pylist()]
            consumer.acknowledge(batch)
    return sorted(values)


@pytest.mark.parametrize(
    ("end", "code", "words"),
    [
        ("", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("raise ValueError('at top level')", 1, "at top level"),
        ("del producer", 0, ""),
        # Threads that send on until the interpreter stops them.
        (
            (
                "threading.Thread(target=lambda: [producer.send(b'5000') for _ in iter(int, 1)], "
                "daemon=True).start()"
            ),
            0,
            None,
        ),
    ],
    ids=["end", "exit", "exception", "collected", "thread"],
)
def test_the_end_of_a_process_sends_what_was_taken(
    module_broker: LocalBroker, queue: str, end: str, code: int, words: str | None
) -> None:
    done = run(_BEGIN + end, module_broker.address, queue)
    assert done.returncode == code, done.stderr
    if words is not None:
        assert words in done.stderr if words else not done.stderr
    assert [value for value in stored(module_broker, queue) if value < 5000] == list(range(5000))


def test_what_lingers_and_what_was_never_streamed_is_sent_too(module_broker: LocalBroker, queue: str) -> None:
    script = _BEGIN.replace("queue=queue)", "queue=queue, linger_ms=60_000)").replace("5000", "3")
    done = run(script, module_broker.address, queue)
    assert (done.returncode, done.stderr) == (0, "")
    assert stored(module_broker, queue) == [0, 1, 2]


def test_warnings_say_that_it_was_not_closed(module_broker: LocalBroker, queue: str) -> None:
    done = run(_BEGIN + "del producer\ntime.sleep(0)", module_broker.address, queue, options=("-W", "error"))
    assert done.returncode == 0
    assert "ResourceWarning: a producer of queue" in done.stderr
    assert "was not closed" in done.stderr
    assert stored(module_broker, queue) == list(range(5000))


def test_a_collected_producer_sends_warns_and_ends(module_broker: LocalBroker, queue: str) -> None:
    script = (
        _BEGIN
        + """
thread_names = lambda: [thread.name for thread in threading.enumerate()]
assert "mq-producer" in thread_names()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    del producer
    gc.collect()
assert [warning.category for warning in caught] == [ResourceWarning], caught
until = time.monotonic() + 20
while "mq-producer" in thread_names() and time.monotonic() < until:
    time.sleep(0.01)
os._exit("mq-producer" in thread_names())   # no flush at exit helped
"""
    )
    done = run(script, module_broker.address, queue)
    assert done.returncode == 0, done.stderr
    assert stored(module_broker, queue) == list(range(5000))


def test_a_producer_is_collected_although_its_receipts_are_held(
    module_broker: LocalBroker, queue: str
) -> None:
    script = (
        _BEGIN
        + """
receipt = producer.send(b"5000")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    del producer
assert caught
assert receipt.result(20).offset is not None
"""
    )
    done = run(script, module_broker.address, queue)
    assert (done.returncode, done.stderr) == (0, "")
    assert stored(module_broker, queue) == list(range(5001))


@pytest.mark.parametrize("timeout", [1, 30])
def test_a_dead_broker_is_told_within_a_bound(broker: LocalBroker, queue: str, timeout: int) -> None:
    script = """
import os, signal, sys, logging
logging.disable()
from pyspark_mq import Producer
address, queue, pid, timeout = sys.argv[1:]
producer = Producer(address, queue=queue, send_timeout=float(timeout))
producer.send(b"0").result(10)
os.kill(int(pid), signal.SIGKILL)
for i in range(37):
    producer.send(b"%d" % i)
"""
    done = run(script, broker.address, queue, str(broker.pid), str(timeout))
    assert done.returncode == 0
    assert (
        f"pyspark_mq: 37 messages to queue {queue!r} were not confirmed before this process ended"
        in done.stderr
    )


def test_closed_producers_hold_nothing_up(module_broker: LocalBroker, queue: str) -> None:
    done = run(_BEGIN + "producer.close()", module_broker.address, queue, options=("-W", "error"))
    assert (done.returncode, done.stderr) == (0, "")
    with Connection(module_broker.address) as connection:
        wait_until(lambda: connection.hello())
    assert stored(module_broker, queue) == list(range(5000))
