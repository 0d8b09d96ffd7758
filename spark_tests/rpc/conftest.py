from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from spark_tests.support.wire import Wire

if TYPE_CHECKING:
    from mq_broker import LocalBroker


@pytest.fixture
def wire(module_broker: LocalBroker) -> Iterator[Wire]:
    """A bare channel to the broker of this module."""
    with Wire(module_broker.address) as wire:
        yield wire


@pytest.fixture
def queue_name() -> str:
    """A destination of this test's own."""
    return f"q-{uuid.uuid4().hex[:12]}"
