"""What may come of a damaged directory, and nothing else: the same state, an error that names the place, or
exactly the named rows lost.
"""

from __future__ import annotations

import json
import re
from copy import deepcopy
from typing import Any

from mq_broker.repair.findings import Finding, lost_rows
from mq_broker.repair.inspection import Inspection
from mq_broker.repair.repair import REPORT, Folders, repair
from mq_broker.testing.memory_disk import MemoryDisk
from mq_wire.errors import JournalDamaged
from spark_tests.damage.small import Directory, Opened, Row, Truth, moments
from spark_tests.support.worlds import commands
from spark_tests.support.worlds.disks import JOURNAL
from spark_tests.support.worlds.dumps import Dump, check_same, dump_broker
from spark_tests.support.worlds.lists import CLUSTER

SAME, EARLIER, REFUSED, SOME_ROWS, UNKNOWABLE = "same", "earlier", "refused", "some rows", "unknowable"


def judge(
    damaged: Directory, truth: Truth, earlier: tuple[Truth, ...] = (), *, may_be_unknowable: bool = False
) -> str:
    """Opens, verifies and repairs a damaged directory; returns which of the allowed outcomes it was, and
    fails for any other.

    Args:
        damaged: the files.
        truth: what they held before.
        earlier: what they may hold instead, where nothing on the disk can tell: rot in the very last turn
            looks as if it had not been.
        may_be_unknowable: whether so much is damaged that nobody can tell what the queues held.
    """
    try:
        opened = Opened(damaged)
    except JournalDamaged as error:
        if not re.search(r"(segment|manifest|pack)-?\d* ?\d+|segment \d+, position \d+", str(error)):
            raise AssertionError("the refusal does not say where") from error
        return _judge_refused(damaged, truth, may_be_unknowable)
    dump = dump_broker(opened.broker)
    rows, unreadable = opened.rows()
    for known, outcome in ((truth, SAME), *((one, EARLIER) for one in earlier)):
        if dump == known.dump and rows == known.rows:
            _check_repaired(damaged, known)
            return outcome
    check_same(dump, truth.dump)
    assert {row: value for row, value in truth.rows.items() if row not in unreadable} == rows
    findings = _check_repaired(damaged, truth)
    # Rows in a file under a wrong name do not read, and are not lost. Acknowledged ones may be kept for a
    # checkpoint's replay.
    assert _named(findings) & truth.rows.keys() <= unreadable
    return SOME_ROWS


def _judge_refused(damaged: Directory, truth: Truth, may_be_unknowable: bool) -> str:
    try:
        findings = _check_repaired(damaged, truth)
    except JournalDamaged:
        assert may_be_unknowable
        return UNKNOWABLE
    assert findings
    return REFUSED


def _named(findings: list[Finding]) -> set[Row]:
    return {(*where, offset) for where, offsets in lost_rows(findings).items() for offset in offsets}


def _check_repaired(damaged: Directory, truth: Truth) -> list[Finding]:
    """Repairs, and compares everything that the report does not name; returns what was found."""
    journal, snapshots = damaged.disks()
    before = {
        name: bytes(disk.open(name).map()) for disk in (journal, snapshots) for name in disk.list_names()
    }
    findings = _inspected(journal, snapshots, before)
    folders = Folders(journal, snapshots, MemoryDisk)
    aside = repair(folders, Inspection(journal, snapshots, CLUSTER, JOURNAL))
    assert (aside is None) == (not findings)
    if aside is None:
        assert {
            name: bytes(disk.open(name).map()) for disk in (journal, snapshots) for name in disk.list_names()
        } == before
        return findings
    assert isinstance(aside, MemoryDisk)
    _check_aside(aside, findings, before)
    check_good(journal, snapshots, truth, findings)
    return findings


def _inspected(journal: MemoryDisk, snapshots: MemoryDisk, before: dict[str, bytes]) -> list[Finding]:
    """Looking changes nothing."""
    steps = journal.steps, snapshots.steps
    findings = Inspection(journal, snapshots, CLUSTER, JOURNAL).findings
    assert (journal.steps, snapshots.steps) == steps
    for finding in findings:
        assert 0 <= finding.position <= max(map(len, before.values())), str(finding)
    return findings


