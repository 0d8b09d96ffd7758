"""A query's life in this process, before and after its checkpoint lost something: nothing is killed, so one
session does for all.
"""

from __future__ import annotations

import itertools
import pathlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from spark_tests.oracle.judge import Report
from spark_tests.spark_crash import queries
from spark_tests.spark_crash.books import Books, outlets_of
from spark_tests.spark_crash.losses import Copy, Loss
from spark_tests.spark_crash.refusals import is_by_spark, is_refusal
from spark_tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

#: Rows of one micro-batch at most, of each source.
BATCH_ROWS: Final = 20
_PATIENCE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Setting:
    """How a query is made.

    Attributes:
        sink: one of `queries.SINKS`.
        sources: one queue, or two of which the second has nothing for the batch that is lost.
        named: it has the option `consumer`.
        fail_on_data_loss: the option.
    """

    sink: str
    sources: int = 1
    named: bool = False
    fail_on_data_loss: bool = True

    def __str__(self) -> str:
        consumer = "a consumer" if self.named else "no consumer"
        return (
            f"{self.sources} queue(s) into {self.sink}, {consumer}, "
            f"failOnDataLoss={str(self.fail_on_data_loss).lower()}"
        )


class Lifetime:
    """One query with queues, a checkpoint and a sink of its own."""

    _numbers = itertools.count()

    def __init__(
        self, spark: SparkSession, address: str, folder: pathlib.Path, setting: Setting, rng: random.Random
    ) -> None:
        number = next(self._numbers)
        self.setting, self._spark, self._rng = setting, spark, rng
        self._folder = folder / f"life-{number}"
        self._folder.mkdir()
        self.checkpoint, out, target = self._folder / "checkpoint", self._folder / "out", f"out-{number}"
        self.sources = [f"in-{number}-{source}" for source in range(setting.sources)]
        options = {
            "maxOffsetsPerTrigger": str(BATCH_ROWS), "failOnDataLoss": str(setting.fail_on_data_loss).lower(),
            **({"consumer": f"life-{number}"} if setting.named else {}),
        }  # fmt: skip
        self.job: dict[str, Any] = {
            "address": address,
            "sources": self.sources,
            "sink": setting.sink,
            "target": target,
            "out": str(out),
            "checkpoint": str(self.checkpoint),
            "source_options": options,
        }
        self.books = Books(address, rng, self.sources, outlets_of(setting.sink, target, out))
        self._copy = Copy(self._folder / "copy")
        self._query: StreamingQuery | None = None

    def run(self, loss: Loss) -> str:
        """Lives, loses, and lives on; returns how it ended: "went on" or what refused it. Every row is
        judged.
        """
        if loss.copied:
            self._live(2)
            self._copy.take(self.checkpoint)
        self._live(loss.copied or (1 if loss.first else 3))
        loss.strike(self.checkpoint, self._copy)
        for number, queue in enumerate(self.sources):
            # A sink may pass over the first batch in silence, and its rows wait: it takes a second one to be
            # refused.
            is_second_due = loss.first and not number
            self.books.feed(
                2 * BATCH_ROWS
                if is_second_due
                else self._rng.choice([BATCH_ROWS, BATCH_ROWS // 2, 2 * BATCH_ROWS]),
                queue,
            )
        return self._live_on(loss)

    def _live(self, batches: int) -> None:
        """Lets the query run so many batches, and an idle poll behind them, which acknowledges the last."""
        # What waits when it starts makes full batches. The last of them, which is to be lost, has nothing of
        # the second queue.
        for queue, count in zip(self.sources, (batches, batches - 1), strict=False):
            if count:
                self.books.feed(count * BATCH_ROWS, queue)
        self.start()
        error = self.crossed()
        self.stop()
        assert not error, f"the first life is undisturbed, and failed: {error}"

    def start(self) -> None:
        """Starts the query on its checkpoint."""
        self._query = queries.start(self._spark, self.job)

    def stop(self) -> None:
        """Ends it."""
        assert self._query is not None
        self._query.stop()

    def crossed(self) -> str:
        """Waits until every row is acknowledged at the source, by an idle poll; or returns what the query
        failed with.
        """
        query = self._query
        assert query is not None
        wait_until(
            lambda: not query.isActive or not self.books.waiting_rows(),
            _PATIENCE_S,
            f"{self.setting}: rows stay in the source",
        )
        return "" if query.isActive else self._error()

    def failed(self, meanwhile: Callable[[], None] = lambda: None) -> str:
        """Waits until the query has failed, and returns with what; empty where every row was acknowledged
        instead.
        """
        query = self._query
        assert query is not None
        wait_until(
            lambda: not query.isActive or query.lastProgress,
            _PATIENCE_S,
            f"{self.setting}: the first batch does not come",
        )
        if query.isActive:
            meanwhile()
        return self.crossed()

    def _live_on(self, loss: Loss) -> str:
        # A supervisor starts a failed query again: what refuses must do so each time, and lose nothing.
        error = ""
        for _ in range(2):
            self.start()
            error = self.crossed()
            if not error:
                self.books.feed(BATCH_ROWS)
                error = self.crossed()
            self.stop()
            if not error:
                self.books.judge()
                return "went on"
        self.books.judge_refused()
        by_spark = is_by_spark(error)
        assert is_refusal(error) or (by_spark and loss.spark_fails), f"no clear refusal: {error}"
        assert not loss.harmless, f"refused for nothing: {error}"
        return "refused by Spark" if by_spark else "refused"

    def _error(self) -> str:
        assert self._query is not None
        error = self._query.exception()
        assert error is not None, "a query ended by itself"
        return queries.said_by(error)


def total(reports: list[Report]) -> str:
    """One line for many reports."""
    return str(Report.total(reports))
