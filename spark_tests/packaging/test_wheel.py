"""The wheel, built and installed into a clean environment outside the tree, is all that Spark needs to find
`mq`.
"""

from __future__ import annotations

import email
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from importlib import metadata

import pytest
from packaging.requirements import Requirement

from spark_tests.support.spark_home import JAVA_OPTIONS
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


@pytest.mark.spark
def test_spark_finds_the_source_of_an_installed_wheel(wheel: pathlib.Path, tmp_path: pathlib.Path) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "--quiet", "--python", sys.executable, str(tmp_path / "venv")], check=True)
    _share(python, needed(requirements_of(wheel), {"spark"}))
    install = [*uv, "pip", "install", "--quiet", "--offline", "--python", str(python), f"{wheel}[spark]"]
    subprocess.run(install, check=True)
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "PYSPARK", "SPARK"))
    }
    clean |= {"PYSPARK_PYTHON": str(python), "SPARK_SUBMIT_OPTS": JAVA_OPTIONS}
    done = subprocess.run(
        [str(python), "-c", DISCOVER], cwd=tmp_path, env=clean, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    assert "value:binary" in lines["SCHEMA"]
    assert str(tmp_path) in lines["FROM"]


def _share(python: pathlib.Path, names: set[str]) -> None:
    """Links packages of this environment into another one, as if they were installed there: Spark alone has
    half a gigabyte.
    """
    theirs = next((python.parents[1] / "lib").glob("python*/site-packages"))
    for name in names:
        found = metadata.distribution(name)
        for top in {file.parts[0] for file in found.files or []} - {"..", "__pycache__"}:
            ours = pathlib.Path(str(found.locate_file(top)))
            if ours.name.endswith(".dist-info"):
                shutil.copytree(ours, theirs / top)
            elif not (theirs / top).exists():
                (theirs / top).symlink_to(ours)


def needed(requirements: Iterable[str], extras: set[str]) -> set[str]:
    """Names of the packages that these requirements, such as those of a wheel, bring in by themselves and by
    others.
    """
    found = set[str]()
    for requirement in map(Requirement, requirements):
        name = requirement.name
        if name in found or not _applies(requirement, extras):
            continue
        found |= {name, *needed(metadata.requires(name) or (), set(requirement.extras))}
    return found


def _applies(requirement: Requirement, extras: set[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in extras or {""})


def requirements_of(wheel: pathlib.Path) -> list[str]:
    """What a wheel says it needs, extras included."""
    with zipfile.ZipFile(wheel) as archive:
        (about,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        said = email.message_from_bytes(archive.read(about))
    return [str(line) for line in said.get_all("Requires-Dist", [])]
