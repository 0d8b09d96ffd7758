"""Reading a delivery as every kind of consumer does: the plain client row by row, the Spark source as record
batches.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from mq_wire.v1.common_pb2 import RowsHeader
from pyspark_mq.client.columns import DELIVERED, Rows
from pyspark_mq.client.message import Delivery
from pyspark_mq.client.sessions import Session

#: Rows that are looked at one by one; all are looked at by column.
_SINGLE_ROWS_MAX: Final = 16
#: Fewer columns than there are, in another order.
_SOME: Final = pa.schema([DELIVERED.field(name) for name in ("offset", "headers", "created_at")])


def read_as_clients(header: RowsHeader, records: memoryview, queue: str) -> int:
    """Returns how many rows there are, after every column of them was looked at."""
    rows = Rows(header, records, queue)
    batch = rows.record_batch(DELIVERED)
    batch.validate(full=True)
    rows.record_batch(_SOME).validate(full=True)
    delivery = Delivery(header, records, queue, Session(b"token"), 1)
    for name in DELIVERED.names:
        delivery.list(name)
    for pairs in delivery.list("headers")[:_SINGLE_ROWS_MAX]:
        assert pairs is None or all(isinstance(pair["key"], str) for pair in pairs), pairs
    return rows.rows
