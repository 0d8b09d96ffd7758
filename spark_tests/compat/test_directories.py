"""Data directories of each earlier version: the current broker opens each, says of it what that version said,
and goes on working in it.
"""

from __future__ import annotations

import copy
import json
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Final

import pytest

from mq_broker import LocalBroker
from mq_broker.repair.directory import repair_directory
from mq_wire.v1.admin_pb2 import DescribeDestinationRequest
from pyspark_mq import Consumer
from spark_tests.compat.asking import Asker, Json, timeless
from spark_tests.compat.inside import entries_in, state_of, still_kept
from spark_tests.compat.kept import V1, V2, check, differences, load, opened, unpack
from spark_tests.compat.work_v1 import Reader, Work, token_of
from spark_tests.support.rotten import rot
from spark_tests.support.waiting import wait_until

#: (version, name) of each directory.
KEPT: Final = [
    (version, path.name.removesuffix(".tar.xz"))
    for version in (V1, V2)
    for path in sorted(version.glob("*.tar.xz"))
    if not path.name.startswith("query_")
]
each_directory: Final = pytest.mark.parametrize(
    ("version", "name"), KEPT, ids=[f"{version.name}-{name}" for version, name in KEPT]
)
#: Entries that each version writes.
ENTRIES_1: Final = {
    "destination_created",
    "destination_deleted",
    "producer_opened",
    "published",
    "skipped",
    "staged",
    "staged_committed",
    "staged_discarded",
    "acknowledged",
    "returned",
    "epoch_taken",
    "consumer_minted",
    "planned",
    "plans_returned",
    "plans_acknowledged",
    "range_opened",
    "range_read",
    "consumer_ended",
    "marker_forgotten",
    "moved",
    "quarantined",
}
ENTRIES_2: Final = ENTRIES_1 | {"query_joined", "plans_forgotten", "duplicates_counted"}
PARTS_1: Final = {
    "part broker",
    "part log",
    "part rows",
    "part consumers",
    "part staged",
    "part rows, of moved frames",
    "part log, of damaged rows",
}
PARTS_2: Final = PARTS_1 | {"part queries", "part markers", "part rows, of format 1"}


