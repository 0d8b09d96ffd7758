"""A core with a list as its journal, and what is read through it as plain rows."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from mq_broker.core.broker import Broker
from mq_broker.core.command_table import COMMANDS, Room
from mq_broker.core.commands import RowsView, Settings
from mq_broker.engine.rows import RowReader
from mq_broker.journal.frames import BodyPlace
from mq_wire import envelope
from mq_wire.errors import JournalDamaged
from mq_wire.limits import RECORDS_BYTES_MAX, RECORDS_ROWS_MAX
from mq_wire.v1.common_pb2 import RowsHeader
from spark_tests.model.state import identity

CLUSTER = b"\xcc" * 16


class ReadRow(NamedTuple):
    """One row as a consumer sees it."""

    partition: int
    offset: int
    value: bytes
    priority: int
    delivery_count: int
    producer: str
    sequence: int
    time_us: int
    number: int


class ListSink:
    """A journal of one segment in memory: entries in a list, bodies found again by their position."""

    def __init__(self) -> None:
        self.entries: list[tuple[bytes, pa.Buffer | None, BodyPlace | None]] = []

    def add(self, header: bytes, body: pa.Buffer | None, body_crc: int | None) -> BodyPlace | None:
        place = None
        if body is not None:
            assert body_crc == zlib.crc32(body)
            place = BodyPlace(1, len(self.entries), body.size, body_crc)
        self.entries.append((header, body, place))
        return place

    def body(self, place: BodyPlace) -> pa.Buffer:
        body = self.entries[place.position][1] if place.segment == 1 else None
        if body is None or zlib.crc32(body) != place.crc:
            raise JournalDamaged(f"no such body: {place}")
        return body


def counted_ids(given: int = 0) -> Callable[[], bytes]:
    """Returns a source of identities that goes on behind `given`, the same ones that the model gives."""
    count = given

    def next_id() -> bytes:
        nonlocal count
        count += 1
        return identity(count)

    return next_id


class ListWorld:
    """A whole broker without a disk."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.sink = ListSink()
        self.broker = Broker(CLUSTER, self.settings, self.sink, counted_ids())
        self._reader = RowReader(self.sink)  # type: ignore[arg-type]
        self.now_us = 1_700_000_000_000_000

    def handle(self, command: Any) -> Any:
        """Returns the reply. Who writes nothing by the table of commands must not have written."""
        before = self.broker.ledger.entries
        try:
            return self.broker.handle(command, self.now_us)
        finally:
            if COMMANDS[type(command)].room_of(command) is Room.NOTHING:
                assert self.broker.ledger.entries == before, f"{type(command).__name__} has written"

    def settle(self) -> None:
        """Makes everything durable; a list always is."""

    def dispatch(self) -> None:
        self.settle()
        while self.broker.dispatch(self.now_us):
            pass

    def read(
        self, view: RowsView, columns: int = 0, batch_rows_max: int = 0, start_row: int = 0
    ) -> list[ReadRow]:
        return rows_of([*self._reader.read(view, columns, batch_rows_max, start_row)], view.partition)

    def replayed(self) -> Broker:
        """Returns another core that was given the entries of this one."""
        other = Broker(CLUSTER, self.settings, ListSink(), counted_ids())
        for header, body, place in self.sink.entries:
            other.replay(header, body, place)
        return other


def rows_of(batches: list[tuple[RowsHeader, pa.Buffer]], partition: int) -> list[ReadRow]:
    """Returns delivered batches as rows, expanded as clients do."""
    rows: list[ReadRow] = []
    for header, records in batches:
        assert header.partition == partition
        assert records.size <= RECORDS_BYTES_MAX
        assert 0 < header.rows <= RECORDS_ROWS_MAX
        assert sum(header.run_rows) == header.rows
        batch = envelope.decode(records, header.columns, header.rows)
        offsets = (
            np.frombuffer(header.offsets, "<i8")
            if header.offsets
            else header.base_offset + np.arange(header.rows)
        )

        def expand(column: Any, runs: Any = header.run_rows) -> list[Any]:
            return [value for value, count in zip(column, runs, strict=True) for _ in range(count)]

        producers = [header.producers[number] for number in expand(header.producer)]
        columns = zip(
            offsets.tolist(),
            batch.column("value").to_pylist(),
            expand(header.priority),
            expand(header.delivery_count),
            producers,
            expand(header.sequence_shift),
            expand(header.append_time_us),
            strict=True,
        )
        for at, (offset, value, priority, count, producer, shift, time_us) in enumerate(columns):
            rows.append(
                ReadRow(
                    partition,
                    offset,
                    value,
                    priority,
                    count,
                    producer,
                    offset + shift,
                    time_us,
                    header.first_delivery + at,
                )
            )
    return rows