def _check_aside(aside: MemoryDisk, findings: list[Finding], before: dict[str, bytes]) -> None:
    for finding in findings:
        if finding.file in before:
            assert bytes(aside.open(finding.file).map()) == before[finding.file], "every damaged file is kept"
    report: dict[str, Any] = json.loads(bytes(aside.open(REPORT).map()))
    assert report["finished"]
    assert report["findings"] == json.loads(json.dumps([finding.as_json() for finding in findings]))


def check_good(journal: MemoryDisk, snapshots: MemoryDisk, truth: Truth, findings: list[Finding]) -> None:
    """A repaired directory is whole, starts, and holds everything that no finding names."""
    again = Inspection(journal, snapshots, CLUSTER, JOURNAL).findings
    assert again == [], [str(finding) for finding in again]
    opened = Opened((journal, snapshots))
    rows, unreadable = opened.rows()
    assert not unreadable
    named = _named(findings)
    said = [str(finding) for finding in findings]
    state_lost = any(finding.state for finding in findings)
    missing = truth.rows.keys() - rows.keys() - named - stored_by_lost_turns(findings)
    assert not missing, (missing, said)
    assert named <= set(truth.ever), (named, said)
    assert not named & rows.keys(), said
    wrong = {row for row, value in rows.items() if truth.ever.get(row) != value}
    assert not wrong, (wrong, said)
    dump = dump_broker(opened.broker)
    if state_lost:
        _check_numbers_go_on(dump, truth.dump, said)
    else:
        assert rows.keys() == truth.rows.keys() - named, said
        check_same(without(dump, named), without(truth.dump, named))
    _check_works(opened, truth)


def stored_by_lost_turns(findings: list[Finding]) -> set[Row]:
    """Rows whose only trace was in turns that the findings say are not known."""
    rows: set[Row] = set()
    for finding in findings:
        if finding.turns is not None:
            first, last = finding.turns
            before = next(moment for moment in reversed(moments()) if moment.turn < first)
            after = next((moment for moment in moments() if last and moment.turn >= last), moments()[-1])
            rows |= after.ever.keys() - before.ever.keys()
    return rows


def without(dump: Dump, named: set[Row]) -> Dump:
    """What is durable when these rows are lost."""
    left = deepcopy(dump)
    for queue, partition, offset in named:
        of = left["destinations"][queue]["partitions"][partition]
        of["ready"].pop(offset, None)
        of["failed"].pop(offset, None)
        of["handed_out"].pop(offset, None)
        # A retry of these rows is not answered as a duplicate any more.
        of["audit"] = [
            (
                *mark[:5],
                [
                    known
                    for known in mark[5]
                    if known[3] >= 0 and not known[3] <= offset < known[3] + known[1]
                ],
            )
            for mark in of["audit"]
        ]
    return left


def _check_numbers_go_on(dump: Dump, true: Dump, said: list[str]) -> None:
    """Whatever was lost: no number is given a second time."""
    assert dump["epoch"] >= true["epoch"], said
    for name, destination in dump["destinations"].items():
        known = true["destinations"].get(name)
        if known is None:
            continue
        for partition, before in zip(destination["partitions"], known["partitions"], strict=True):
            assert partition["next"] >= before["next"], said
        for incarnation, consumer in destination["consumers"].items():
            was = known["consumers"].get(incarnation)
            if was is not None:
                assert all(consumer["next"].get(number, 0) >= end for number, end in was["next"].items()), (
                    said
                )


def _check_works(opened: Opened, truth: Truth) -> None:
    """It takes new rows, and they get new offsets."""
    receipt = opened.broker.handle(
        commands.publish("q", 0, ("f" * 32, 0), 0, [(b"new", 4)]), 1_800_000_000_000_000
    )
    opened.journal.commit()
    assert ("q", 0, receipt.base_offset) not in truth.ever
