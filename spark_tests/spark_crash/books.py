"""What was put into the source queues, what came out at each end, and the judge over both."""

from __future__ import annotations

import json
import pathlib
import random
import sqlite3
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mq_wire.v1 import admin_pb2, subscribe_pb2
from pyspark_mq import Producer
from pyspark_mq.client.connection import Connection
from spark_tests.oracle.history import History
from spark_tests.oracle.judge import Report, check
from spark_tests.oracle.marked import Ids, checked_rows, ids_of, values_of
from spark_tests.support.crew.actor import PATIENCE_S, World
from spark_tests.support.crew.receivers import drain

PARTITIONS: Final = 2
PRIORITIES: Final = (4, 7)
#: Producers of one queue have numbers below this.
_PRODUCERS: Final = 100


@dataclass(eq=False)
class Outlet:
    """One place where every row must arrive once, with a history of its own.

    Attributes:
        kind: "queue", "files" (of Spark's file sink) or "database" (of `queries.store`).
        where: name of the queue, or path.
        exact: what our sink committed is never given back to the source; other places cannot tell the broker
            what they have.
    """

    kind: str
    where: str
    world: World
    exact: bool = False

    def collect(self) -> None:
        """Reads all that has arrived into the history."""
        history = self.world.history
        if self.kind == "queue":
            _empty(self.world, self.where)
            return
        began = history.stamp()
        content = (
            in_files(pathlib.Path(self.where))
            if self.kind == "files"
            else _in_database(pathlib.Path(self.where))
        )
        # The place is the one in the outlet: a row that was written twice has two.
        values, priorities = (
            b"".join(value for value, _ in content),
            np.array([priority for _, priority in content], np.int64),
        )
        places = np.arange(len(content))
        rows = checked_rows(np.frombuffer(values, np.uint8), np.zeros_like(places), places, priorities)
        if len(rows):
            history.read(self.where, rows, began)

    def arrived(self) -> Ids:
        """Which rows have been collected here."""
        return np.unique(self.world.history.table("read")["id"])


def outlets_of(sink: str, target: str, out: pathlib.Path) -> list[tuple[str, str]]:
    """Returns where the rows of a query arrive, as `Books` wants it."""
    if sink == "files":
        return [("files", str(out))]
    return [("database", str(out)), ("queue", target)] if sink == "batches" else [("queue", target)]


