"""The broker of pyspark-mq: a durable, columnar message queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mq_broker.local import LocalBroker as LocalBroker

__all__ = ["LocalBroker"]


def __getattr__(name: str) -> Any:
    if name == "LocalBroker":  # lazily: importing the package must stay cheap
        from mq_broker.local import LocalBroker

        return LocalBroker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
