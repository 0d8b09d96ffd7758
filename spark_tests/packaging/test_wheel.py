"""The wheel, built and installed into a clean environment outside the tree, is all that Spark needs to find
`mq`.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import zipfile

import pytest

from spark_tests.support.tree import PROJECT, ROOTS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

DISCOVER = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.readStream.format("mq").option("queue", "orders").load()
print("SCHEMA", rows.schema.simpleString())
import mq_wire, pyspark_mq
print("FROM", pyspark_mq.__file__, mq_wire.__file__)
spark.stop()
"""


def test_wheel_has_the_three_packages_and_their_types(wheel: pathlib.Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == set(ROOTS)
    for package in ROOTS:
        assert f"{package}/py.typed" in names
    assert "mq_wire/v1/broker.proto" in names
    assert "mq_wire/v1/broker_pb2.pyi" in names
    for package, root in ROOTS.items():
        for path in (PROJECT / root / package).rglob("*.py"):
            assert path.relative_to(PROJECT / root).as_posix() in names


def test_spark_finds_the_source_of_an_installed_wheel(wheel: pathlib.Path, tmp_path: pathlib.Path) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "--quiet", "--python", sys.executable, str(tmp_path / "venv")], check=True)
    _share_spark(python)
    subprocess.run([*uv, "pip", "install", "--quiet", "--python", str(python), f"{wheel}[spark]"], check=True)
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "PYSPARK", "SPARK"))
    }
    clean["PYSPARK_PYTHON"] = str(python)
    done = subprocess.run(
        [str(python), "-c", DISCOVER], cwd=tmp_path, env=clean, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    assert "value:binary" in lines["SCHEMA"]
    assert str(tmp_path) in lines["FROM"]


def _share_spark(python: pathlib.Path) -> None:
    """Links the Spark of this environment into another one, as if it were installed there: it has half a
    gigabyte.
    """
    ours, theirs = (
        pathlib.Path(sysconfig.get_path("purelib")),
        next((python.parents[1] / "lib").glob("python*/site-packages")),
    )
    for package in ("pyspark", "py4j"):
        (theirs / package).symlink_to(ours / package)
        for about in ours.glob(f"{package}-*.dist-info"):
            shutil.copytree(about, theirs / about.name)
