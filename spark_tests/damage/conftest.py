from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from spark_tests.support.rotten import BROKEN, FRAMES, ROWS, rot, value
from spark_tests.support.wire import Wire, batch_of

if TYPE_CHECKING:
    from mq_broker import LocalBroker


@pytest.fixture
def rotten(broker: LocalBroker) -> Iterator[Wire]:
    """A broker with a queue `q` of which the bytes of one frame are rotten."""
    with Wire(broker.address) as wire:
        publisher = wire.publisher("q")
        for first in range(0, FRAMES * ROWS, ROWS):
            publisher.send(batch_of([value(offset) for offset in range(first, first + ROWS)]))
        rot(pathlib.Path(broker.data_dir), value(BROKEN[7]))
        yield wire
