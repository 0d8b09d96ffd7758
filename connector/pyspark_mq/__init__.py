"""pyspark-mq: Spark source and sink of a columnar message queue, and the plain Python client that they stand
on.

    from pyspark_mq import Consumer, Producer
    spark.readStream.format("mq").option("queue", "orders").load()

Spark imports every installed package named pyspark_* whenever any Python data source is used: importing this
one must cost nothing and must not fail, whatever is missing. So each name is loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mq_wire import errors as errors
    from pyspark_mq.client.connection import Connection as Connection
    from pyspark_mq.client.consumer import Consumer as Consumer
    from pyspark_mq.client.message import Message as Message
    from pyspark_mq.client.producer import Producer as Producer
    from pyspark_mq.client.receipts import BatchReceipt as BatchReceipt
    from pyspark_mq.client.receipts import Receipt as Receipt
    from pyspark_mq.spark.datasource import MqDataSource as DefaultSource

_MODULE_OF: Final = {
    "BatchReceipt": "pyspark_mq.client.receipts",
    "Connection": "pyspark_mq.client.connection",
    "Consumer": "pyspark_mq.client.consumer",
    "DefaultSource": "pyspark_mq.spark.datasource",
    "Message": "pyspark_mq.client.message",
    "Producer": "pyspark_mq.client.producer",
    "Receipt": "pyspark_mq.client.receipts",
}

#: What to install where an import is missing.
_DISTRIBUTION_OF: Final = {
    "grpc": "grpcio",
    "google": "protobuf",
    "numpy": "numpy",
    "pyarrow": "pyarrow",
    "pyspark": "'pyspark-mq[spark]'",
}

__all__ = [
    "BatchReceipt",
    "Connection",
    "Consumer",
    "DefaultSource",
    "Message",
    "Producer",
    "Receipt",
    "errors",
]


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module("mq_wire.errors")
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _DISTRIBUTION_OF:
            raise
        raise ModuleNotFoundError(
            f"pyspark_mq.{name} needs the package {missing!r}: pip install {_DISTRIBUTION_OF[missing]}",
            name=error.name,
        ) from error


def __dir__() -> list[str]:
    return sorted(__all__)