@pytest.fixture
def data(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    asked = request.node.callspec.params
    yield unpack(asked["version"] / f"{asked['name']}.tar.xz", tmp_path / "data")
    shutil.rmtree(tmp_path / "data")


def verified(data: pathlib.Path, code: int) -> list[Json]:
    """What `mq verify` finds."""
    command = [sys.executable, "-m", "mq_broker.console", "verify", str(data), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, f"mq verify ended with {done.returncode}: {done.stdout} {done.stderr}"
    found: list[Json] = json.loads(done.stdout)["findings"]
    return found


@pytest.mark.timeout(180)
@each_directory
def test_it_is_what_it_was_and_goes_on(version: pathlib.Path, name: str, data: pathlib.Path) -> None:
    expected = load(name, version)
    code = 1 if expected["verify"] else 0
    check(
        [{"file": found["file"], "lost": found["lost"]} for found in verified(data, code)],
        expected["verify"],
        "mq verify",
    )
    with opened(data) as broker:
        with Asker(broker.address) as asker:
            check(asker.overview(runs=True), expected["overview"], "what is there")
            for question, answer in zip(expected["questions"], expected["answers"], strict=True):
                check(asker.answer(question), answer, json.dumps(question)[:500])
            check(
                timeless(asker.overview()),
                timeless(expected["overview_after"]),
                "what is there after the questions",
            )
            work = Work(broker.address)
            new_work(work, list(expected["overview"]["destinations"]))
            restarts(broker, asker)
            work.close()
        assert broker.stop() == 0, broker.stderr()
    verified(data, code)
    # There is nothing to repair, or it is what there was from the beginning.
    assert len(repair_directory(data).findings) == len(expected["verify"])


def new_work(work: Work, destinations: list[str]) -> None:
    """Publishes into every old queue, and uses new ones in every way."""
    for destination in destinations:
        before = (
            work.wire.call("DescribeDestination", DescribeDestinationRequest(name=destination))
            .partitions[0]
            .end_offset
        )
        sent = work.send(destination, 0, token_of("new"), 0, ["new"])
        assert sent["base_offset"] == before, (
            f"{destination}: a new row was given offset {sent['base_offset']} instead of {before}"
        )
    work.fill("new.received", 1, 5, "new")
    with Consumer(work.asker.address, queue="new.received") as consumer:
        for _ in range(4):
            message = consumer.receive(timeout=20.0)
            assert message is not None
            consumer.acknowledge(message)
        consumer.flush(20.0)
    work.settle("new.received")
    assert work.wire.stats("new.received").depth_rows == 1
    work.fill("new.read", 0, 10, "new")
    work.fill("new.read", 1, 5, "new")
    reader = Reader(work, "new.read", "new-reader")
    reader.plan(4)
    assert len(reader.read(query="new-query")) == 4
    reader.acknowledge(1)
    reader.plan(5)
    assert len(reader.read(query="new-query", batch=1)) == 5
    work.epochs["new-sink"] = work.epoch()
    work.stage("new set", "new.written", 0, 0, 3, query="new-sink", batch=0)
    work.commit([("new set", 3)], "query:new-sink", 0, "new.written")
    assert work.asker.ask(work.questions) == [
        {"already_committed": True, "rows": "3"},
        {"error": "BATCH_MISMATCH"},
        {"already_committed": True, "rows": "3"},
        {"error": "CHECKPOINT_TOO_OLD"},
    ]


def restarts(broker: LocalBroker, asker: Asker) -> None:
    """Killed and started again, and stopped and started again, it has the same."""
    before = asker.overview()
    for end in (broker.kill, broker.stop):
        end()
        broker.start()
        wait_until(lambda: asker.wire.stats("new.read", wait_for_ready=True).name, 20)
        after = asker.overview()
        for destination in before["destinations"].values():
            destination["figures"].pop("duplicate_rows", None)  # counted in memory since the last snapshot
        check(after, before, f"after {end.__name__}")


@each_directory
def test_its_state_is_what_it_was(version: pathlib.Path, name: str, data: pathlib.Path) -> None:
    expected = load(name, version)["state"]
    check(state_of(data), still_kept(expected) if version == V1 else expected, name)


@pytest.mark.parametrize(("version", "everything"), [(V1, ENTRIES_1 | PARTS_1), (V2, ENTRIES_2 | PARTS_2)])
def test_together_they_hold_everything_that_a_version_writes(
    version: pathlib.Path, everything: set[str]
) -> None:
    held = {kind for of, name in KEPT if of == version for kind in load(name, version)["entries"]}
    assert sorted(held ^ everything) == []


@pytest.mark.parametrize(
    ("version", "name"), [(V1, "snapshot_and_journal"), (V2, "snapshot_and_journal")], ids=["v1", "v2"]
)
def test_what_is_read_is_counted_by_this_version_too(
    version: pathlib.Path, name: str, data: pathlib.Path
) -> None:
    check(entries_in(data), load(name, version)["entries"], name)


@pytest.mark.parametrize(
    ("version", "name"),
    [(V1, "journal_only"), (V2, "journal_only"), (V2, "snapshot_and_journal"), (V2, "grown_from_format_1")],
)
def test_a_repair_keeps_everything_but_what_is_damaged(
    version: pathlib.Path, name: str, data: pathlib.Path
) -> None:
    tag = load(name, version)["questions"][0]["destination"].partition(".")[0]
    expected = still_kept(load(name, version)["state"]) if version == V1 else load(name, version)["state"]
    rot(data, f"{tag}.tried/for queries 11".encode())
    lost = repair_directory(data).lost_rows
    assert lost == 12
    repaired = state_of(data)
    queue = expected["destinations"][f"{tag}.tried"]
    for at, partition in enumerate(queue["partitions"]):
        found = repaired["destinations"][f"{tag}.tried"]["partitions"][at]
        if found["quarantined"]:
            assert found["quarantined"] == list(range(12))
            partition["ready"], partition["quarantined"] = {}, found["quarantined"]
            if (
                name == "journal_only"
            ):  # their producer may send them again, and is not told that they are there
                (mark,) = partition["producers"].values()
                mark["ranges"][0][2:4] = [0, -1]
    for state in (expected, repaired):
        for destination in state["destinations"].values():
            for partition in destination["partitions"]:
                for moved in ("frames", "frame_times_us", "frame_columns", "frame_producers", "sparse"):
                    partition.pop(moved, None)
    check(repaired, expected, f"{name}, repaired")


def test_a_difference_is_told() -> None:
    expected = load("journal_only")["overview"]
    other: dict[str, Any] = copy.deepcopy(expected)
    other["destinations"]["one.orders"]["ready"][3][2] = 99
    del other["destinations"]["one.work"]["figures"]["ready_rows"]
    other["new in a later version"] = 1
    lines = differences(other, expected)
    assert lines == [
        "/destinations/one.orders/ready[3][2]: 99 instead of 8",
        "/destinations/one.work/figures/ready_rows: '(missing)' instead of 12",
    ], "\n".join(lines)
