"""Damaged requests of every method: no process dies, hangs or grows, nothing is answered as a bug, and what
is accepted can be read.

MQ_FUZZ_INPUTS says how many (12,000); the printed seed repeats every one of them.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections import Counter
from typing import Any, Final

import pytest

from mq_wire.errors import TABLE
from mq_wire.service import METHODS
from spark_tests.hostile import replies
from spark_tests.support.seeds import session_seed

INPUTS: Final = int(os.environ.get("MQ_FUZZ_INPUTS", "12000"))
_CHUNK_INPUTS: Final = 1000
#: Chunks of one process: its memory is measured against what one chunk may take.
_CHUNKS_PER_PROCESS: Final = 50
RSS_ANON_BYTES_MAX: Final = 400 << 20


class Tally:
    """What all processes report together."""

    def __init__(self) -> None:
        self.inputs = self.read_rows = self.rss_anon_bytes = self.deaths = 0
        self.slowest_s = 0.0
        self.counts: Counter[str] = Counter()
        self.kinds: set[str] = set()
        self.findings: list[str] = []

    def add(self, report: dict[str, Any]) -> None:
        self.inputs += report["inputs"]
        self.read_rows += report["read_rows"]
        self.counts.update(report["counts"])
        self.kinds.update(report["kinds"])
        self.findings += report["findings"]
        self.rss_anon_bytes = max(self.rss_anon_bytes, report["rss_anon_bytes"])
        self.slowest_s = max(self.slowest_s, report["slowest_s"])

    def table(self, seconds: float) -> str:
        per_method: Counter[str] = Counter()
        per_code: Counter[str] = Counter()
        for name, count in self.counts.items():
            method, code = name.split(" ")
            per_method[method] += count
            per_code[f"client's {code}" if method in replies.METHODS else code] += count
        lines = [
            f"{self.inputs} inputs in {seconds:.0f} s = {self.inputs / seconds:.0f}/s, seed {session_seed()}",
            (
                f"deaths {self.deaths}, findings {len(self.findings)}, kinds of answers {len(self.kinds)}, "
                f"rows read back {self.read_rows}"
            ),
            (
                f"peak RssAnon {self.rss_anon_bytes >> 20} MiB, slowest input {self.slowest_s * 1000:.0f} ms "
                f"of processor time"
            ),
            "per method: " + ", ".join(f"{name} {count}" for name, count in per_method.most_common()),
            "per answer: " + ", ".join(f"{name} {count}" for name, count in per_code.most_common()),
        ]
        return "\n".join(lines)


def run(
    first: int, chunks: int, inputs: int, journal: pathlib.Path, *more: str
) -> subprocess.CompletedProcess[str]:
    """Runs chunks in a process of their own, which says in `journal` where it is."""
    command = [
        sys.executable,
        "-m",
        "spark_tests.hostile.fuzzing",
        session_seed(),
        str(first),
        str(chunks),
        str(inputs),
        str(journal),
        *more,
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "PYTHONFAULTHANDLER": "1",
    }
    return subprocess.run(command, env=environment, text=True, capture_output=True, check=False)


def place_of_death(
    process: subprocess.CompletedProcess[str], chunk: int, inputs: int, folder: pathlib.Path
) -> str:
    """Returns which input ended a process: the last one that a run of the same chunk does not survive."""
    survived, fatal = 0, inputs
    while fatal - survived > 1:
        middle = (survived + fatal) // 2
        ended = run(chunk, 1, middle, folder / f"search-{chunk}-{middle}")
        survived, fatal = (middle, fatal) if ended.returncode == 0 else (survived, middle)
    code = process.returncode
    name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return f"chunk {chunk} input {fatal - 1} ended the process with {name}: {process.stderr[-2000:]}"


@pytest.mark.fuzz
@pytest.mark.timeout(60 + INPUTS / 300)
def test_damaged_requests_harm_nobody(tmp_path: pathlib.Path) -> None:
    tally, began = Tally(), time.monotonic()
    chunk, last = 0, -(-INPUTS // _CHUNK_INPUTS)
    while chunk < last and not tally.findings:
        chunks = min(_CHUNKS_PER_PROCESS, last - chunk)
        journal = tmp_path / f"from-{chunk}"
        process = run(chunk, chunks, _CHUNK_INPUTS, journal)
        for line in journal.read_text(encoding="utf-8").splitlines():
            report = json.loads(line)
            chunk = report.get("begins", chunk)
            if "inputs" in report:
                tally.add(report)
                if report["findings"]:
                    tally.findings.append(f"{report['method']} {report['call']}")
        if process.returncode:
            tally.deaths += 1
            tally.findings.append(place_of_death(process, chunk, _CHUNK_INPUTS, tmp_path))
        chunk += 1
    sys.stdout.write("\n" + tally.table(time.monotonic() - began) + "\n")
    assert not tally.findings, "\n".join(tally.findings)
    assert tally.deaths == 0
    assert tally.inputs >= INPUTS
    assert tally.rss_anon_bytes < RSS_ANON_BYTES_MAX
    # That it means something: all methods, accepted and refused, with many reasons, and rows that came
    # through.
    assert {name.split(" ")[0] for name in tally.counts} == {*METHODS, *replies.METHODS}
    assert {name.split(" ")[1] for name in tally.counts} <= {"OK", *(error.code for error in TABLE)}
    assert tally.read_rows > INPUTS // 20
    assert len(tally.kinds) > 150


def test_an_input_that_ends_the_process_is_named(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MQ_FUZZ_CANARY", "1")
    process = run(0, 1, 4, tmp_path / "journal")
    assert process.returncode == -signal.SIGSEGV
    assert [json.loads(line) for line in (tmp_path / "journal").read_text(encoding="utf-8").splitlines()] == [
        {"begins": 0}
    ]
    assert place_of_death(process, 0, 4, tmp_path).startswith(
        "chunk 0 input 1 ended the process with SIGSEGV"
    )
