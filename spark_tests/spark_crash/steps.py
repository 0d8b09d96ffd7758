"""The boundaries between the steps of a micro-batch, as the broker's calls mark them, and what Spark's
checkpoint says at each.
"""

from __future__ import annotations

import pathlib
from dataclasses import dataclass
from typing import Final

from spark_tests.spark_crash.gate import Moment

#: The Python processes of a query, by the calls that they make. `maker` makes the writer of each batch.
ROLES: Final = {
    "Plan": "planner",
    "OpenRange": "planner",
    "TakeEpoch": "maker",
    "Fetch": "reader",
    "Publish": "writer",
    "Send": "writer",
    "CommitStaged": "committer",
}
PLAN: Final = ("Plan",)
OPEN: Final = ("OpenRange",)
EPOCH: Final = ("TakeEpoch",)
FETCH: Final = ("Fetch",)
STAGE: Final = ("Publish", "Send")
COMMIT: Final = ("CommitStaged",)


@dataclass(frozen=True, slots=True)
class Step:
    """A boundary.

    Attributes:
        caller: the role whose call is held there.
        logged: whether the batch is in the offset log by then, and not in the commit log.
        named: whether it lies between two of the steps that Spark's batch is known by: planned, logged, read,
            staged, committed by the sink, in the commit log, committed at the source. The others lie inside
            of one.
    """

    caller: str
    name: str
    methods: tuple[str, ...]
    moment: Moment
    logged: bool
    named: bool = False

    def __str__(self) -> str:
        return self.name


#: In the order in which a batch meets them. Behind the last one Spark writes the commit log, and the next
#: batch begins with the first.
STEPS: Final = (
    Step("planner", "the last batch in the commit log, not acknowledged", PLAN, "request", False, named=True),
    Step(
        "planner",
        "the last batch acknowledged and the next planned, not in the offset log",
        PLAN,
        "response",
        False,
        named=True,
    ),
    Step("planner", "in the offset log, range not opened", OPEN, "request", True, named=True),
    Step("planner", "range opened, driver not told", OPEN, "response", True),
    Step("maker", "writer without an epoch", EPOCH, "request", True),
    Step("maker", "epoch taken, driver not told", EPOCH, "response", True),
    Step("reader", "before reading", FETCH, "request", True),
    Step("reader", "reading", FETCH, "response", True, named=True),
    Step("reader", "read to the end", FETCH, "end", True),
    Step("writer", "before staging", STAGE, "request", True, named=True),
    Step("writer", "staged, writer not told", STAGE, "response", True),
    Step("committer", "all staged, not committed", COMMIT, "request", True, named=True),
    Step("committer", "committed, not in the commit log", COMMIT, "response", True, named=True),
)


def newest(log: pathlib.Path) -> int:
    """Returns the last batch in a folder of the checkpoint; -1 where there is none."""
    return max((int(entry.name) for entry in log.glob("[0-9]*") if entry.name.isdigit()), default=-1)


def in_hand(checkpoint: pathlib.Path) -> bool:
    """Returns whether a batch is in the offset log and not in the commit log."""
    return newest(checkpoint / "offsets") > newest(checkpoint / "commits")
