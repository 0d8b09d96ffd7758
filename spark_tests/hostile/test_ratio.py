"""Memory for bytes: whatever a request of any kind holds, valid or damaged, the broker takes no more than so
many times its bytes.

In a process of its own, over the real handlers: what Python, protobuf and Arrow take together is the peak of
the process's memory.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import pathlib
import random
import re
import subprocess
import sys
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from mq_broker.rpc import requests
from mq_wire import envelope
from mq_wire.limits import REQUEST_BYTES_MAX, RPC_BYTES_MAX
from mq_wire.service import METHODS
from spark_tests.hostile import mutation
from spark_tests.hostile.attacks import records
from spark_tests.hostile.boundary import Boundary
from spark_tests.hostile.traffic import Corpus, Traffic
from spark_tests.support.seeds import session_seed

#: What one request may take at its peak: so many times its bytes, and so much whatever it is.
TIMES_MAX: Final = 10
ANYWAY_BYTES_MAX: Final = 16 << 20
EXAMPLES: Final = int(os.environ.get("MQ_FUZZ_INPUTS", "12000")) // 80
_LIBC: Final = ctypes.CDLL(None)
_LISTS: Final = frozenset({"Consume", "CommitStaged", "DiscardStaged"})
_PEAK: Final = re.compile(r"VmHWM:\s+(\d+) kB")
_NOW: Final = re.compile(r"VmRSS:\s+(\d+) kB")


pytestmark = pytest.mark.slow


def memory(what: re.Pattern[str]) -> int:
    found = what.search(pathlib.Path("/proc/self/status").read_text(encoding="ascii"))
    assert found is not None
    return int(found[1]) << 10


class Scale:
    """One broker, and what each request makes it take."""

    def __init__(self) -> None:
        self.boundary = Boundary(self._failed)
        self.corpus: Corpus = Traffic(self.boundary).corpus
        self.methods = sorted(METHODS)
        self.worst: dict[str, float] = {}
        self.findings: list[str] = []

    def _failed(self, error: BaseException) -> None:
        self.findings.append(f"the broker would have ended: {error!r}")

    def weigh(self, method: str, call: tuple[bytes, ...], what: str) -> None:
        """Feeds one call, and notes what it takes."""
        size = sum(len(message) for message in call)
        # What was taken before and is free must not be taken for nothing.
        pa.default_memory_pool().release_unused()
        _LIBC.malloc_trim(0)
        pathlib.Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        before = memory(_NOW)
        for _ in self.boundary.feed(method, *call):
            pass
        taken = memory(_PEAK) - before
        ratio = max(0, taken - ANYWAY_BYTES_MAX) / max(size, 1)
        self.worst[method] = max(self.worst.get(method, 0.0), round(taken / max(size, 1 << 20), 1))
        if ratio > TIMES_MAX:
            self.findings.append(f"{method}, {what}: {size} bytes took {taken >> 20} MiB")


def stuffed(rng: random.Random, message: bytes, limit: int) -> bytes:
    """A message again and again: its lists grow, since messages that stand behind each other are one."""
    return message * max(1, rng.choice((1 << 10, 60 << 10, limit - 1)) // max(len(message), 1))


def one_call(scale: Scale, rng: random.Random) -> tuple[str, tuple[bytes, ...], str]:
    method = rng.choice(scale.methods)
    call = list(rng.choice(scale.corpus[method]))
    at, limit = rng.randrange(len(call)), RPC_BYTES_MAX if method in _LISTS else REQUEST_BYTES_MAX
    kind = rng.choice(("stuffed", "stuffed", "restructured", "mutated", "pairs"))
    other = rng.choice(scale.corpus[rng.choice(scale.methods)])[0]
    if method in ("Send", "Publish") and kind != "mutated":
        entries, size = rng.choice((1, 100, 40_000)), rng.choice((1, 1000, 1_000_000))
        kind = f"{entries} entries of {size} bytes"
        message = records.with_metadata(entries, size, one_table=rng.random() < 0.5)
        call[at] = records.request(message, 1, rng.choice((envelope.VALUE, envelope.VALUE | envelope.KEY)))
    elif kind == "stuffed":
        call[at] = stuffed(rng, call[at], limit)
    elif kind == "pairs":
        # The smallest field there is, of every number, as often as a request is long.
        call[at] += bytes((rng.randrange(1, 16) << 3 | rng.choice((0, 2)), 0)) * (
            rng.choice((50_000, limit)) // 2 - len(call[at])
        )
    else:
        call[at] = (mutation.restructured if kind == "restructured" else mutation.mutated)(
            rng, call[at], other
        )
    return method, tuple(call), kind


def main() -> None:
    """Searches, and says what was found, as JSON."""
    scale = Scale()

    @seed(int(sys.argv[1]))
    @settings(
        max_examples=int(sys.argv[2]),
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.integers(0, 2**64))
    def search(number: int) -> None:
        scale.weigh(*one_call(scale, random.Random(number)))

    if len(sys.argv) > 3:  # a broker that does not count fields before it parses them
        requests._FIELDS_MAX = 1 << 40  # type: ignore[misc]
        scale.weigh("CommitStaged", (bytes((10, 0)) * 1_000_000,), "a million sets without a name")
        scale.boundary.close()
        sys.stdout.write(json.dumps({"findings": scale.findings, "worst": scale.worst}))
        return
    for weigh in (
        functools.partial(scale.weigh, name, call, "as it is")
        for name in scale.methods
        for call in scale.corpus[name]
    ):
        weigh()
    search()
    scale.boundary.close()
    sys.stdout.write(json.dumps({"findings": scale.findings, "worst": scale.worst}))


def searched(examples: int, *more: str) -> dict[str, Any]:
    """What a process of its own has found."""
    number = random.Random(session_seed()).getrandbits(32)
    command = [sys.executable, "-m", "spark_tests.hostile.test_ratio", str(number), str(examples), *more]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.run(command, env=environment, text=True, capture_output=True, check=False)
    assert process.returncode == 0, process.stderr[-3000:]
    found: dict[str, Any] = json.loads(process.stdout)
    return found


@pytest.mark.fuzz
@pytest.mark.timeout(120 + EXAMPLES)
def test_no_request_takes_many_times_its_bytes() -> None:
    found = searched(EXAMPLES)
    sys.stdout.write(
        f"\ntimes the bytes of a request (of a MiB where it is smaller), at most: {found['worst']}\n"
    )
    assert not found["findings"], found["findings"][:5]
    assert set(found["worst"]) == set(METHODS)


def test_the_alarm_rings_for_a_broker_that_does_not_count_fields() -> None:
    found = searched(1, "canary")
    assert found["findings"], found["worst"]


if __name__ == "__main__":
    main()
