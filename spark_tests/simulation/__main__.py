"""Runs many simulations: `python -m spark_tests.simulation --seeds 200`, or one with its trace: `--seed 17`."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter

from spark_tests.simulation.simulation import Outcome, simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many histories")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--operations", type=int, default=1000, help="of each history")
    parser.add_argument("--seed", type=int, help="this history alone, with its trace")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    began = time.monotonic()
    failed = 0
    for seed in [options.seed] if options.seed is not None else range(options.first, options.first + options.seeds):
        outcome = simulate(seed, options.operations)
        counts += outcome.counts
        if options.seed is not None:
            sys.stdout.write("\n".join(outcome.trace) + "\n")
        if not outcome.is_clean:
            failed += 1
            tell(outcome, options.operations)
    minutes = (time.monotonic() - began) / 60
    for name, count in sorted(counts.items()):
        sys.stdout.write(f"{count:10,d}  {name}\n")
    sys.stdout.write(f"{options.seeds} histories, {failed} of them failed, {options.seeds / minutes:.0f} a minute\n")
    return 1 if failed else 0


def tell(outcome: Outcome, operations: int) -> None:
    """Says what is wrong, and how to see it again."""
    last = " | ".join(outcome.trace[-12:])
    sys.stdout.write(f"seed {outcome.seed} ({operations} operations), last ones: {last}\n{outcome.report}\n")
    if outcome.failure is not None:
        traceback.print_exception(outcome.failure, file=sys.stdout)


if __name__ == "__main__":
    sys.exit(main())
