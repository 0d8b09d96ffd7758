"""Histories of turns for the tests of the journal: written down as plain lists, compared as such."""

from __future__ import annotations

import random
from collections.abc import Iterable
from uuid import UUID

from mq_broker.journal import frames
from mq_broker.journal.disk import Disk
from mq_broker.journal.journal import Journal
from mq_broker.journal.recovery import JournalPosition, Turn
from mq_broker.journal.settings import TINY, JournalSettings

UUID_1 = UUID("11111111-2222-3333-4444-555555555555")

Entries = list[tuple[bytes, bytes | None]]


def random_entries(rng: random.Random, count_max: int = 4, body_max: int = 1500) -> Entries:
    """One turn: few entries, some without body, some with an empty one; some with headers over several
    sectors, as those of plans are.
    """
    entries: Entries = []
    for _ in range(rng.randint(1, count_max)):
        body = rng.choice([None, b"", rng.randbytes(rng.randrange(body_max))])
        header_max = 2000 if body is None and rng.random() < 0.3 else 100
        entries.append((rng.randbytes(rng.randrange(header_max)), body))
    return entries


def size_of(entries: Entries) -> int:
    return sum(
        frames.frame_bytes(len(header), None if body is None else len(body)) for header, body in entries
    )


def write(journal: Journal, entries: Entries, *, for_state: bool = False) -> int:
    """Writes one turn as the engine does; returns its number."""
    journal.reserve(size_of(entries), for_state=for_state)
    for header, body in entries:
        journal.add(header, body)
    return journal.commit()


def plain(turns: Iterable[Turn]) -> list[tuple[int, Entries]]:
    """Turns as numbers and bytes; those that only open a generation are left out."""
    return [
        (
            turn.number,
            [(bytes(header), None if body is None else bytes(body)) for header, body, _ in turn.entries],
        )
        for turn in turns
        if turn.entries
    ]


def recover(
    disk: Disk, start: JournalPosition | None = None, settings: JournalSettings = TINY
) -> tuple[Journal, list[tuple[int, Entries]]]:
    journal, turns = Journal.recover(disk, settings, UUID_1, start)
    return journal, plain(turns)
