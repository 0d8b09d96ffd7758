"""What brokers within this process say, where nobody wants to read it: a full disk of a thousand histories is
a thousand lines.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from mq_broker.log import LOGGER


@contextlib.contextmanager
def unsaid() -> Iterator[None]:
    """Keeps the log of brokers off stderr until the end of the block."""
    handler, propagates = logging.NullHandler(), LOGGER.propagate
    LOGGER.addHandler(handler)
    LOGGER.propagate = False
    try:
        yield
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.propagate = propagates
