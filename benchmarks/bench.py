"""Every speed figure of this project, measured on this machine in one run: `make bench`.

100-byte values, a sync before every receipt, all checks on; broker, clients and Spark share the machine.
Medians of at least five rounds.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import platform
import shutil
import sys
import tempfile

from benchmarks import clients, spark_bench
from benchmarks.figures import Figure, table


def main() -> int:
    """Returns the exit code: 1 where a figure misses its floor."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each figure (default %(default)s)")
    parser.add_argument("--only", choices=["clients", "spark"], help="one half of it")
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the rows: for a look, not for a comparison"
    )
    parser.add_argument(
        "--dir", type=pathlib.Path, help="where the journals go (default: a temporary folder)"
    )
    options = parser.parse_args()
    folder = options.dir or pathlib.Path(tempfile.mkdtemp(prefix="mq-bench-"))
    folder.mkdir(parents=True, exist_ok=True)
    scale = 0.1 if options.quick else 1.0
    found: list[Figure] = []
    try:
        if options.only != "spark":
            found += clients.figures(folder, options.rounds, scale)
        if options.only != "clients":
            found += spark_bench.figures(folder, options.rounds, scale, kafka=None)
    finally:
        if options.dir is None:
            shutil.rmtree(folder, ignore_errors=True)
    print(
        f"\n{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}; medians of "
        f"{options.rounds}\n"
    )
    print(table(found))
    return 0 if all(figure.good for figure in found) else 1


if __name__ == "__main__":
    sys.exit(main())
