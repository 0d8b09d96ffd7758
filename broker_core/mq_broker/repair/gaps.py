"""The gaps in a state that lacks some entries: destinations and partitions whose creation is lost, and
offsets without rows.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID, uuid5

from pyroaring import BitMap64

from mq_broker.core.model.destination import Destination, Partition
from mq_broker.core.model.selection import range_bitmap
from mq_broker.core.model.state import State
from mq_broker.repair.findings import Finding

_NAMESPACE: Final = UUID("6f0c1e9c-4b0e-4a5b-9a5e-3f2f6d3f7a10")

#: (destination number, partition).
Key = tuple[int, int]


@dataclass(slots=True)
class Gaps:
    """Fills the gaps of a state, and remembers them."""

    state: State
    #: Holes by partition: offsets that were given to rows of which nothing is left. Rows acknowledged since
    #: are excluded.
    holes: dict[Key, BitMap64] = field(default_factory=lambda: defaultdict(BitMap64))
    #: Finding charged with the new holes; (partition, holes, finding).
    blame: Finding | None = None
    blamed: list[tuple[Key, BitMap64, Finding | None]] = field(default_factory=list)
    #: Partitions whose end is known from an entry after all missing ones.
    sure: set[Key] = field(default_factory=set)

    def note(self, text: str) -> None:
        """Tells with the damage in hand what is lost besides rows."""
        if self.blame is not None and text not in self.blame.state:
            self.blame.add_state(text)

    def destination(self, number: int, partitions: int = 1) -> Destination:
        """Returns a destination with at least so many partitions. Makes it if its creation is lost."""
        state = self.state
        found = state.by_number.get(number)
        if found is None:
            name = f"recovered.{number}"
            identity = uuid5(_NAMESPACE, f"{state.cluster_id.hex()}/{number}").bytes
            found = state.by_number[number] = state.by_name[name] = Destination(number, name, identity, [])
            state.next_destination = max(state.next_destination, number + 1)
            self.note(
                f"the entry that created destination {number} is lost: "
                f"its rows are in {name!r}, under a new identity"
            )
        while len(found.partitions) < partitions:
            found.grow(Partition(state.audits))
        return found

    def partition(self, number: int, partition: int) -> Partition:
        """Returns a partition. Makes it if its creation is lost."""
        return self.destination(number, partition + 1).partitions[partition]

    def grow(self, number: int, partition: int, end: int) -> None:
        """Notes that offsets below `end` were given. Those that no entry mentioned become holes."""
        log = self.partition(number, partition).log
        if end > log.next_offset:
            hole = range_bitmap(log.next_offset, end)
            self.holes[number, partition] |= hole
            self.blamed.append(((number, partition), hole, self.blame))
            log.next_offset = end