class Books:
    """The accounts of one query.

    Args:
        address: the broker's own, not the gate's.
        sources: queues that the query reads.
    """

    def __init__(
        self, address: str, rng: random.Random, sources: Sequence[str], outlets: Sequence[tuple[str, str]]
    ) -> None:
        self._address, self.sources = address, tuple(sources)
        alone = len(outlets) == 1
        self.outlets = [
            Outlet(kind, where, World(address, rng), alone and kind == "queue") for kind, where in outlets
        ]
        self._sent: Counter[int] = Counter()
        self._promised: list[Ids] = []
        with Connection(address) as connection:
            for queue in [*self.sources, *(where for kind, where in outlets if kind == "queue")]:
                connection.call(
                    "DescribeDestination", admin_pb2.DescribeDestinationRequest(name=queue, create=True)
                )

    @property
    def world(self) -> World:
        """The first outlet's."""
        return self.outlets[0].world

    def feed(self, rows: int, queue: str | None = None) -> None:
        """Publishes so many rows, some of each partition and priority, and waits for their receipts."""
        queue = queue or self.sources[0]
        lanes = [(partition, priority) for partition in range(PARTITIONS) for priority in PRIORITIES]
        with Producer(self._address, queue=queue) as producer:
            for partition, priority in lanes:
                number, count = (
                    1 + 10 * partition + priority + _PRODUCERS * self.sources.index(queue),
                    -(-rows // len(lanes)),
                )
                ids = ids_of(number, range(self._sent[number], self._sent[number] + count))
                self._sent[number] += count
                priorities = np.full(count, priority)
                columns = {
                    "value": values_of(ids, priorities),
                    "priority": priorities,
                    "partition": np.full(count, partition),
                }
                for outlet in self.outlets:
                    outlet.world.history.attempted(ids)
                producer.send_batch(pa.record_batch(columns)).result(PATIENCE_S)
                self._promised.append(ids)

    def waiting_rows(self) -> int:
        """How many rows are not acknowledged at the sources."""
        return sum(self.world.stats(queue).depth_rows for queue in self.sources)

    def judge(self) -> list[Report]:
        """Every row is in every outlet once, and none waits at a source."""
        self._close_accounts()
        reports = [self._judged(outlet) for outlet in self.outlets]
        for report in reports:
            assert report.ok == report.attempted > 0, str(report)
        return reports

    def judge_refused(self) -> list[Report]:
        """The query was refused. Every row is in an outlet, or is held for the query, or waits; the remedy
        frees what is held.
        """
        self._close_accounts()
        held, waiting = self.release(), History()
        for queue in self.sources:
            _empty(World(self._address, random.Random(0), history=waiting), queue)
        kept = np.unique(waiting.table("read")["id"])
        for outlet in self.outlets:
            missing = np.setdiff1d(kept, outlet.arrived())
            outlet.world.history.kept(kept if outlet.exact else missing)
        reports = [self._judged(outlet) for outlet in self.outlets]
        assert len(kept) >= held, f"{held} rows were held for the query, {len(kept)} came back"
        return reports

    def forget(self) -> None:
        """Begins a new history, where the old one is known to be wrong and nothing is under way."""
        for outlet in self.outlets:
            outlet.world.history = History()

    def _close_accounts(self) -> None:
        # Only now: what is urgent overtakes what was promised before it was sent, and that is no fault here.
        for ids in self._promised:
            for outlet in self.outlets:
                outlet.world.history.acknowledged(ids)
        self._promised.clear()
        for outlet in self.outlets:
            outlet.collect()

    def _judged(self, outlet: Outlet) -> Report:
        report = check(outlet.world.history)
        assert not report.wrong, f"{outlet.kind}: {report}"
        return report

    def release(self) -> int:
        """Releases every consumer of the sources, as their operator would; returns how many rows that gave
        back.
        """
        freed = 0
        with Connection(self._address) as connection:
            for queue in self.sources:
                for held in connection.call(
                    "ListConsumers", subscribe_pb2.ListConsumersRequest(destination=queue)
                ).consumers:
                    request = subscribe_pb2.ReleaseConsumerRequest(
                        destination=queue, consumer=held.consumer or held.incarnation.hex()
                    )
                    answer = connection.call("ReleaseConsumer", request)
                    assert answer.returned_rows + answer.acknowledged_rows == held.unacknowledged_rows, (
                        f"{held} {answer}"
                    )
                    freed += answer.returned_rows
                stats = connection.call("Stats", admin_pb2.StatsRequest(destination=queue)).destination
                assert not stats.assigned_rows, (
                    f"{queue}: rows are held that no consumer is listed for: {stats}"
                )
        return freed


def _empty(world: World, queue: str) -> None:
    """Takes all that is ready, also from a broker that is slow to answer."""
    while world.stats(queue).ready_rows:
        drain(world, queue)


def in_files(folder: pathlib.Path) -> list[tuple[bytes, int]]:
    """Returns value and priority of what Spark's file sink counts as written, batch by batch and task by
    task.
    """
    log, files = folder / "_spark_metadata", []
    batches = sorted((int(entry.name.removesuffix(".compact")), entry) for entry in log.glob("[0-9]*"))
    compact = max((number for number, entry in batches if entry.suffix), default=-1)
    for _, entry in [
        each for each in batches if each[0] > compact or (each[0] == compact and each[1].suffix)
    ]:
        added = [
            json.loads(line)["path"].removeprefix("file://") for line in entry.read_text().splitlines()[1:]
        ]
        files += added if entry.suffix else sorted(added, key=lambda path: pathlib.Path(path).name)
    tables = [pq.read_table(path, partitioning=None) for path in files]
    return [
        row
        for table in tables
        for row in zip(table["value"].to_pylist(), table["priority"].to_pylist(), strict=True)
    ]


def _in_database(path: pathlib.Path) -> list[tuple[bytes, int]]:
    if not path.exists():
        return []
    connection = sqlite3.connect(path)
    try:
        there = connection.execute("select count(*) from sqlite_master where name = 'crossed'").fetchone()[0]
        return list(connection.execute("select value, priority from crossed order by rowid")) if there else []
    finally:
        connection.close()
