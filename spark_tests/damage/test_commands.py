"""`mq verify` and `mq repair` on the directory of a real broker."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
from typing import Any

import pytest

from mq_broker import LocalBroker
from mq_broker.journal.directory import DataDirectory, Identity, decode_identity
from mq_broker.repair.directory import repair_directory, verify_directory
from mq_wire.errors import BrokerUnavailable, DataDirectoryInUse, DataDirectoryUnusable
from pyspark_mq import Consumer, Producer
from spark_tests.support.files import contents
from spark_tests.support.rotten import rot

VALUES = [b"value-%04d" % number for number in range(60)]


def mq(*arguments: object, code: int = 0) -> tuple[str, str]:
    command = [sys.executable, "-m", "mq_broker.console", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def killed(module_path: pathlib.Path) -> pathlib.Path:
    """The directory of a broker that was killed: three batches of twenty rows, no snapshot."""
    path = module_path / "data"
    with LocalBroker(path) as broker:
        with Producer(broker.address, queue="orders") as producer:
            for first in range(0, 60, 20):
                for value in VALUES[first : first + 20]:
                    producer.send(value, partition=0)
                producer.flush()
        broker.kill()
    return path


@pytest.fixture
def directory(killed: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    return pathlib.Path(shutil.copytree(killed, tmp_path / "data"))


def received(directory: pathlib.Path) -> list[bytes]:
    with LocalBroker(directory) as broker, Consumer(broker.address, queue="orders") as consumer:
        values = []
        while (message := consumer.receive(timeout=1.0)) is not None:
            values.append(message.value)
        return values


def test_nothing_is_wrong_and_nothing_is_changed(directory: pathlib.Path) -> None:
    before = contents(directory)
    out, _ = mq("verify", directory)
    assert out.endswith("all whole\n")
    out, _ = mq("repair", directory)
    assert out.endswith("nothing to repair\n")
    assert contents(directory) == before
    assert json.loads(mq("verify", directory, "--json")[0])["findings"] == []


def test_damage_is_refused_found_taken_out_and_the_rest_goes_on(directory: pathlib.Path) -> None:
    rot(directory, VALUES[25])
    with pytest.raises(BrokerUnavailable, match=r"segment 1, position \d+.*mq verify.*mq repair"):
        LocalBroker(directory).start()
    before = contents(directory)
    out, _ = mq("verify", directory, code=1)
    assert "segment-0000000001.mqj, position" in out
    assert "orders partition 0: offsets" in out
    assert contents(directory) == before
    report: dict[str, Any] = json.loads(mq("verify", directory, "--json", code=1)[0])
    lost = [
        offset
        for finding in report["findings"]
        for part in finding["lost"]
        for f, t in part["offsets"]
        for offset in range(f, t + 1)
    ]
    assert 25 in lost
    assert report["lost_rows"] == len(lost) <= 20

    out, _ = mq("repair", directory)
    assert "repaired: the broker can start" in out
    kept = contents(directory)
    assert kept["quarantine/1/segment-0000000001.mqj"] == before["journal/segment-0000000001.mqj"]
    assert json.loads(kept["quarantine/1/report.json"])["findings"] == report["findings"]
    mq("verify", directory)
    assert received(directory) == [value for offset, value in enumerate(VALUES) if offset not in lost]


@pytest.mark.parametrize("name", ["identity", "identity.copy"])
@pytest.mark.parametrize("how", ["missing", "damaged", "older"])
def test_the_identity_is_there_twice(directory: pathlib.Path, name: str, how: str) -> None:
    path, whole = directory / name, contents(directory)
    if how == "missing":
        path.unlink()
    elif how == "damaged":
        path.write_bytes(path.read_bytes().replace(b"cluster", b"clustfr"))
    else:
        finished = decode_identity(path.read_bytes(), path)
        path.write_bytes(Identity(finished.cluster, finished.journal, created=False).encode())
    if name == "identity":
        with pytest.raises(DataDirectoryUnusable, match="mq repair"):
            DataDirectory.open(directory)
    (finding,) = verify_directory(directory).findings
    assert (finding.file, finding.cost) == (name, "nothing live")
    assert repair_directory(directory).findings == [finding]
    assert {
        file: content for file, content in contents(directory).items() if not file.startswith("quarantine")
    } == whole
    assert verify_directory(directory).findings == []


def test_what_cannot_be_read_at_all(directory: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for name in ("identity", "identity.copy"):
        (directory / name).write_bytes(b"{}")
    assert "neither identity nor identity.copy can be read" in mq("verify", directory, code=2)[1]
    assert "no data directory" in mq("repair", tmp_path, code=2)[1]


def test_a_running_broker_keeps_them_out(tmp_path: pathlib.Path) -> None:
    with DataDirectory.open(tmp_path):
        for look in (verify_directory, repair_directory):
            with pytest.raises(DataDirectoryInUse, match=f"in use by process {os.getpid()}"):
                look(tmp_path)
