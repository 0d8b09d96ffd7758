"""Runs many simulations, or one with its trace.

python -m spark_tests.simulation --seeds 10000 --first 1 --operations 1000
python -m spark_tests.simulation --seed 17
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator

from spark_tests.simulation.simulation import Outcome, simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="make simulate")
    parser.add_argument("--seeds", type=int, default=200, help="how many histories")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--operations", type=int, default=1000, help="of each history")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, help="this history alone, with its trace")
    options = parser.parse_args()
    if options.seed is not None:
        outcome = simulate(options.seed, options.operations)
        sys.stdout.write("\n".join(outcome.trace) + "\n")
        sys.stdout.write(told(outcome) + "\n")
        tell_counts(outcome.counts)
        return 0 if outcome.is_clean else 1
    began = time.monotonic()
    counts: Counter[str] = Counter()
    failed = []
    done = 0
    try:
        for done, (seed, found, words) in enumerate(run(options), 1):
            counts += found
            if words:
                failed.append(seed)
                sys.stdout.write(words + "\n")
            if sys.stdout.isatty():
                sys.stdout.write(f"\r{done} histories, {len(failed)} of them failed")
            sys.stdout.flush()
    except KeyboardInterrupt:
        sys.stdout.write("\nbroken off\n")
    tell_counts(counts)
    rate = done / ((time.monotonic() - began) / 60)
    sys.stdout.write(
        f"{done} histories of {options.operations} operations from seed {options.first} on, {rate:.0f} a "
        f"minute: "
        f"{len(failed)} failed{': ' if failed else ''}{', '.join(map(str, failed))}\n"
    )
    return 1 if failed else 0


def run(options: argparse.Namespace) -> Iterator[tuple[int, Counter[str], str]]:
    """Yields seed, counts and, where the history failed, what is wrong with it."""
    jobs = [(seed, options.operations) for seed in range(options.first, options.first + options.seeds)]
    if options.processes == 1:
        yield from map(_job, jobs)
        return
    # Forked: what was imported need not be imported again. Nothing has a thread yet.
    with multiprocessing.get_context("fork").Pool(
        options.processes, signal.signal, (signal.SIGINT, signal.SIG_IGN)
    ) as pool:
        yield from pool.imap(_job, jobs)


def _job(job: tuple[int, int]) -> tuple[int, Counter[str], str]:
    outcome = simulate(*job)
    return outcome.seed, outcome.counts, "" if outcome.is_clean else told(outcome)


def told(outcome: Outcome) -> str:
    """Returns what is to be said of a history: how to see it again, the oracle's report, and the last
    operations.
    """
    lines = [f"seed {outcome.seed}, trace {outcome.trace_hash:#010x}: {outcome.report}"]
    if outcome.failure is not None:
        lines += [line.rstrip() for line in traceback.format_exception(outcome.failure)]
    if not outcome.is_clean:
        lines.append(
            f"last operations: {' | '.join(outcome.trace[-12:])}\nsee it again: make simulate "
            f"SEED={outcome.seed}"
        )
    return "\n".join(lines)


def tell_counts(counts: Counter[str]) -> None:
    for name, count in sorted(counts.items()):
        sys.stdout.write(f"{count:12,d}  {name}\n")


if __name__ == "__main__":
    sys.exit(main())
