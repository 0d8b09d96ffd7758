"""A client that behaves, in a process of its own, while others do not: sends, receives and asks, and writes down how long it took.

    python -m spark_tests.hostile.witness ADDRESS

One JSON line a round, until its stdin ends.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from typing import Any, Final

from mq_wire.v1.admin_pb2 import StatsRequest
from pyspark_mq import Connection, Consumer, Producer
from spark_tests.support.waiting import wait_until

_QUEUE: Final = "witness"


class Witness:
    """The process, as a test sees it."""

    def __init__(self, address: str) -> None:
        command = [sys.executable, "-m", "spark_tests.hostile.witness", address]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.rounds: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        wait_until(lambda: self.rounds, 60, "the first round of the witness")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.rounds.append(json.loads(line))

    def wait_for(self, count: int) -> list[dict[str, Any]]:
        """Returns so many rounds that began from now on."""
        began = time.monotonic()
        return wait_until(lambda: (new := [r for r in self.rounds if r["began"] >= began])[count:] and new, 60, f"{count} rounds")

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._thread.join()
        self._process.stdout.close()


def main(address: str) -> None:
    ended: queue.SimpleQueue[None] = queue.SimpleQueue()
    threading.Thread(target=wait_for_end, args=(ended,), daemon=True).start()
    number = 0
    with Connection(address) as connection, Producer(address, queue=_QUEUE) as producer, Consumer(address, queue=_QUEUE) as consumer:
        while ended.empty():
            number += 1
            began, error = time.monotonic(), ""
            try:
                producer.send(b"%d" % number).result(timeout=30)
                message = consumer.receive(timeout=30)
                if message is None or message.value != b"%d" % number:
                    error = f"sent {number}, received {message}"
                else:
                    consumer.acknowledge(message)
                connection.call("Stats", StatsRequest())
            except Exception as problem:
                error = f"{type(problem).__name__}: {problem}"
            line = json.dumps({"began": began, "took_s": time.monotonic() - began, "error": error})
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
            ended_soon(ended)


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
