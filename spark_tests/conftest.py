"""Fixtures for all tests, and the one seed that makes a run repeatable."""

from __future__ import annotations

import os
import pathlib
import random
import shutil
import sys
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.configuration import set_hypothesis_home_dir

from spark_tests.support import spark_home
from spark_tests.support.seeds import seeded, session_seed
from spark_tests.support.sizes import SEGMENT_BYTES
from spark_tests.support.wheels import build_wheel

if TYPE_CHECKING:
    from mq_broker import LocalBroker

# Spark's Python workers must be this Python, whatever `python3` is on the PATH.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
spark_home.set_environment()
# Brokers and clients are processes by the hundred: each would compile all that it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

_SLOW_CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile(
    "fast", max_examples=50, deadline=None, derandomize=False, suppress_health_check=_SLOW_CHECKS
)
settings.register_profile(
    "deep", max_examples=1000, deadline=None, derandomize=False, suppress_health_check=_SLOW_CHECKS
)
settings.load_profile(os.environ.get("MQ_HYPOTHESIS_PROFILE", "fast"))
set_hypothesis_home_dir(pathlib.Path(__file__).resolve().parents[1] / ".hypothesis")


def pytest_configure(config: pytest.Config) -> None:
    """Gives Hypothesis the seed of this run, unless the command line has one."""
    if getattr(config.option, "hypothesis_seed", None) is None:
        config.option.hypothesis_seed = zlib.crc32(session_seed().encode())


def pytest_report_header() -> str:
    """Says how to repeat this run."""
    return f"seed: MQ_SEED={session_seed()}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says it again where it is needed: -q hides the header."""
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        terminalreporter.write_line(f"repeat with MQ_SEED={session_seed()}")


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Random numbers that follow from the seed and the name of the test."""
    return seeded(request.node.nodeid)


@pytest.fixture
def small_chunks() -> Iterator[None]:
    """Parts of a snapshot cover few offsets."""
    from spark_tests.support.chunks import chunks_of

    with chunks_of():
        yield


@pytest.fixture
def broker(tmp_path: pathlib.Path) -> Iterator[LocalBroker]:
    """A real broker process of this test's own."""
    from mq_broker import LocalBroker

    with LocalBroker(tmp_path / "broker", segment_bytes=SEGMENT_BYTES) as started:
        yield started


@pytest.fixture(scope="module")
def module_path(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[pathlib.Path]:
    """A folder of one module's own. As `tmp_path` does, it goes with the last test, unless one failed."""
    path = tmp_path_factory.mktemp(request.module.__name__.rpartition(".")[2])
    failed = request.session.testsfailed
    yield path
    if request.session.testsfailed == failed:
        shutil.rmtree(path)


@pytest.fixture(scope="module")
def module_broker(module_path: pathlib.Path) -> Iterator[LocalBroker]:
    """A real broker process that the tests of one module share; each test uses destinations of its own."""
    from mq_broker import LocalBroker

    with LocalBroker(module_path / "broker", segment_bytes=SEGMENT_BYTES) as started:
        yield started


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The wheel of this tree."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))
