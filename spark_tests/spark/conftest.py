"""One Spark session for all tests of this folder, one broker a module, and small tools to write and read
with.
"""

from __future__ import annotations

import os
import pathlib
import sys
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOTS = [
    str(pathlib.Path(__file__).resolve().parents[2] / root) for root in ("proto", "broker_core", "connector")
]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with the settings of conf/spark-defaults.conf that matter for time."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Workers must find the packages under test, installed or not.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        dict.fromkeys([*ROOTS, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])
    )
    session = (
        SparkSession.builder.master("local[2]")
        .appName("mq-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.sql.session.timeZone", "Europe/Berlin")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def queue() -> str:
    """A queue of this test's own."""
    return f"q-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def checkpoint(tmp_path: pathlib.Path) -> str:
    return str(tmp_path / "checkpoint")
