"""`mq verify` and `mq repair`, for the data directory of a stopped broker."""

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
    """Prints each damage and what is lost by it. Returns 0 = no damage, 1 = damage, 2 = the directory cannot
    be read.
    """
    try:
        report = verify_directory(options.directory)
    except (DataDirectoryInUse, DataDirectoryUnusable, JournalDamaged) as error:
        print(f"mq: {error}", file=sys.stderr)
        return EXIT_UNREADABLE
    _print(report, options)
    return EXIT_DAMAGED if report.findings else 0


def repair(options: argparse.Namespace) -> int:
    """Repairs the directory and prints what is lost. Returns 0, or 2 if the directory cannot be repaired."""
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
    turns = f"{report.segments} segments with {report.turns:,} turns ({size(report.bytes)})"
    damage = f"{len(report.findings)} damaged, {report.lost_rows:,} rows lost"
    found = damage if report.findings else "all whole"
    put(f"{report.directory}: {turns}, {report.snapshots} snapshots: {found}")
