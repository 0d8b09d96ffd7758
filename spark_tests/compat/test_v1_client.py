"""The client and the connector of version 0.1.0, from its own wheel, against the current broker."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

from pyspark_mq import Consumer
from spark_tests.compat.driving import drive
from spark_tests.compat.kept import WHEEL, check
from spark_tests.compat.queries_v1 import feed
from spark_tests.support.tree import PROJECT

if TYPE_CHECKING:
    from mq_broker import LocalBroker


@pytest.fixture
def old(tmp_path: pathlib.Path) -> pathlib.Path:
    """The packages of version 0.1.0. Its broker is taken away, lest the old one be started by mistake."""
    folder = tmp_path / "v1"
    with zipfile.ZipFile(WHEEL) as wheel:
        wheel.extractall(folder, [name for name in wheel.namelist() if not name.startswith("mq_broker/")])
    return folder


@pytest.mark.timeout(120)
def test_the_old_client_works(broker: LocalBroker, old: pathlib.Path, tmp_path: pathlib.Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(old), str(PROJECT)])}
    command = [sys.executable, "-W", "error", "-m", "spark_tests.compat.v1_client", broker.address, str(old)]
    log = tmp_path / "client.err"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        said = []
        try:
            for line in process.stdout:
                said.append(line.strip())
                if said[-1] == "restart":
                    broker.kill()
                    broker.start()
                    process.stdin.write("go on\n")
                    process.stdin.flush()
        finally:
            process.kill()
    told = f"the old client said {said}, and on stderr: {log.read_text()[-3000:]}"
    assert [line for line in said if line.startswith("done: ")] == [
        "done: producers", "done: consumers", "done: ranges", "done: staged", "done: restart",
    ], told  # fmt: skip


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_query_of_the_old_connector(broker: LocalBroker, old: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """queue -> queue in two starts of one checkpoint, between which more rows come; driver and workers have
    the old packages.
    """
    sent = feed(broker.address, "in", 0, 200) + feed(broker.address, "more", 200, 300)
    first, second = (
        {
            "kind": "pipe",
            "address": broker.address,
            "source": source,
            "target": target,
            "checkpoint": str(tmp_path / source),
        }
        for source, target in (("in", "out"), ("more", "in"))
    )
    said = drive(
        tmp_path, [first | {"options": {"maxOffsetsPerTrigger": 70}}, second, first], roots=(str(old),)
    )
    files = [str(old / package / "__init__.py") for package in ("pyspark_mq", "mq_wire")]
    expected = [{"driver": files, "workers": files}, *({"job": number, "ended": True} for number in range(3))]
    check(said, expected, "the old connector")
    with Consumer(broker.address, queue="out") as consumer:
        received = sorted(consumer.receive(timeout=20.0).value.decode() for _ in sent)  # type: ignore[union-attr]
        assert consumer.receive(timeout=0.2) is None, "rows were doubled"
    check(received, sent, "rows that crossed")
