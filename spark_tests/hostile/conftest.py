"""Brokers under attack, for all tests of this folder."""

from __future__ import annotations

import pathlib
import socket
from collections.abc import Iterator

import pytest

from spark_tests.hostile.siege import Siege


@pytest.fixture(scope="module")
def siege(module_path: pathlib.Path) -> Iterator[Siege]:
    """One broker with its innocent client for the attacks of a module; in the end both must be whole."""
    siege = Siege(module_path / "broker")
    yield siege
    siege.end()


@pytest.fixture
def links() -> Iterator[list[socket.socket]]:
    """Connections that are open during a test."""
    opened: list[socket.socket] = []
    yield opened
    for link in opened:
        link.close()
