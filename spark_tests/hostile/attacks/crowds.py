"""More connections, streams and threads than there are."""

from __future__ import annotations

import contextlib
import os
from typing import Final

from mq_wire.v1.consume_pb2 import ConsumeRequest
from spark_tests.hostile import http2
from spark_tests.hostile.siege import Attack, Target

#: A host that is not the innocent client's.
_ELSEWHERE: Final = "127.0.0.9"


def idle_consumers(target: Target) -> None:
    """250 consumers of empty queues, where the process may have 300 threads."""
    client = target.client()
    for number in range(target.times(250)):
        opened = ConsumeRequest(open={"destination": f"idle.{number % 20}", "create": True})
        client.call("Consume", opened.SerializeToString(), end=False)


def streams(target: Target) -> None:
    """Two connections with a thousand streams each."""
    opened = ConsumeRequest(open={"destination": "crowd", "create": True}).SerializeToString()
    for _ in range(2):
        client = target.client()
        with contextlib.suppress(TimeoutError, ConnectionError):
            for _ in range(1000):
                client.call("Consume", opened, end=False, timeout=2)


def newcomer(target: Target) -> None:
    """Somebody else who comes now, and tries again like every client, is told who is there."""
    with target.new_wire() as wire:
        assert wire.hello().cluster_id


def connections(target: Target) -> None:
    """More idle connections than are allowed, from one host; then another one comes."""
    for _ in range(400):
        with contextlib.suppress(OSError):
            target.link_from(_ELSEWHERE, http2.PREFACE + http2.settings())
    newcomer(target)


def few_threads(threads: int) -> tuple[str, ...]:
    """The command that gives a process no more than so many: as a user of its own, since root has no such
    limit.
    """
    user = str(61_000 + os.getpid() % 4000)
    capabilities = ("--inh-caps=+dac_override", "--ambient-caps=+dac_override")
    return ("prlimit", f"--nproc={threads}", "setpriv", f"--reuid={user}", "--clear-groups", *capabilities)


ATTACKS: Final = (
    Attack("consumers beyond the limit of threads", idle_consumers, seconds=0.5, limits=few_threads(300)),
    Attack("two thousand streams", streams, lawful=True, seconds=1),
    Attack("connections of one host", connections, seconds=0.5, settings={"connections_max": 200}),
)
