"""Verifies and repairs a data directory: takes its lock, checks its identity, and calls `Inspection` and
`repair` for its folders.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from mq_broker.journal.directory import DataDirectory, identity_files
from mq_broker.journal.disk import told_if_unreadable
from mq_broker.repair.findings import Finding, lost_rows
from mq_broker.repair.inspection import Inspection
from mq_broker.repair.repair import Folders, repair, write_report


@dataclass(frozen=True, slots=True)
class Report:
    """The findings, figures of what was read, and the folder with copies of damaged files (None = no
    repair).
    """

    directory: str
    findings: list[Finding]
    turns: int
    bytes: int
    segments: int
    snapshots: int
    aside: str | None = None

    @property
    def lost_rows(self) -> int:
        """Number of lost rows."""
        return sum(len(offsets) for offsets in lost_rows(self.findings).values())

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "directory": self.directory,
            "findings": [finding.as_json() for finding in self.findings],
            "lost_rows": self.lost_rows,
            "quarantine": self.aside,
            "segments": self.segments,
            "snapshots": self.snapshots,
            "turn_bytes": self.bytes,
            "turns": self.turns,
        }


def verify_directory(path: str | os.PathLike[str]) -> Report:
    """Reads everything in the data directory of a stopped broker. Changes nothing; read permission is enough.

    Raises:
        DataDirectoryInUse: the broker is running.
        DataDirectoryUnusable: it is no data directory, or its identity cannot be read.
        JournalDamaged: so much is damaged that the content of the queues cannot be known.
    """
    with DataDirectory.open_damaged(path, read_only=True) as directory, told_if_unreadable():
        return _report(directory, *_inspect(directory))


def repair_directory(path: str | os.PathLike[str]) -> Report:
    """Copies damaged files into `quarantine/` and takes the damage out; the rest is kept. Without damage
    nothing is changed.

    Raises:
        StoreFull, StorageFailed: the repair was interrupted; repair again.
        Other errors: as `verify_directory`.
    """
    with DataDirectory.open_damaged(path) as directory, told_if_unreadable():
        inspection, wrong = _inspect(directory)
        if not inspection.findings and not wrong:
            return _report(directory, inspection, wrong)
        aside = directory.aside()
        for finding in wrong:
            damaged = directory.path / finding.file
            if damaged.exists():
                copy = aside.create(finding.file)
                copy.write_at([damaged.read_bytes()], 0)
                copy.sync()
                copy.close()
        # The identity is written before the journal, whose new entries have the newest format.
        if wrong:
            directory.finish()
        else:
            directory.upgrade()
        repair(Folders(directory.journal_disk, directory.snapshot_disk, lambda: aside), inspection)
        if wrong:
            write_report(aside, [*wrong, *inspection.findings], finished=True)
        return _report(directory, inspection, wrong, str(aside.path))


def _inspect(directory: DataDirectory) -> tuple[Inspection, list[Finding]]:
    identity = directory.identity
    inspection = Inspection(
        directory.journal_disk, directory.snapshot_disk, identity.cluster.bytes, identity.journal
    )
    return inspection, _check_identity(directory)


def _check_identity(directory: DataDirectory) -> list[Finding]:
    files = identity_files(directory.path)
    findings = []
    for name, said in (("identity", files.identity), ("identity.copy", files.copy)):
        if said is None:
            findings.append(Finding(name, 0, "is missing or damaged"))
        elif replace(said, format=directory.identity.format) != directory.identity:
            findings.append(Finding(name, 0, "is older than the other one"))
    return findings


def _report(
    directory: DataDirectory, inspection: Inspection, wrong: list[Finding], aside: str | None = None
) -> Report:
    return Report(
        str(directory.path),
        [*wrong, *inspection.findings],
        inspection.turns,
        inspection.bytes,
        len(list(inspection.segments)),
        inspection.snapshots,
        aside,
    )
