"""What happens to a checkpoint while no driver is at work: its last files are lost one by one, or an older
copy of it is put back.
"""

from __future__ import annotations

import pathlib
import random
import shutil
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Loss:
    """A fault of a checkpoint whose last batch is N.

    Attributes:
        offsets: so many of the last files of `offsets/` are gone.
        commits: so many of the last files of `commits/` are gone.
        copied: instead, a copy is put back that was taken so many batches ago.
        first: the query has run batch 0 only, so that is what is lost.
    """

    offsets: int = 0
    commits: int = 0
    copied: int = 0
    first: bool = False

    def __str__(self) -> str:
        if self.copied:
            return f"a copy that is {self.copied} batches old"
        return f"{self.offsets} offsets and {self.commits} commits lost{' of batch 0' if self.first else ''}"

    @property
    def batches(self) -> int:
        """How many batches Spark may not know any more."""
        return max(self.offsets, self.commits, self.copied)

    @property
    def spark_fails(self) -> bool:
        """Whether Spark runs a batch again that its commit log knows, and fails there by itself."""
        return self.offsets > self.commits

    @property
    def harmless(self) -> bool:
        """Whether the last batch just runs again: a query that is refused here is refused for nothing."""
        return not self.offsets and not self.copied

    def strike(self, checkpoint: pathlib.Path, copy: Copy | None = None) -> None:
        """Does it. No driver may be at work."""
        if self.copied:
            assert copy is not None
            copy.put_back(checkpoint)
        lose(checkpoint / "offsets", self.offsets)
        lose(checkpoint / "commits", self.commits)


#: Every way to lose one or two files of either folder, copies, and the first batch.
LOSSES: Final = (
    *(Loss(offsets, commits) for offsets in range(3) for commits in range(3) if offsets or commits),
    Loss(copied=1), Loss(copied=2), Loss(1, 1, first=True), Loss(1, 0, first=True), Loss(0, 1, first=True),
)  # fmt: skip


class Copy:
    """A copy of a checkpoint."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder

    def take(self, checkpoint: pathlib.Path) -> None:
        """Copies it as it is now."""
        shutil.copytree(checkpoint, self._folder)

    def put_back(self, checkpoint: pathlib.Path) -> None:
        """Replaces the checkpoint by the copy."""
        shutil.rmtree(checkpoint)
        shutil.copytree(self._folder, checkpoint)


def lose(log: pathlib.Path, count: int) -> list[int]:
    """Removes the last files of a folder of a checkpoint with their sums; returns which."""
    batches = sorted(int(entry.name) for entry in log.glob("[0-9]*") if entry.name.isdigit())
    gone = batches[max(len(batches) - count, 0) :]
    for batch in gone:
        (log / str(batch)).unlink()
        (log / f".{batch}.crc").unlink(missing_ok=True)
    return gone


def any_loss(rng: random.Random) -> Loss:
    """Returns one for a checkpoint in the middle of its life: no copies, since nobody waits for its
    batches.
    """
    return rng.choice([loss for loss in LOSSES if not loss.copied and not loss.first])
