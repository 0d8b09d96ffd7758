"""Consumers that wait, in processes beside, and what a process costs meanwhile."""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import sys
import time
from types import TracebackType
from typing import Self

from mq_wire.v1.admin_pb2 import CreateDestinationRequest
from pyspark_mq import Connection, Consumer, Producer

PER_PROCESS = 250


def cpu_seconds(pid: int) -> float:
    """Processor time of a process since it began, in seconds."""
    after_name = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def busy_percent(pid: int, seconds: float) -> float:
    """What share of one core a process takes, over so many seconds."""
    before, started = cpu_seconds(pid), time.perf_counter()
    time.sleep(seconds)
    return 100 * (cpu_seconds(pid) - before) / (time.perf_counter() - started)


def threads(pid: int) -> int:
    """How many threads a process has."""
    return len(os.listdir(f"/proc/{pid}/task"))


class Crowd:
    """`count` connected consumers, each of a queue of its own, spread over processes.

    Args:
        address: of the broker.
        count: of consumers.
        per_process: how many of them a process has.
        shared: whether those of a process share one connection, or have one each.
    """

    def __init__(
        self, address: str, count: int, per_process: int = PER_PROCESS, *, shared: bool = False
    ) -> None:
        self._address, self._count = address, count
        self._processes: list[subprocess.Popen[str]] = []
        for first in range(0, count, per_process):
            numbers = str(first), str(min(first + per_process, count))
            command = [
                sys.executable, "-m", "benchmarks.idle", address, *numbers, *(["shared"] if shared else [])
            ]  # fmt: skip
            self._processes.append(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
        self._expect("connected")

    @property
    def pids(self) -> list[int]:
        """The processes."""
        return [process.pid for process in self._processes]

    def reach_everybody(self) -> None:
        """Sends one message to each; returns when all have acknowledged theirs."""
        with Connection(self._address) as connection:
            for number in range(self._count):
                with Producer(queue=f"idle.{number}", connection=connection) as producer:
                    producer.send(b"wake up").result(timeout=60)
        self._expect("reached")

    def _expect(self, word: str) -> None:
        for process in self._processes:
            assert process.stdout is not None
            said = process.stdout.readline().strip()
            if said != word:
                raise SystemExit(f"a process of idle consumers said {said!r} instead of {word!r}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        for process in self._processes:
            process.wait(timeout=60)


def wait_for_one_each(address: str, numbers: range, *, shared: bool) -> None:
    """Connects, waits for one message each, acknowledges it, and leaves when its stdin ends."""
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(Connection(address)) for _ in numbers[: 1 if shared else None]]
        connections *= len(numbers) if shared else 1
        queues = [f"idle.{number}" for number in numbers]
        for queue, connection in zip(queues, connections, strict=True):
            connection.call("CreateDestination", CreateDestinationRequest(name=queue, partitions=1))
        consumers = [
            stack.enter_context(Consumer(queue=q, connection=c))
            for q, c in zip(queues, connections, strict=True)
        ]
        for consumer in consumers:
            if consumer.receive(timeout=0.01) is not None:
                raise SystemExit("a queue was not empty")
        print("connected", flush=True)
        for consumer in consumers:
            message = consumer.receive(timeout=600)
            if message is None:
                raise SystemExit("a consumer was not reached")
            consumer.acknowledge(message)
            consumer.flush(timeout=60)
        print("reached", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    wait_for_one_each(sys.argv[1], range(int(sys.argv[2]), int(sys.argv[3])), shared="shared" in sys.argv[4:])
