"""A client that behaves, in a process of its own, while others do not: sends, receives and asks, and writes
down how long it took.

    python -m spark_tests.hostile.witness ADDRESS

One JSON line a round, until its stdin ends, and one with what the broker has counted.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from mq_wire.v1.admin_pb2 import StatsRequest
from pyspark_mq import Connection, Consumer, Producer
from spark_tests.support.waiting import wait_until

#: How long the broker may take for one call.
_TIMEOUT_S: Final = 60.0


class Witness:
    """The process, as a test sees it."""

    def __init__(self, address: str) -> None:
        command = [sys.executable, "-m", "spark_tests.hostile.witness", address]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.rounds: list[dict[str, Any]] = []
        #: Its own, which nobody else touches.
        self.queue = f"innocent.{self._process.pid}"
        self._counted: dict[str, Any] = {}
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        wait_until(lambda: self.rounds, 180, "the first round of the witness")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if "counted" in said:
                self._counted = said["counted"]
            else:
                self.rounds.append(said)

    def since(self, began: float) -> list[dict[str, Any]]:
        """Returns the rounds that ended after a time of the monotonic clock."""
        return [r for r in self.rounds if r["began"] + r["took_s"] >= began]

    def wait_for(self, count: int) -> list[dict[str, Any]]:
        """Returns so many rounds that began from now on."""
        began = time.monotonic()
        return wait_until(
            lambda: (new := [r for r in self.rounds if r["began"] >= began])[count:] and new,
            180,
            f"{count} rounds",
        )

    def close(self) -> None:
        """Ends the process: nothing was lost, and nothing is there twice.

        Raises:
            AssertionError: something was.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(180)
        self._thread.join()
        self._process.stdout.close()
        failed = [r["error"] for r in self.rounds if r["error"]]
        assert not failed, f"{len(failed)} of {len(self.rounds)} rounds failed, such as {failed[0]}"
        assert self._counted, "the innocent client ended before its time"
        expected = {"enqueued_rows": len(self.rounds), "depth_rows": 0, "staged_rows": 0}
        assert self._counted == expected, f"{len(self.rounds)} rounds, and the broker has {self._counted}"

    def kill(self) -> None:
        """Ends the process at once."""
        self._process.kill()
        self._process.wait()
        self._thread.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def main(address: str) -> None:
    ended: queue.SimpleQueue[None] = queue.SimpleQueue()
    threading.Thread(target=wait_for_end, args=(ended,), daemon=True).start()
    # Another one's rows, of this broker's earlier life, are none of ours.
    name, number = f"innocent.{os.getpid()}", 0
    with (
        Connection(address) as connection,
        Producer(address, queue=name) as producer,
        Consumer(address, queue=name) as consumer,
        grpc.insecure_channel(address.removeprefix("mq://")) as channel,
    ):
        health = health_pb2_grpc.HealthStub(channel)
        while ended.empty():
            number += 1
            began, error = time.monotonic(), ""
            try:
                producer.send(b"%d" % number).result(timeout=_TIMEOUT_S)
                message = consumer.receive(timeout=_TIMEOUT_S)
                if message is None or message.value != b"%d" % number:
                    error = f"sent {number}, received {message}"
                else:
                    consumer.acknowledge(message)
                connection.call("Stats", StatsRequest(), timeout=_TIMEOUT_S)
                health.Check(health_pb2.HealthCheckRequest(), timeout=_TIMEOUT_S)
            except Exception as problem:
                error = f"{type(problem).__name__}: {problem}"
            say({"began": began, "took_s": time.monotonic() - began, "error": error})
            ended_soon(ended)
        consumer.flush(timeout=_TIMEOUT_S)
        stats = connection.call("Stats", StatsRequest(destination=name), timeout=_TIMEOUT_S).destination
        say({"counted": {key: getattr(stats, key) for key in ("enqueued_rows", "depth_rows", "staged_rows")}})


def say(what: dict[str, Any]) -> None:
    """One line for who started us."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def wait_for_end(ended: queue.SimpleQueue[None]) -> None:
    """Tells when stdin has ended."""
    sys.stdin.read()
    ended.put(None)


def ended_soon(ended: queue.SimpleQueue[None]) -> None:
    """Leaves the processor to others for a moment."""
    try:
        ended.put(ended.get(timeout=0.005))
    except queue.Empty:
        return


if __name__ == "__main__":
    main(sys.argv[1])
