"""A journal's life over many crashes: what was acknowledged is there after each."""

from __future__ import annotations

import random

from mq_broker.journal.journal import Journal
from mq_broker.journal.recovery import JournalPosition
from mq_broker.journal.settings import TINY
from mq_broker.testing.memory_disk import Crash, MemoryDisk, crash_at, fail_at
from mq_wire.errors import StorageFailed
from spark_tests.support.journals import UUID_1, Entries, random_entries, recover, write


class Life:
    """A journal's life over several crashes, with what a client was told and what it tried."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.disk = MemoryDisk(rng=rng)
        self.acknowledged: list[tuple[int, Entries]] = []
        self.in_flight: tuple[int, Entries] | None = None
        self.position: JournalPosition | None = None

    def work(self, journal: Journal, turns: int) -> None:
        for _ in range(turns):
            entries = random_entries(self.rng)
            self.in_flight = (journal.next_turn, entries)
            number = write(journal, entries)
            assert number == self.in_flight[0]
            self.acknowledged.append(self.in_flight)
            self.in_flight = None
            if self.rng.random() < 0.1:
                self.position = journal.position
                for segment, _, _ in journal.space.segments():
                    if segment < self.position.segment:
                        journal.reclaim(segment)

    def check(self) -> Journal:
        """Recovers; takes over a turn that was in flight and turned out to be there."""
        journal, recovered = recover(self.disk, self.position)
        covered = self.position.turn if self.position else 0
        expected = [turn for turn in self.acknowledged if turn[0] > covered]
        if self.in_flight is not None and recovered[len(expected) :] == [self.in_flight]:
            self.acknowledged.append(self.in_flight)
            expected.append(self.in_flight)
        assert recovered == expected
        self.in_flight = None
        return journal


def prepared(rng: random.Random) -> Life:
    life = Life(rng)
    life.work(Journal.create(life.disk, TINY, UUID_1), 15)
    return life


def live_on(life: Life, rng: random.Random) -> None:
    """One process more: it recovers and works until the power fails, or until a sync fails, with or without
    the power failing then.

    A journal that goes on behind a failed sync does not go on for long: the power fails soon.
    """
    power = rng.random() < 0.5
    before, in_flight = life.disk, life.in_flight
    end, failing = crash_at(before.steps + rng.randint(1, 60)), fail_at("sync", rng.randint(1, 12))

    def fail_first(kind: str, name: str, steps: int) -> None:
        failing(kind, name, steps)
        end(kind, name, steps)

    before.hook = end if power else fail_first
    try:
        journal = life.check()
        in_flight = None
        life.work(journal, 200)
    except (Crash, StorageFailed):
        if in_flight is not None:  # recovery did not end: still open whether that turn is there
            life.in_flight = in_flight
    life.disk = before.crash(rng) if power or rng.random() < 0.5 else before.reopen()


def live_long(life: Life, rng: random.Random, processes: int) -> None:
    for _ in range(processes):
        live_on(life, rng)
