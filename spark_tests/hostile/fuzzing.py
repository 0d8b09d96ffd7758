"""One process that feeds damaged requests to a broker's boundary, chunk by chunk; each chunk follows from the
seed and its number.

    python -m spark_tests.hostile.fuzzing SEED FIRST_CHUNK CHUNKS INPUTS_PER_CHUNK JOURNAL [INPUT]

Before each chunk it writes its number into JOURNAL, after it the counts, as JSON lines; a process that dies
has said where. With INPUT it stops behind that one and shows what it was.
"""

from __future__ import annotations

import base64
import json
import os
import pathlib
import random
import resource
import signal
import sys
import time
from collections import Counter
from types import FrameType
from typing import Any, Final

from mq_broker.core.commands import OpenSession, ReleaseView, RowsView
from mq_broker.memory import anonymous_bytes
from mq_wire import framing
from mq_wire.service import METHODS
from mq_wire.v1 import consume_pb2, subscribe_pb2
from mq_wire.v1.common_pb2 import RowsHeader
from spark_tests.hostile import mutation
from spark_tests.hostile.boundary import Boundary, template
from spark_tests.hostile.payloads import foreign_publishes
from spark_tests.hostile.reading import read_as_clients
from spark_tests.hostile.replies import Replies
from spark_tests.hostile.traffic import QUEUE, Corpus, Traffic

#: Processor time that one input may take, and time by the clock, for where it waits for somebody.
INPUT_CPU_S: Final = 1.0
INPUT_WALL_S: Final = 30.0
#: Address space beyond what the process has when it begins.
ROOM_BYTES: Final = 1 << 30
#: One chunk in so many goes the other way: a broker's answers, damaged, to its clients.
_REPLIES_EVERY: Final = 8
#: An input that ends the process, so that a test sees the alarm go off.
_CANARY: Final = int(os.environ.get("MQ_FUZZ_CANARY", "-1"))
#: How much more often than others a method is called.
_WEIGHTS: Final = {
    "Send": 40,
    "Plan": 4,
    "OpenRange": 4,
    "Fetch": 2,
    "CommitStaged": 4,
    "Publish": 0.5,
    "Consume": 0.5,
    "HoldRun": 1,
    "DeleteDestination": 0.1,
    "ReleaseConsumer": 0.3,
}


class Chunk:
    """One broker and so many inputs."""

    def __init__(self, seed: str, number: int) -> None:
        self.rng = random.Random(f"{seed}/{number}")
        self.boundary = Boundary(self._died)
        self.corpus: Corpus = Traffic(self.boundary).corpus
        self.corpus["Send"] += [(message,) for message in foreign_publishes(QUEUE)]
        self.methods = sorted(self.corpus)
        self.weights = [_WEIGHTS.get(method, 2) for method in self.methods]
        self.seen: set[str] = set()
        self.counts: Counter[str] = Counter()
        self.findings: list[str] = []
        self.read_rows = 0
        self.slowest_s = 0.0
        self._views: list[RowsView] = []
        opened = consume_pb2.OpenConsumer(destination=QUEUE, credit={"rows": 1 << 40, "bytes": 1 << 50})
        self.boundary.engine.call(OpenSession(opened, self._views.append))
        self._read()

    def _died(self, error: BaseException) -> None:
        self.findings.append(f"the broker would have ended: {type(error).__name__}: {error}")

    def next_input(self) -> tuple[str, tuple[bytes, ...]]:
        """Returns a method and the requests of one call."""
        rng = self.rng
        (method,) = rng.choices(self.methods, self.weights)
        call = list(rng.choice(self.corpus[method]))
        other = rng.choice(self.corpus[rng.choice(self.methods)])[0]
        at = rng.randrange(len(call))
        if method in ("Send", "Publish"):
            records = bytes(framing.split(rng.choice(self.corpus["Send"])[0])[1])
            call[at] = mutation.damaged_publish(rng, call[at], other, records, f"{rng.getrandbits(128):032x}")
        elif rng.random() < 0.6:
            call[at] = mutation.restructured(rng, call[at], other)
        else:
            call[at] = mutation.mutated(rng, call[at], other)
        if len(call) > 1 and rng.random() < 0.1:
            rng.shuffle(call)
        return method, tuple(call)

    def run(self, method: str, call: tuple[bytes, ...]) -> None:
        """Feeds one input, and reads what it led to as every consumer would."""
        code = details = ""
        try:
            for answer in self.boundary.feed(method, *call):
                code, details, reply = answer
                if method == "Fetch":
                    self._read_fetched(reply)
            self._read()
        except Exception as error:
            self.findings.append(f"{method} raised {type(error).__name__}: {error}")
        self.counts[f"{method} {code or 'OK'}"] += 1
        if code in ("INTERNAL", "JOURNAL_DAMAGED", "STORAGE_FAILED") or (not code and details):
            self.findings.append(f"{method} answered {code}: {details}")
        kind = f"{method} {template(code, details)}"
        if kind not in self.seen:
            self.seen.add(kind)
            if all(len(message) < 20_000 for message in call):
                self._keep(method, call)

    def _keep(self, method: str, call: tuple[bytes, ...]) -> None:
        if method in ("Send", "Publish"):
            for message in call:
                try:
                    framing.split(message)
                except ValueError:
                    return
        self.corpus[method].append(call)

    def _read(self) -> None:
        """Reads what was delivered. The rows stay assigned: nobody gets them twice."""
        views, self._views[:] = list(self._views), []
        for view in views:
            for header, records in self.boundary.engine.read(view, 0, 0):
                self.read_rows += read_as_clients(header, memoryview(records), QUEUE)
            self.boundary.engine.submit(ReleaseView(view), lambda _: None)

    def _read_fetched(self, answer: Any) -> None:
        if answer is not None:
            head, records = framing.split(answer)
            self.read_rows += read_as_clients(RowsHeader.FromString(bytes(head)), records, QUEUE)

    def browse_all(self) -> None:
        """Reads every row of every destination there is."""
        for name in list(self.boundary.broker.state.by_name):
            opened = subscribe_pb2.OpenBrowseRequest(destination=name).SerializeToString()
            for code, details, browse in self.boundary.feed("OpenBrowse", opened):
                assert not code, details
                for part in browse.parts:
                    fetch = subscribe_pb2.OpenFetch(
                        browse=browse.browse, partition=part.partition, last=part.last
                    )
                    request = subscribe_pb2.FetchRequest(
                        open=fetch, credit_rows=1 << 40, credit_bytes=1 << 50
                    )
                    for problem, message, answer in self.boundary.feed("Fetch", request.SerializeToString()):
                        if problem:
                            self.findings.append(
                                f"what was accepted into {name!r} cannot be read: {problem} {message}"
                            )
                        self._read_fetched(answer)


