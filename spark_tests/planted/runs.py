"""The general runs that planted bugs are caught with. Each knows nothing of any bug: it makes histories from
seeds and judges them.
"""

from __future__ import annotations

import random
import struct
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis.stateful import run_state_machine_as_test

from mq_wire import envelope
from mq_wire.errors import InvalidRecords, MqError
from spark_tests.planted.crash_states import crash_states
from spark_tests.planted.directory import directory_life
from spark_tests.planted.full_disk import full_disk
from spark_tests.planted.promises import Promises
from spark_tests.planted.rot import rot
from spark_tests.planted.serving import serving
from spark_tests.simulation.simulation import simulate
from spark_tests.support.chunks import chunks_of
from spark_tests.support.journal_lives import live_long, prepared
from spark_tests.support.machines.disks import DiskMachine
from spark_tests.support.seeds import seeded
from spark_tests.support.worlds.ending import ending

#: What shows as one of these was planted wrongly: the changed text does not even run.
_BROKEN_PLANTS: Final = (NameError, SyntaxError, ImportError)
#: One history is a few examples; what fails is told as it is, since nobody reads a planted bug's shortest
#: example.
_MODEL: Final = settings(
    max_examples=5,
    stateful_step_count=60,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    verbosity=Verbosity.quiet,
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)
#: Operations of one simulated history.
_OPERATIONS: Final = 400


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with a history: the check that says so, and what it says."""

    check: str
    detail: str


@dataclass(frozen=True, slots=True)
class Run:
    """A kind of history.

    Attributes:
        name: as bugs and tables name it.
        history: makes the history of one seed, and says what is wrong with it.
        histories_max: how many are made before a bug counts as not caught.
    """

    name: str
    history: Callable[[int], Finding | None]
    histories_max: int


@dataclass(frozen=True, slots=True)
class Search:
    """What became of a search: what was found, if anything, and after how many histories and seconds."""

    finding: Finding | None
    histories: int
    seconds: float


def first_seed(name: str) -> int:
    """Returns where a search begins: elsewhere for each name and each seed of the session."""
    return seeded(f"planted/{name}").randrange(1 << 30)


def search(
    run: Run, first_seed: int, histories_max: int | None = None, seconds: float = float("inf")
) -> Search:
    """Makes histories until one of them is wrong, there were enough, or so many seconds have gone."""
    began = time.monotonic()
    count = run.histories_max if histories_max is None else histories_max
    for made in range(count):
        if made and time.monotonic() - began > seconds:
            return Search(None, made, time.monotonic() - began)
        finding = _made(run, first_seed + made)
        if finding is not None:
            return Search(finding, made + 1, time.monotonic() - began)
    return Search(None, count, time.monotonic() - began)


def _made(run: Run, seed: int) -> Finding | None:
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(envelope, "decode_trusted", _decode_distrusted)
            return run.history(seed)
    except Exception as error:  # it is the finding
        return finding_of(error)


def _decode_distrusted(records: pa.Buffer, columns: int) -> pa.RecordBatch:
    """A broken broker trusts what it must not: Arrow follows any offset there, and would end this process.
    Here that is a finding.
    """
    try:
        rows = envelope._Table.root(memoryview(records)[8:]).table(2).scalar(0, "<q", 0)
        return envelope.decode(records, columns, rows)
    except (InvalidRecords, struct.error, IndexError) as error:
        raise AssertionError(f"records are decoded that nobody verified: {error}") from error


def finding_of(error: BaseException) -> Finding:
    """Returns an exception that no fault accounts for as a finding: what it is, and where it was raised."""
    if isinstance(error, _BROKEN_PLANTS):
        raise AssertionError(f"a bug was planted wrongly: {error!r}") from error
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if "/lib/python" not in frame.filename
    ]
    where = f"{Path(frames[-1].filename).stem}.{frames[-1].name}" if frames else "unknown"
    check = type(error).__name__ if isinstance(error, MqError) else f"{type(error).__name__} in {where}"
    return Finding(check, str(error))


def _journal_lives(seed: int) -> Finding | None:
    """Random turns, power cuts, failed syncs and restarts; what is recovered is what was acknowledged, and at
    most one turn in flight.
    """
    rng = random.Random(seed)
    try:
        live_long(prepared(rng), rng, processes=12)
    except AssertionError as error:
        return Finding("recovered turns differ", str(error))
    return None


def _simulation(seed: int) -> Finding | None:
    """A whole broker with its clients, judged by the oracle."""
    outcome = simulate(seed, _OPERATIONS)
    if outcome.failure is not None:
        return finding_of(outcome.failure)
    if outcome.report.wrong:
        return Finding(", ".join(outcome.report.wrong), str(outcome.report))
    return None


def _model(seed: int) -> Finding | None:
    """Random commands to a broker on a disk and to the model of it, with snapshots, restarts, kills and power
    cuts among them.
    """
    machine = type("SeededMachine", (DiskMachine,), {"_hypothesis_internal_use_seed": seed})
    with chunks_of():
        run_state_machine_as_test(machine, settings=_MODEL)
    return None


def _rot(seed: int) -> Finding | None:
    """Damage in one place of a disk at rest is found, or changes nothing."""
    what = rot(seed)
    return Finding("damage that goes unnoticed, or that is refused without need", what) if what else None


def _crash_states(seed: int) -> Finding | None:
    """A crash at any step of either disk leaves the state before the turn in hand, or behind it."""
    crash_states(seed)
    return None


def _promises(seed: int) -> Finding | None:
    """What an engine answers holds from the moment when the answer leaves, also where a request comes twice
    in one turn.
    """
    report = Promises(seed).run()
    return Finding(", ".join(report.wrong), str(report)) if report.wrong else None


def _full_disk(seed: int) -> Finding | None:
    """A full disk is consumed empty, and takes rows again."""
    full_disk(seed)
    return None


def _directory(seed: int) -> Finding | None:
    """A data directory that goes away under its broker is noticed, and nobody else gets in."""
    what = directory_life(seed)
    return Finding("a lost directory", what) if what else None


def _serving(seed: int) -> Finding | None:
    """Clients that take all they get leave something for others, and what is given back is there again."""
    serving(seed)
    return None


def _ending(seed: int) -> Finding | None:
    """What ends by itself does so at its time: what nobody touches, and nothing else."""
    ending(seed)
    return None


JOURNAL_LIVES: Final = Run("journal lives", _journal_lives, 400)
SIMULATION: Final = Run("simulation", _simulation, 1500)
MODEL: Final = Run("model", _model, 200)
CRASH_STATES: Final = Run("crash states", _crash_states, 8000)
PROMISES: Final = Run("promises", _promises, 500)
ROT: Final = Run("rot", _rot, 400)
FULL_DISK: Final = Run("full disk", _full_disk, 60)
DIRECTORY: Final = Run("directory", _directory, 100)
SERVING: Final = Run("serving", _serving, 100)
ENDING: Final = Run("ending", _ending, 100)
RUNS: Final = {
    run.name: run
    for run in (
        SERVING,
        ENDING,
        DIRECTORY,
        FULL_DISK,
        JOURNAL_LIVES,
        CRASH_STATES,
        PROMISES,
        SIMULATION,
        MODEL,
        ROT,
    )
}
