"""queue -> Spark -> queue with everything that a crash run needs: broker, gate, drivers, marked rows, and the
judge at the end.
"""

from __future__ import annotations

import pathlib
import random
from collections import Counter
from typing import Any, Final

from mq_broker import LocalBroker
from mq_wire.v1 import admin_pb2
from pyspark_mq.client.connection import Connection
from spark_tests.oracle.judge import Report
from spark_tests.spark_crash.books import PARTITIONS, Books, outlets_of
from spark_tests.spark_crash.drivers import CONF, Driver
from spark_tests.spark_crash.gate import Gate, Moment, Stop
from spark_tests.spark_crash.processes import process_of
from spark_tests.spark_crash.steps import COMMIT, EPOCH, OPEN, PLAN, ROLES, STAGE, STEPS, Step, in_hand
from spark_tests.support.crew.actor import World
from spark_tests.support.waiting import wait_until

SOURCE, TARGET = "crossing.in", "crossing.out"
#: Rows of one micro-batch at most.
BATCH_ROWS: Final = 40
#: A cold JVM on a busy machine.
PATIENCE_S: Final = 150.0


class Pipeline:
    """One broker behind a gate, one checkpoint, one driver after the other.

    Rows of one partition and priority count as one producer's: Spark keeps their order, so the judge may ask
    for it.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        rng: random.Random,
        master: str = "local[2]",
        *,
        sink: str = "queue",
        consumer: str = "",
        **job: Any,
    ) -> None:
        self.folder, self.rng = folder, rng
        self.broker = LocalBroker(
            folder / "broker", default_partitions=PARTITIONS, run_grace_s=5, segment_bytes=32 << 20
        ).start()
        self.gate = Gate(self.broker.address)
        self.sink, self._consumer = sink, consumer
        self.books = Books(self.broker.address, rng, [SOURCE], outlets_of(sink, TARGET, folder / "out"))
        self.checkpoint = folder / "checkpoint"
        self.drivers: list[Driver] = []
        self._standby: list[Driver] = []
        self._answers: Counter[str] = Counter()
        self._ports: dict[str, int] = {}
        options = {
            "maxOffsetsPerTrigger": BATCH_ROWS,
            "minPartitions": 2,
            **({"consumer": consumer} if consumer else {}),
        }
        self._job = {
            "address": self.gate.address,
            "sources": [SOURCE],
            "sink": sink,
            "target": TARGET,
            "out": str(folder / "out"),
            "master": master,
            "conf": CONF | job.pop("conf", {}),
            "source_options": options | job.pop("source_options", {}),
            **job,
        }
        self.gate.watch(self._note)

    def close(self) -> None:
        """Ends everything."""
        for driver in self.drivers + self._standby:
            driver.kill()
        self.gate.close()
        self.broker.close()

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- rows ----------------------------------------------------------------------------------------------

    @property
    def world(self) -> World:
        """What the clients of the first place where rows arrive share."""
        return self.books.world

    def feed(self, rows: int) -> None:
        """Publishes so many rows, some of each partition and priority, and waits for their receipts."""
        self.books.feed(rows)

    def feed_one_batch(self) -> None:
        """Publishes what makes exactly one micro-batch, to a query that idles."""
        stop = self.gate.stop(PLAN, "request")
        stop.wait(PATIENCE_S)
        self.feed(BATCH_ROWS)
        stop.release()

    def wait_until_crossed(self, what: str) -> None:
        """Waits until every row is acknowledged at the source."""
        wait_until(
            lambda: self._alive() and not self.waiting_rows(), PATIENCE_S, f"{what}: rows stay in the source"
        )

    def waiting_rows(self) -> int:
        """How many rows are not acknowledged at the source."""
        return self.books.waiting_rows()

    def judge(self) -> Report:
        """Takes all that arrived and judges: every row once, and nothing stuck in the broker."""
        report = Report.total(self.books.judge())
        with Connection(self.broker.address) as connection:
            broker = connection.call("Stats", admin_pb2.StatsRequest()).broker
        assert broker.staged_rows == 0, f"{broker.staged_rows} rows are staged that nobody will commit"
        for queue in (SOURCE, TARGET):
            stats = self.world.stats(queue)
            assert (stats.depth_rows, stats.assigned_rows) == (0, 0), f"{queue}: {stats}"
        return report

    def judge_refused(self) -> Report:
        """The query was refused for good: every row has arrived once, or is still in the source."""
        return Report.total(self.books.judge_refused())

    def forget(self) -> None:
        """Begins a new history, where the old one is known to be wrong and nothing is under way."""
        self.books.forget()

    # -- drivers -------------------------------------------------------------------------------------------

    @property
    def driver(self) -> Driver:
        """The newest one."""
        return self.drivers[-1]

    def start_driver(self, **settled: Any) -> Driver:
        """Starts the query in another driver, perhaps with one `beside` it; the older ones are not
        touched.
        """
        self.prepare_driver()
        self.drivers.append(self._standby.pop())
        self.driver.go(checkpoint=str(self.checkpoint), **settled)
        return self.driver

    def begin_again(self) -> None:
        """Does what a refusal tells to do: a new checkpoint. Its query takes over by the consumer's name, or
        what was held is released.
        """
        if not self._consumer:
            self.books.release()
        self.checkpoint = self.folder / f"checkpoint-{len(self.drivers)}"
        self.start_driver()

    def intruder(self, number: int, readers: str) -> tuple[Books, dict[str, Any]]:
        """Returns a query that reads a queue of its own twice: the accounts of that queue, and what makes it
        run beside.
        """
        source, target = f"twice-{number}.in", f"twice-{number}.out"
        books = Books(self.broker.address, self.rng, [source], [("queue", target)])
        checkpoint = str(self.folder / f"checkpoint-twice-{number}")
        return books, {
            "sources": [source],
            "target": target,
            "sink": "queue",
            "readers": readers,
            "checkpoint": checkpoint,
        }

    def prepare_driver(self) -> None:
        """Starts the next driver's JVM already, where there is none."""
        if not self._standby:
            self._standby.append(Driver(self._job, self.folder / f"driver-{len(self.drivers)}.log"))

    def _alive(self) -> bool:
        return self.driver.check()

    # -- steps ---------------------------------------------------------------------------------------------

    def stop_at(self, step: Step) -> Stop:
        """Arms a stop at a boundary of the next batch that begins from now on."""
        before = self.batches_begun()

        def fits(message: bytes) -> bool:
            if step.methods != PLAN:
                return True
            # Idle polls are no boundary: rows wait, and a batch has just gone before.
            return self.batches_begun() > before and (step.moment == "request" or self._has_rows(message))

        return self.gate.stop(step.methods, step.moment, fits)

    def reach(self, stop: Stop, step: Step) -> None:
        """Waits until a call is held there, and sees that Spark's checkpoint is where it must be."""
        wait_until(lambda: self._alive() and stop.port, PATIENCE_S, f"no call was held at: {step}")
        assert in_hand(self.checkpoint) == step.logged, (
            f"{step}: {sorted(map(str, self.checkpoint.rglob('[0-9]*')))}"
        )

    def batches_begun(self) -> int:
        """Returns how many batches have come as far as their broker can see: to the sink's commit, or into
        their reading.
        """
        return self.answered(OPEN if self.sink == "files" else COMMIT)

    @property
    def steps(self) -> tuple[Step, ...]:
        """The boundaries that its batches meet."""
        missing = {"files": (EPOCH, STAGE, COMMIT), "batches": (EPOCH,)}.get(self.sink, ())
        return tuple(step for step in STEPS if step.methods not in missing)

    def answered(self, methods: tuple[str, ...]) -> int:
        """Returns how many answers to these calls have come back from the broker."""
        return sum(self._answers[method] for method in methods)

    def process(self, role: str, stop: Stop | None = None, step: Step | None = None) -> int | None:
        """Returns the process that made the held call where that is the role's, or else the one that last did
        its work; see `ROLES`.
        """
        port = (
            stop.port
            if stop is not None and step is not None and step.caller == role
            else self._ports.get(role)
        )
        return process_of(port, self.gate.port) if port is not None else None

    @staticmethod
    def _has_rows(message: bytes) -> bool:
        from mq_wire.v1 import subscribe_pb2

        return not subscribe_pb2.PlanResponse.FromString(message).idle

    def _note(self, method: str, moment: Moment, message: bytes, port: int) -> None:
        role = ROLES.get(method)
        if role is not None and moment == "request":
            self._ports[role] = port
        if moment == "response":
            self._answers[method] += 1
