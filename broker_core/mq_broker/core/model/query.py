"""What the broker knows of a streaming query: who reads which queue for it, when its batches were first read,
which writers are over.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Reader:
    """The one run that reads a queue in one start of a query, and the incarnation that it reads (empty where
    none is minted yet).
    """

    spark_run_id: str
    run: int
    incarnation: bytes


@dataclass(slots=True)
class Query:
    """One query, that is one checkpoint: Spark's query id lives in it.

    Attributes:
        reads: batch -> how many plans the whole broker had cut when the batch was first read; the last ones,
            oldest first.
        readers: by number of the destination.
        epochs: newest writer epoch by target of the sink; None stands for all targets (clients that name
            none).
        committed: last batch that our sink has committed; not kept with the query, since the markers say it.
        fenced_through: batches up to this one read rows that were given to somebody else since; their output
            is refused.
    """

    query_id: str
    reads: dict[int, int] = field(default_factory=dict)
    readers: dict[int, Reader] = field(default_factory=dict)
    epochs: dict[str | None, int] = field(default_factory=dict)
    fenced_through: int | None = None
    committed: int | None = None

    @property
    def ends(self) -> int:
        """How many queues it reads and targets it writes, as far as they are remembered."""
        return len(self.readers) + len(self.epochs)

    def epoch(self, target: str | None) -> int:
        """Returns the lowest epoch that may still write to `target`; None asks for all targets."""
        if target is None:
            return max(self.epochs.values(), default=0)
        return max(self.epochs.get(target, 0), self.epochs.get(None, 0))

    def forgot(self, batch: int, batches_max: int) -> bool:
        """Whether `batch` may have been read so long ago that it is not known any more when."""
        return len(self.reads) >= batches_max and batch < min(self.reads)

    def note_read(self, batch: int, plans_cut: int, batches_max: int) -> None:
        """Remembers the first reading of a batch, and forgets the lowest batch of too many."""
        self.reads.setdefault(batch, plans_cut)
        while len(self.reads) > batches_max:
            del self.reads[min(self.reads)]

    def is_fenced(self, batch: int) -> bool:
        """Whether the output of `batch` is refused for good."""
        return self.fenced_through is not None and batch <= self.fenced_through

    def fence(self, batch: int) -> None:
        """Refuses the output of `batch` and those before it from now on."""
        self.fenced_through = batch if self.fenced_through is None else max(batch, self.fenced_through)
