"""The power fails at each step of a repair: done again it ends well, and what the first report named is never
forgotten.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable

import pytest

from mq_broker.repair.findings import Finding
from mq_broker.repair.inspection import Inspection
from mq_broker.repair.repair import REPORT, Folders, repair
from mq_broker.testing.memory_disk import Crash, MemoryDisk
from spark_tests.damage.cases import changed, newest
from spark_tests.damage.judging import check_good
from spark_tests.damage.small import Directory, small
from spark_tests.support.worlds.disks import JOURNAL
from spark_tests.support.worlds.lists import CLUSTER


def rotten_body() -> Directory:
    """In a turn that a start must read."""
    content = bytearray(small().directory.journal["segment-0000000020.mqj"])
    content[4096 + 500] ^= 1
    return changed(0, {"segment-0000000020.mqj": bytes(content)})


def lost_header() -> Directory:
    """Of an old segment with rows that are still wanted: they are copied."""
    content = small().directory.journal["segment-0000000019.mqj"]
    return changed(0, {"segment-0000000019.mqj": bytes(64) + content[64:]})


def rotten_snapshot() -> Directory:
    name = newest(1, "pack-")
    content = bytearray(small().directory.snapshots[name])
    content[200] ^= 1
    return changed(1, {name: bytes(content)})


def lost_end() -> Directory:
    return changed(0, {newest(0, "segment-"): None})


class Power:
    """Lets it fail at one step of several disks together."""

    def __init__(self, last: int) -> None:
        self.left = last

    def step(self, what: str, name: str, steps: int) -> None:
        self.left -= 1
        if self.left < 0:
            raise Crash(name)


@pytest.mark.parametrize("damage", [rotten_body, lost_header, rotten_snapshot, lost_end])
def test_at_each_step(damage: Callable[[], Directory], rng: random.Random) -> None:
    for steps in itertools.count():
        if crashed_and_repaired(damage(), steps, rng):
            assert steps > 15, "a repair takes more steps than that"
            return


def crashed_and_repaired(damaged: Directory, steps: int, rng: random.Random) -> bool:
    """Returns whether the repair was done before the power failed."""
    disks = [*damaged.disks(), MemoryDisk()]
    journal, snapshots, aside = disks
    first = Inspection(journal, snapshots, CLUSTER, JOURNAL)
    power = Power(steps)
    for disk in disks:
        disk.hook = power.step
    done = True
    try:
        repair(Folders(journal, snapshots, lambda: aside), first)
    except Crash:
        done = False
    journal, snapshots, aside = (disk.crash(rng) for disk in disks)
    again = Inspection(journal, snapshots, CLUSTER, JOURNAL)
    told = [*again.findings, *(first.findings if REPORT in aside.list_names() else ())]
    if REPORT in aside.list_names():
        report = json.loads(bytes(aside.open(REPORT).map()))
        assert report["findings"] == json.loads(json.dumps([finding.as_json() for finding in first.findings]))
    repair(Folders(journal, snapshots, MemoryDisk), again)
    check_good(journal, snapshots, small(), _distinct(told))
    return done


def _distinct(findings: list[Finding]) -> list[Finding]:
    return [finding for at, finding in enumerate(findings) if finding not in findings[:at]]
