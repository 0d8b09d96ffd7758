"""Brokers that leave the directories of version 0.1.0, and what is seen of them before they end."""

from __future__ import annotations

import pathlib
from typing import Final

from mq_broker import LocalBroker
from spark_tests.compat.asking import Asker
from spark_tests.compat.life_v1 import Life

SEGMENT_BYTES: Final = 32 << 20


def broker_on(data: pathlib.Path, snapshot_s: int = 86_400, port: int = 0) -> LocalBroker:
    return LocalBroker(
        data, segment_bytes=SEGMENT_BYTES, snapshot_interval_s=snapshot_s, default_partitions=2, port=port
    )


def manifests(data: pathlib.Path) -> list[str]:
    return sorted(path.name for path in (data / "snapshots").iterdir() if path.suffix == ".mqm")


def as_seen(life: Life, broker: LocalBroker) -> None:
    """Remembers what the broker says before its end."""
    with Asker(broker.address) as asker:
        life.seen = asker.overview(runs=True)
