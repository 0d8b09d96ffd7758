"""All planted bugs."""

from __future__ import annotations

from typing import Final

from spark_tests.planted import (
    directory_bugs,
    journal_bugs,
    query_bugs,
    queue_bugs,
    serving_bugs,
    snapshot_bugs,
    space_bugs,
)
from spark_tests.support.planting import Bug

ROOMS: Final[dict[str, tuple[Bug, ...]]] = {
    "writing the journal": journal_bugs.WRITING,
    "reading the journal": journal_bugs.READING,
    "files of snapshots": snapshot_bugs.FILES,
    "content of snapshots": snapshot_bugs.CONTENT,
    "space": snapshot_bugs.SPACE,
    "a full disk": space_bugs.FULL,
    "receipts": queue_bugs.RECEIPTS,
    "deliveries": queue_bugs.DELIVERIES,
    "a lost directory": directory_bugs.DIRECTORY,
    "the serving layer": serving_bugs.SERVING,
    "Spark's source": query_bugs.SOURCE,
    "Spark's sink": query_bugs.SINK,
}
BUGS: Final = tuple(bug for bugs in ROOMS.values() for bug in bugs)
