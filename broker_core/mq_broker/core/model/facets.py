"""What the broker knows of rows without reading them again.

Today that is the priority. Delivery time, expiry, message group and persistence belong here too: each is one
more field, taken from the records in `facets_of`, and kept in snapshots of staged sets by `written` and
`restored`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from mq_broker.core.model.selection import Lane
from mq_wire import envelope
from mq_wire.limits import PRIORITY_DEFAULT

#: Columns of the envelope that facets are taken from.
_COLUMNS: Final = envelope.PRIORITY


@dataclass(frozen=True, slots=True)
class Facets:
    """Facets of the rows of one batch.

    Attributes:
        priority: 0 to 9, of all rows; or one int8 a row, where they differ.
    """

    priority: int | np.ndarray

    @property
    def frame_priority(self) -> int:
        """The priority of all rows, -1 where they differ: as the index of frames has it."""
        return self.priority if isinstance(self.priority, int) else -1

    def lanes(self, offsets: np.ndarray) -> list[Lane]:
        """Returns the rows, at these ascending offsets, lane by lane."""
        if isinstance(self.priority, int):
            return [(self.priority, BitMap64(offsets.astype(np.uint64)))]
        return [
            (p, BitMap64(offsets[self.priority == p].astype(np.uint64)))
            for p in np.unique(self.priority).tolist()
        ]

    def priorities_written(self) -> bytes:
        """Returns one int8 a row, or nothing where all rows have one priority."""
        return b"" if isinstance(self.priority, int) else self.priority.astype(np.int8).tobytes()


#: Of records without any column that says otherwise.
DEFAULT: Final = Facets(PRIORITY_DEFAULT)


class Described(Protocol):
    """What comes with records: the header of a publish request, or an entry's description of them."""

    @property
    def priority_plus_one(self) -> int: ...
    @property
    def columns(self) -> int: ...


def facets_of(described: Described, batch: pa.RecordBatch | None) -> Facets:
    """Returns the facets of records, at intake and at replay alike.

    Args:
        described: says which columns there are, and what all rows have in common.
        batch: the records; None where no column has a facet.
    """
    if described.priority_plus_one:
        return Facets(described.priority_plus_one - 1)
    if batch is None or not described.columns & envelope.PRIORITY:
        return DEFAULT
    column: np.ndarray = batch.column("priority").to_numpy(zero_copy_only=True)
    low = int(column.min())
    return Facets(low if low == int(column.max()) else column)


def stored_facets(described: Described, body: pa.Buffer) -> Facets:
    """Returns the facets of records that were validated before they were stored."""
    batch = envelope.decode_trusted(body, described.columns) if described.columns & _COLUMNS else None
    return facets_of(described, batch)


def restored(priority: int, priorities: bytes) -> Facets:
    """Returns facets that a snapshot has kept."""
    return Facets(np.frombuffer(priorities, np.int8) if priorities else priority)
