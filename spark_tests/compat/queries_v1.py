"""Spark queries of version 0.1.0 that died in mid-batch: broker directory and checkpoint, and which rows must
come of them.
"""

from __future__ import annotations

import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
from typing import Any, Final

import pyarrow as pa

from mq_broker import LocalBroker
from pyspark_mq import Producer
from spark_tests.compat.asking import Asker, Json
from spark_tests.compat.driving import command, said
from spark_tests.compat.kept import V1, pack, save
from spark_tests.spark_crash.pipeline import BATCH_ROWS, PATIENCE_S, SOURCE, TARGET, Pipeline
from spark_tests.spark_crash.processes import kill_session
from spark_tests.spark_crash.steps import COMMIT, FETCH, OPEN, STEPS, Step, in_hand, newest
from spark_tests.support.waiting import wait_until

#: Where the three queries from queue to queue died.
PLACES: Final = {
    "planned": next(step for step in STEPS if step.methods == OPEN and step.moment == "request"),
    "read": next(step for step in STEPS if step.methods == FETCH and step.moment == "response"),
    "committed": next(step for step in STEPS if step.methods == COMMIT and step.moment == "response"),
}


def keep_checkpoints() -> None:
    for name, step in PLACES.items():
        with tempfile.TemporaryDirectory(prefix="mq-compat-") as folder:
            pipe(f"query_{name}", step, pathlib.Path(folder))
    with tempfile.TemporaryDirectory(prefix="mq-compat-") as folder:
        for_each_batch("query_for_each_batch", pathlib.Path(folder))


def feed(address: str, queue: str, first: int, last: int) -> list[str]:
    """Publishes rows with numbers; returns their values."""
    numbers = range(first, last)
    values = [f"row {number:04}" for number in numbers]
    columns: dict[str, Any] = {"value": pa.array([value.encode() for value in values], pa.binary())}
    columns |= {
        "priority": [7 if number % 3 == 0 else 4 for number in numbers],
        "partition": [number % 2 for number in numbers],
    }
    with Producer(address, queue=queue) as producer:
        producer.send_batch(pa.record_batch(columns)).result(PATIENCE_S)
    return values


def pipe(name: str, step: Step, folder: pathlib.Path) -> None:
    """queue -> queue: one batch lies behind, the next one is in the offset log and not in the commit log, and
    a third waits.
    """
    with Pipeline(folder, random.Random(1)) as pipeline:
        values = feed(pipeline.broker.address, SOURCE, 0, BATCH_ROWS)
        pipeline.start_driver()
        pipeline.wait_until_crossed("undisturbed")
        stop = pipeline.stop_at(step)
        values += feed(pipeline.broker.address, SOURCE, BATCH_ROWS, 3 * BATCH_ROWS)
        pipeline.reach(stop, step)
        with Asker(pipeline.broker.address) as asker:
            before = asker.overview()
            done = [row[-2] for row in asker.browse(TARGET)["rows"]]
        # The broker first: a run that nobody holds any more would give back what it had planned.
        pipeline.broker.kill()
        pipeline.driver.kill()
        stop.cut()
        expected: Json = {
            "source": SOURCE,
            "target": TARGET,
            "values": values,
            "in_target_before": len(done),
            "where": str(step),
        }
        _keep(
            name,
            folder,
            expected | {"options": {"maxOffsetsPerTrigger": BATCH_ROWS, "minPartitions": 2}},
            before,
        )


def for_each_batch(name: str, folder: pathlib.Path) -> None:
    """queue -> foreachBatch: killed in its second batch, whose rows were seen."""
    with LocalBroker(folder / "broker", default_partitions=2, segment_bytes=32 << 20) as broker:
        values = feed(broker.address, SOURCE, 0, 3 * BATCH_ROWS)
        job = {
            "kind": "each",
            "address": broker.address,
            "source": SOURCE,
            "checkpoint": str(folder / "checkpoint"),
            "hold_at": 1,
        }
        options = {"maxOffsetsPerTrigger": BATCH_ROWS, "consumer": "each-consumer"}
        arguments, environment = command([job | {"options": options}])
        log = folder / "said"
        with log.open("wb") as out, (folder / "driver.err").open("wb") as errors:
            process = subprocess.Popen(
                arguments,
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=errors,
                start_new_session=True,
            )
        try:
            wait_until(lambda: any(each.get("batch") == 1 for each in said(log.read_text())), PATIENCE_S)
            with Asker(broker.address) as asker:
                before = asker.overview()
            broker.kill()
        finally:
            kill_session(process.pid)
            process.communicate()
        batches = {each["batch"]: each["rows"] for each in said(log.read_text()) if "batch" in each}
        expected: Json = {
            "source": SOURCE,
            "values": values,
            "batches": {str(batch): rows for batch, rows in batches.items()},
        }
        _keep(name, folder, expected | {"options": options}, before)


def _keep(name: str, folder: pathlib.Path, expected: Json, before: Json) -> None:
    checkpoint = folder / "checkpoint"
    assert in_hand(checkpoint)
    batch = newest(checkpoint / "offsets")
    expected |= {"in_hand": batch, "offsets": (checkpoint / "offsets" / str(batch)).read_text()}
    expected["consumers"] = before["consumers"]
    together = folder / "together"
    together.mkdir()
    for part in ("broker", "checkpoint"):
        shutil.move(folder / part, together / part)
    pack(together, V1 / f"{name}.tar.xz")
    save(name, expected)
    sys.stdout.write(f"{name}: {(V1 / f'{name}.tar.xz').stat().st_size} bytes, {expected.get('where', '')}\n")
