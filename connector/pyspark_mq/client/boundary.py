"""Where a durable consumer stands, as it travels and is kept beside what was done with the rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Boundary:
    """Between two ranges of a durable consumer: everything below `positions` was delivered to this
    incarnation.

    Attributes:
        destination: the queue's name.
        consumer: the durable name; empty for one that is known by its incarnation only.
        cluster_id: the broker, 16 bytes.
        destination_id: the queue, 16 bytes; a re-created queue has another one.
        incarnation: the consumer's life under one checkpoint; empty before the first plan.
        positions: next delivery number by partition; a missing partition means 0.
    """

    destination: str = ""
    consumer: str = ""
    cluster_id: bytes = b""
    destination_id: bytes = b""
    incarnation: bytes = b""
    positions: Mapping[int, int] = field(default_factory=dict)

    @property
    def initial(self) -> bool:
        """Whether nothing was ever planned."""
        return not self.incarnation
