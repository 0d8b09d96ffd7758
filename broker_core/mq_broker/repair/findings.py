"""Findings: each damage in a data directory, and what is lost by it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pyroaring import BitMap64

from mq_broker.core.model.selection import ranges_of, shown

#: Destination name and partition.
Where = tuple[str, int]


@dataclass(slots=True)
class Finding:
    """One damage.

    Attributes:
        file: name of the file, without the folder.
        position: in the file, in bytes; 0 also for damage of the whole file.
        what: what is wrong.
        lost: live rows whose bytes are damaged or missing. Rows of an acknowledged range that is kept for its
            checkpoint count as live.
        state: what is lost besides rows; "" = nothing.
        turns: first and last turn whose decisions are unknown; the last one is 0 if it is unknown too.
    """

    file: str
    position: int
    what: str
    lost: dict[Where, BitMap64] = field(default_factory=dict)
    state: str = ""
    turns: tuple[int, int] | None = None

    def undo(self, first: int, last: int) -> None:
        """Notes that the decisions of turns [first, last] are unknown; last = 0: of all turns from first
        on.
        """
        self.turns = (first, last)
        turns = (
            f"turn {first} and all later turns"
            if not last
            else f"turn {first}"
            if first >= last
            else f"turns {first} to {last}"
        )
        self.add_state(
            f"the decisions of {turns} are unknown: rows that they stored may be lost, rows that they "
            "acknowledged may be delivered again, and their plans and commits are undone"
        )

    def add_state(self, text: str) -> None:
        """Adds something that is lost besides rows."""
        self.state = f"{self.state}; {text}" if self.state else text

    def lose(self, where: Where, offsets: BitMap64) -> None:
        """Adds lost rows."""
        if offsets:
            self.lost[where] = self.lost.get(where, BitMap64()) | offsets

    @property
    def cost(self) -> str:
        """What is lost, as text."""
        parts = [
            f"{name} partition {number}: offsets {shown(offsets)} ({len(offsets)} rows) are lost"
            for (name, number), offsets in self._sorted()
        ]
        if self.state:
            parts.append(self.state)
        return "; ".join(parts) or "nothing live"

    def __str__(self) -> str:
        return f"{self.file}, position {self.position}: {self.what}: {self.cost}"

    def as_json(self) -> dict[str, Any]:
        """Returns the finding for programs. Ranges of offsets are (first, last)."""
        return {
            "file": self.file,
            "position": self.position,
            "what": self.what,
            "lost": [
                {
                    "destination": name,
                    "partition": number,
                    "offsets": ranges_of(offsets),
                    "rows": len(offsets),
                }
                for (name, number), offsets in self._sorted()
            ],
            "state": self.state,
            "turns": self.turns,
        }

    def _sorted(self) -> list[tuple[Where, BitMap64]]:
        return sorted(self.lost.items(), key=lambda item: item[0])


def lost_rows(findings: list[Finding]) -> dict[Where, BitMap64]:
    """Returns the rows that are lost by all findings together."""
    lost: dict[Where, BitMap64] = {}
    for finding in findings:
        for where, offsets in finding.lost.items():
            lost[where] = lost.get(where, BitMap64()) | offsets
    return lost
