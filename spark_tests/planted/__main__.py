"""`make bugs`: plants every bug of the catalogue, one after the other, and prints which check of which run
caught it.

MQ_SEED=...  repeats a search        MQ_BUGS=text  only bugs with this in their names
"""

from __future__ import annotations

import os
import sys
import time

from spark_tests.oracle.summary import table
from spark_tests.planted.catalogue import ROOMS
from spark_tests.planted.runs import RUNS, Search, first_seed, search
from spark_tests.planted.searching import searcher
from spark_tests.support.seeds import session_seed

_CHECK_WIDTH = 70
#: No search takes longer; the longest of all bugs took 200 s.
_SECONDS_EACH = 1200.0


def main() -> int:
    """Returns how many bugs were not caught, and controls not clean."""
    wanted = os.environ.get("MQ_BUGS", "")
    print(f"seed: MQ_SEED={session_seed()}", flush=True)
    began = time.monotonic()
    longest = dict.fromkeys(RUNS, 10)
    rows: list[tuple[str, ...]] = [("bug", "run", "caught by", "histories", "seconds")]
    missed = []
    chosen = [(room, bug) for room, bugs in ROOMS.items() for bug in bugs if wanted in bug.name]
    with searcher() as searching:
        for room, bug in chosen:
            found = searching.search(bug.name, _SECONDS_EACH)
            longest[bug.run] = max(longest[bug.run], found.histories)
            rows.append((bug.name, bug.run, *_cells(found)))
            print(f"{room}: {bug.name}: {rows[-1][2]}, {rows[-1][3]} histories, {rows[-1][4]} s", flush=True)
            if found.finding is None:
                missed.append(bug)
    print("\n" + table(rows) + "\n")
    unclean = [name for name in {row[1] for row in rows[1:]} if not _is_clean(name, longest[name])]
    caught = len(rows) - 1 - len(missed)
    print(f"{caught} of {len(rows) - 1} planted bugs caught in {time.monotonic() - began:.0f} s")
    for bug in missed:
        print(f"NOT CAUGHT: {bug.name} ({bug.wrong})")
    return len(missed) + len(unclean)


def _cells(found: Search) -> tuple[str, str, str]:
    check = "NOT CAUGHT" if found.finding is None else found.finding.check
    return (
        check if len(check) <= _CHECK_WIDTH else check[: _CHECK_WIDTH - 3] + "...",
        str(found.histories),
        f"{found.seconds:.1f}",
    )


def _is_clean(name: str, histories: int) -> bool:
    """Makes as many histories without a bug as the longest search for one took."""
    found = search(RUNS[name], first_seed(f"control of {name}"), histories)
    print(
        f"control: {name}: {found.histories} histories without a bug, {found.finding or 'clean'}, "
        f"{found.seconds:.1f} s",
        flush=True,
    )
    return found.finding is None


if __name__ == "__main__":
    sys.exit(min(main(), 1))
