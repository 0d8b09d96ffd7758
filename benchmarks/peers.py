"""Ours beside Spark's Kafka connector and beside a source with nothing behind it, with ratios: `make
bench-peers`.

Everything runs in one Spark session on one machine, round by round in turn. A durability note: Kafka's
receipt means "in the page cache", ours "on disk"; Kafka's connector writes at least once, ours exactly once.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import platform
import shutil
import sys

from benchmarks import kafka, spark_bench
from benchmarks.figures import table


def main() -> int:
    """Returns the exit code: 1 where a figure misses its floor."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each figure (default %(default)s)")
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the rows: for a look, not for a comparison"
    )
    parser.add_argument(
        "--dir",
        type=pathlib.Path,
        default=pathlib.Path(".peers"),
        help="jars, data and logs (default %(default)s)",
    )
    options = parser.parse_args()
    folder = options.dir.resolve()
    shutil.rmtree(folder / "run", ignore_errors=True)
    (folder / "run").mkdir(parents=True)
    with kafka.running(folder) as broker:
        found = list(
            spark_bench.figures(folder / "run", options.rounds, 0.1 if options.quick else 1.0, broker)
        )
    print(
        f"\n{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}; medians of "
        f"{options.rounds}\n"
    )
    print(table(found))
    return 0 if all(figure.good for figure in found) else 1


if __name__ == "__main__":
    sys.exit(main())
