"""Staged sets: rows that are durable, invisible and without offsets until a commit names their token (design.md section 7)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from mq_broker.core.audit import Range
from mq_broker.core.log import Place
from mq_wire.limits import AUDIT_RANGES
from mq_wire.store.v1.store_pb2 import Staged


@dataclass(frozen=True, slots=True)
class StagedFrame:
    """One batch of a set. `priorities` is one number for all rows, or one int8 a row."""

    entry: Staged
    place: Place
    priorities: int | np.ndarray


@dataclass(slots=True)
class StagedSet:
    """What one write() call has sent under its random token. The duplicate audit has the token's scope."""

    token: bytes
    epoch: int
    query_id: str
    batch_id: int
    run_id: str
    last_time_us: int = 0
    #: The last sign of life by the clock of this process; None until that is known after a start.
    seen_us: int | None = None
    rows: int = 0
    frames: list[StagedFrame] = field(default_factory=list)
    #: (destination, partition) -> next sequence, and the last ranges.
    next_sequence: dict[tuple[int, int], int] = field(default_factory=dict)
    ranges: dict[tuple[int, int], deque[Range]] = field(default_factory=dict)

    def add(self, frame: StagedFrame, time_us: int) -> None:
        entry = frame.entry
        key = (entry.destination, entry.partition)
        self.frames.append(frame)
        self.rows += entry.records.rows
        self.last_time_us = time_us
        self.next_sequence[key] = entry.first_sequence + entry.records.rows
        known = self.ranges.setdefault(key, deque(maxlen=AUDIT_RANGES))
        known.append(Range(entry.first_sequence, entry.records.rows, entry.records_crc, 0, time_us))

    def move(self, entry: Staged, place: Place) -> None:
        """Points a batch of the set to a copy of it."""
        where = (entry.destination, entry.partition, entry.first_sequence)
        for at, known in enumerate(self.frames):
            if (known.entry.destination, known.entry.partition, known.entry.first_sequence) == where:
                self.frames[at] = StagedFrame(known.entry, place, known.priorities)


@dataclass(frozen=True, slots=True)
class Marker:
    """The last version that an owner (a query, an application) has committed to a target."""

    version: int
    run_id: str
    rows: int
    #: The streaming query that it worked for; "" where it did not say.
    query_id: str = ""
    #: Broker wall clock; 0 where it is not known.
    time_us: int = 0
