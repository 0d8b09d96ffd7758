"""What is damaged, and what that costs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pyroaring import BitMap64

from mq_broker.core.selection import ranges_of, shown

#: Destination name and partition.
Where = tuple[str, int]


@dataclass(slots=True)
class Finding:
    """One damage.

    Attributes:
        file: its name, without the folder.
        position: in bytes; 0 where the file as a whole is meant.
        what: is wrong there.
        lost: rows that somebody could still get, and whose bytes are damaged or gone; an acknowledged range
            that is kept for its checkpoint counts too.
        state: what else is lost; "" = nothing.
        turns: first and last of those whose decisions are not known; the last is 0 where that is not known
            either.
    """

    file: str
    position: int
    what: str
    lost: dict[Where, BitMap64] = field(default_factory=dict)
    state: str = ""
    turns: tuple[int, int] | None = None

    def undo(self, first: int, last: int) -> None:
        """Notes that what turns [first, last] decided is not known."""
        self.turns = (first, last)
        turns = (
            f"turn {first} and those behind it"
            if not last
            else f"turn {first}"
            if first >= last
            else f"turns {first} to {last}"
        )
        self.add_state(
            f"what {turns} decided is not known: rows that they stored may be lost, rows that they "
            f"acknowledged may be delivered again, "
            "their plans and commits are undone"
        )

    def add_state(self, text: str) -> None:
        """Adds something that is lost beside rows."""
        self.state = f"{self.state}; {text}" if self.state else text

    def lose(self, where: Where, offsets: BitMap64) -> None:
        """Adds lost rows."""
        if offsets:
            self.lost[where] = self.lost.get(where, BitMap64()) | offsets

    @property
    def cost(self) -> str:
        """What it costs, for people."""
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
        """The same for programs; ranges are (first, last)."""
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
    """Returns the rows that all findings together cost."""
    lost: dict[Where, BitMap64] = {}
    for finding in findings:
        for where, offsets in finding.lost.items():
            lost[where] = lost.get(where, BitMap64()) | offsets
    return lost
