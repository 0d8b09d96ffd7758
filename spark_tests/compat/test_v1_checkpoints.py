"""Spark queries of version 0.1.0 that died in mid-batch go on with the current connector and broker: every
row once.
"""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Final

import pytest

from mq_broker import LocalBroker
from spark_tests.compat.asking import Asker, digest
from spark_tests.compat.driving import drive
from spark_tests.compat.kept import V1, check, load, opened, unpack
from spark_tests.compat.queries_v1 import feed
from spark_tests.support.tree import PROJECT

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

PIPES: Final = ("query_planned", "query_read", "query_committed")
EACH: Final = "query_for_each_batch"
#: Rows that come when the broker is back.
NEW: Final = range(1000, 1020)


class Resumed:
    """What came of all the queries, which one driver has run after the other."""

    def __init__(self, folder: pathlib.Path, stack: ExitStack) -> None:
        self.brokers: dict[str, LocalBroker] = {}
        self.expected = {name: load(name) for name in (*PIPES, EACH)}
        self.before: dict[str, Any] = {}
        jobs = []
        for name, expected in self.expected.items():
            data = unpack(V1 / f"{name}.tar.xz", folder / name)
            broker = self.brokers[name] = stack.enter_context(opened(data / "broker"))
            with Asker(broker.address) as asker:
                self.before[name] = asker.overview()
            self.expected[name]["values"] += feed(broker.address, expected["source"], NEW.start, NEW.stop)
            job = {
                "kind": "each" if name == EACH else "pipe",
                "address": broker.address,
                "checkpoint": str(data / "checkpoint"),
            }
            jobs.append(
                job | {key: expected[key] for key in ("source", "target", "options") if key in expected}
            )
        said = drive(folder, jobs)
        self.modules = said[0]
        self.said = {
            name: [each for each in said if each.get("job") == number]
            for number, name in enumerate(self.expected)
        }


@pytest.fixture(scope="module")
def resumed(module_path: pathlib.Path) -> Iterator[Resumed]:
    with ExitStack() as stack:
        yield Resumed(module_path, stack)
    for name in (*PIPES, EACH):
        shutil.rmtree(module_path / name / "broker")


def test_the_connector_is_the_current_one(resumed: Resumed) -> None:
    assert all(
        file.startswith(str(PROJECT)) for file in resumed.modules["driver"] + resumed.modules["workers"]
    ), resumed.modules


@pytest.mark.parametrize("name", [*PIPES, EACH])
def test_the_broker_has_what_the_query_held(resumed: Resumed, name: str) -> None:
    check(resumed.before[name]["consumers"], resumed.expected[name]["consumers"], name)


@pytest.mark.parametrize("name", PIPES)
def test_every_row_crosses_once(resumed: Resumed, name: str) -> None:
    assert resumed.said[name] == [{"job": PIPES.index(name), "ended": True}]
    expected = resumed.expected[name]
    with Asker(resumed.brokers[name].address) as asker:
        figures = asker.overview()["destinations"]
        crossed = sorted(row[-2] for row in figures[expected["target"]]["ready"])
        check(
            crossed,
            sorted(digest(value.encode()) for value in expected["values"]),
            f"{name}: rows in the target",
        )
        check(figures[expected["source"]]["ready"], [], f"{name}: rows left in the source")
        assert figures[expected["target"]]["figures"]["staged_rows"] == 0


def test_a_batch_comes_again_with_the_same_rows(resumed: Resumed) -> None:
    expected, said = resumed.expected[EACH], resumed.said[EACH]
    assert said[-1].get("ended"), said[-1]
    batches = {each["batch"]: each["rows"] for each in said if "batch" in each}
    in_hand = expected["in_hand"]
    assert min(batches) == in_hand, f"the query began with batch {min(batches)}"
    columns = [
        [[*row[:3], row[4]] for row in rows] for rows in (batches[in_hand], expected["batches"][str(in_hand)])
    ]
    check(columns[0], columns[1], f"batch {in_hand}")
    assert {row[3] for row in batches[in_hand]} == {2}, "read a second time"
    seen = [row[4] for rows in (*(batches.values()), expected["batches"]["0"]) for row in rows]
    check(sorted(seen), expected["values"], "all rows")
