"""Commands of the core as tests write them: plain values in, protobuf and Arrow out."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from mq_broker.core.commands import Publish
from mq_broker.core.model.facets import DEFAULT, Facets
from mq_wire import envelope
from mq_wire.limits import PRIORITY_DEFAULT
from mq_wire.v1 import subscribe_pb2 as wire
from mq_wire.v1.common_pb2 import Positions
from mq_wire.v1.produce_pb2 import PublishHeader, StagedSet

MixedRows = Sequence[tuple[bytes, int]]


def records_of(rows: MixedRows, keys: bool = False) -> tuple[pa.Buffer, int, int]:
    """Returns records, presence mask and priority_plus_one of rows (value, priority), as clients do: a column
    only where they differ.
    """
    values = pa.array([value for value, _ in rows], pa.binary())
    priorities = [priority for _, priority in rows]
    columns = envelope.VALUE | (envelope.KEY if keys else 0)
    arrays = {"key": values, "value": values}
    uniform = 0
    if len(set(priorities)) > 1:
        columns |= envelope.PRIORITY
        arrays["priority"] = pa.array(priorities, pa.int8())
    elif priorities[0] != PRIORITY_DEFAULT:
        uniform = priorities[0] + 1
    schema = envelope.schema_of(columns)
    batch = pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)
    return envelope.encode(batch), columns, uniform


def publish(
    destination: str,
    partition: int,
    who: tuple[str, int],
    first: int,
    rows: MixedRows,
    keys: bool = False,
    staged: StagedSet | None = None,
) -> Publish:
    """Returns the command for rows (value, priority) of producer `who` (id, epoch)."""
    records, columns, uniform = records_of(rows, keys)
    header = PublishHeader(
        destination=destination,
        partition=partition,
        producer_id=who[0],
        epoch=who[1],
        first_sequence=first,
        rows=len(rows),
        columns=columns,
        priority_plus_one=uniform,
        staged=staged,
    )
    priorities = [priority for _, priority in rows]
    same = len(set(priorities)) == 1
    facets = Facets(priorities[0] if same else np.array(priorities, np.int8))
    return Publish(header, records, zlib.crc32(records), facets)


def skip(destination: str, partition: int, who: tuple[str, int], first: int, count: int) -> Publish:
    header = PublishHeader(
        destination=destination,
        partition=partition,
        producer_id=who[0],
        epoch=who[1],
        first_sequence=first,
        rows=count,
        skip=True,
    )
    return Publish(header, pa.py_buffer(b""), 0, DEFAULT)


def who(name: str, destination_id: bytes, consumer: str, incarnation: bytes, run: int) -> wire.ConsumerRef:
    """Returns how a durable consumer introduces itself; without an incarnation it knows no ids yet."""
    return wire.ConsumerRef(
        destination=name,
        destination_id=destination_id if incarnation else b"",
        consumer=consumer,
        incarnation=incarnation,
        run=run,
    )


def positions(numbers: dict[int, int]) -> Positions:
    return Positions(next=numbers)