def run_chunk(seed: str, number: int, inputs: int, show: int = -1) -> dict[str, Any]:
    """Runs one chunk and returns its counts. With `show` it ends behind this input and returns it."""
    chunk: Chunk | Replies = (Replies if number % _REPLIES_EVERY == 1 else Chunk)(seed, number)
    for at in range(inputs):
        method, call = chunk.next_input()
        if at == _CANARY:
            os.kill(os.getpid(), signal.SIGSEGV)
        signal.setitimer(signal.ITIMER_PROF, INPUT_CPU_S)
        signal.setitimer(signal.ITIMER_REAL, INPUT_WALL_S)
        began = time.process_time()
        try:
            chunk.run(method, call)
        except _Hang as hang:
            chunk.findings.append(f"{method} took {hang}")
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
        chunk.slowest_s = max(chunk.slowest_s, time.process_time() - began)
        if chunk.findings or at == show:
            shown = [base64.b85encode(message).decode() for message in call]
            chunk.findings = [f"chunk {number} input {at}: {finding}" for finding in chunk.findings]
            if at == show:
                return {"method": method, "call": shown}
            return _report(chunk, number, at + 1) | {"method": method, "call": shown}
    chunk.browse_all()
    chunk.boundary.close()
    return _report(chunk, number, inputs)


def _report(chunk: Chunk | Replies, number: int, inputs: int) -> dict[str, Any]:
    return {
        "chunk": number,
        "inputs": inputs,
        "counts": dict(chunk.counts),
        "kinds": sorted(chunk.seen),
        "findings": chunk.findings,
        "read_rows": chunk.read_rows,
        "rss_anon_bytes": anonymous_bytes(),
        "slowest_s": round(chunk.slowest_s, 3),
    }


class _Hang(BaseException):
    """Not an Exception, so that nothing on the way takes it for an answer."""


def _hang(number: int, frame: FrameType | None) -> None:
    raise _Hang(
        f"more than {INPUT_CPU_S} s of processor time"
        if number == signal.SIGPROF
        else f"more than {INPUT_WALL_S} s"
    )


def main() -> None:
    seed, first, chunks, inputs, path = (
        sys.argv[1],
        int(sys.argv[2]),
        int(sys.argv[3]),
        int(sys.argv[4]),
        sys.argv[5],
    )
    signal.signal(signal.SIGPROF, _hang)
    signal.signal(signal.SIGALRM, _hang)
    run_chunk(seed, first, 1)  # what is allocated once is there now
    size = int(pathlib.Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * os.sysconf(
        "SC_PAGE_SIZE"
    )
    resource.setrlimit(resource.RLIMIT_AS, (size + ROOM_BYTES, resource.RLIM_INFINITY))
    with open(path, "a", encoding="utf-8") as journal:
        for number in range(first, first + chunks):
            journal.write(json.dumps({"begins": number}) + "\n")
            journal.flush()
            show = int(sys.argv[6]) if len(sys.argv) > 6 else -1
            journal.write(json.dumps(run_chunk(seed, number, inputs, show)) + "\n")
            journal.flush()


if __name__ == "__main__":
    assert set(METHODS) == set(Traffic(Boundary(print)).corpus)
    main()
