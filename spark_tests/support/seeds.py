"""Randomness that can be repeated: everything follows from one printed number."""

from __future__ import annotations

import os
import random
import secrets
import zlib


def session_seed() -> str:
    """The seed of this test run: MQ_SEED where it is set (CI sets the commit), otherwise a new one."""
    return os.environ.setdefault("MQ_SEED", secrets.token_hex(4))


def seeded(name: str) -> random.Random:
    """Random numbers of the test `name`: others for each seed, the same for each order of tests."""
    return random.Random(zlib.crc32(f"{session_seed()}/{name}".encode()))
