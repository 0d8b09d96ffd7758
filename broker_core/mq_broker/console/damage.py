"""`mq verify` and `mq repair`: of a data directory whose broker is stopped."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Final

from mq_broker.console.output import put
from mq_broker.console.tables import size
from mq_broker.repair.directory import Report, repair_directory, verify_directory
from mq_wire.errors import DataDirectoryInUse, DataDirectoryUnusable, JournalDamaged

EXIT_DAMAGED: Final = 1
EXIT_UNREADABLE: Final = 2


def verify(options: argparse.Namespace) -> int:
    """Says what is damaged and what it costs; 0 = nothing, 1 = something, 2 = so much that nothing can be
    said.
    """
    try:
        report = verify_directory(options.directory)
    except (DataDirectoryInUse, DataDirectoryUnusable, JournalDamaged) as error:
        print(f"mq: {error}", file=sys.stderr)
        return EXIT_UNREADABLE
    _print(report, options)
    return EXIT_DAMAGED if report.findings else 0


def repair(options: argparse.Namespace) -> int:
    """Takes out what is damaged and says what is lost by that; 2 = nothing can be done."""
    try:
        report = repair_directory(options.directory)
    except (DataDirectoryInUse, DataDirectoryUnusable, JournalDamaged) as error:
        print(f"mq: {error}", file=sys.stderr)
        return EXIT_UNREADABLE
    _print(report, options)
    if not options.json:
        if not report.findings:
            put("nothing to repair")
        else:
            where = f"; the damaged files and a report are in {report.aside}" if report.aside else ""
            put(f"repaired: the broker can start{where}")
    return 0


def _print(report: Report, options: argparse.Namespace) -> None:
    if options.json:
        put(json.dumps(report.as_json(), indent=2))
        return
    for finding in report.findings:
        put(str(finding))
    put(
        f"{report.directory}: {report.segments} segments with {report.turns:,} turns "
        f"({size(report.bytes)}), {report.snapshots} snapshots: "
        f"{len(report.findings)} damaged, {report.lost_rows:,} rows lost"
        if report.findings
        else f"{report.directory}: {report.segments} segments with {report.turns:,} turns "
        f"({size(report.bytes)}), {report.snapshots} "
        "snapshots: all whole"
    )
