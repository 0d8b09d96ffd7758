"""Power cuts at every step: acknowledged is a subset of recovered, recovered of written, all in order."""

from __future__ import annotations

import random

import pytest

from mq_broker.journal.journal import Journal
from mq_broker.journal.recovery import Turn
from mq_broker.journal.settings import TINY
from mq_broker.testing.memory_disk import Crash, MemoryDisk, MemoryFile, crash_at, fail_at
from mq_wire.errors import JournalDamaged, StorageFailed
from spark_tests.support.journal_lives import Life, live_long, prepared
from spark_tests.support.journals import UUID_1, recover, write


@pytest.mark.parametrize("step", range(1, 70))
def test_a_crash_at_every_step(step: int, rng: random.Random) -> None:
    life = prepared(rng)
    journal = life.check()
    life.disk.hook = crash_at(life.disk.steps + step)
    with pytest.raises(Crash):
        life.work(journal, 200)
    life.disk = life.disk.crash(rng)
    life.work(life.check(), 10)
    life.disk = life.disk.crash(rng)
    life.check()


@pytest.mark.parametrize("step", range(1, 9))
def test_a_crash_at_every_step_of_recovery(step: int, rng: random.Random) -> None:
    for _ in range(8):
        life = prepared(rng)
        life.disk.hook = crash_at(life.disk.steps + rng.randint(1, 30))
        with pytest.raises(Crash):
            life.work(life.check(), 200)
        life.disk = life.disk.crash(rng)
        before, in_flight = life.disk, life.in_flight
        life.disk.hook = crash_at(step)
        try:
            life.check()
        except Crash:
            life.in_flight = in_flight
        life.disk = before.crash(rng)
        life.work(life.check(), 10)
        life.disk = life.disk.crash(rng)
        life.check()


@pytest.mark.parametrize("step", range(1, 12))
def test_a_crash_during_creation_leaves_nothing_or_all(step: int, rng: random.Random) -> None:
    disk = MemoryDisk()
    disk.hook = crash_at(step)
    try:
        Journal.create(disk, TINY, UUID_1)
    except Crash:
        disk = disk.crash(rng)
    disk.hook = None
    journal = Journal.create(disk, TINY, UUID_1)
    write(journal, [(b"x", None)])
    _, recovered = recover(disk.crash(rng))
    assert recovered == [(2, [(b"x", None)])]


def test_many_lives(rng: random.Random) -> None:
    life = prepared(rng)
    live_long(life, rng, 100)


def test_many_lives_find_a_recovery_that_does_not_sync(
    rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above can fail: the last turn must be synced *before* the next generation opens behind it."""
    settle = Journal._settle

    def settle_without_sync(journal: Journal, last: Turn | None) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(MemoryFile, "sync", lambda file: None)
            settle(journal, last)

    monkeypatch.setattr(Journal, "_settle", settle_without_sync)
    life = prepared(rng)
    with pytest.raises((AssertionError, JournalDamaged)):
        live_long(life, rng, 5000)


def prepared_with_room(rng: random.Random) -> tuple[Life, Journal]:
    """The next turn goes into the segment that is there: the mark that there is a next one would be synced
    first.
    """
    while True:
        life = prepared(rng)
        journal = life.check()
        if journal.space.fits(10_000):
            return life, journal


def test_after_a_failed_sync_the_turn_seen_in_the_cache_becomes_durable(rng: random.Random) -> None:
    for _ in range(20):
        life, journal = prepared_with_room(rng)
        life.disk.hook = fail_at("sync", 1, within="segment-")
        with pytest.raises(StorageFailed):
            life.work(journal, 1)
        # The process dies, the machine does not: the next one still sees the turn in the cache, and may tell
        # somebody about it.
        in_flight = life.in_flight
        life.disk = life.disk.reopen()
        life.check()
        assert life.acknowledged[-1] == in_flight, "the cache showed it"
        life.disk = life.disk.crash(rng)
        life.check()


def test_without_writing_the_last_turn_again_it_would_be_lost(
    rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above can fail: this is what it would see."""
    monkeypatch.setattr(Journal, "_settle", _settle_without_rewriting)
    with pytest.raises((AssertionError, JournalDamaged)):
        test_after_a_failed_sync_the_turn_seen_in_the_cache_becomes_durable(rng)


def _settle_without_rewriting(journal: Journal, last: object) -> None:
    segment = journal._tail.segment = journal._segments[journal._tail.position.segment]
    journal._file = journal._disk.open(f"segment-{segment.number:010d}.mqj")
