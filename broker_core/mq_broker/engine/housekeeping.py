"""Snapshots in the background, and journal segments that nobody needs any more."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from mq_broker.core import snapshot
from mq_broker.core.broker import Broker
from mq_broker.engine.cleaner import Cleaner
from mq_broker.journal.journal import Journal
from mq_broker.journal.recovery import JournalPosition
from mq_broker.journal.snapshots import SnapshotStore
from mq_wire.errors import JournalDamaged, StoreFull

#: Begins a piece of work aside; returns what waits for its end.
Aside = Callable[[Callable[[], None]], Callable[[], None]]

#: After a snapshot found no room, so long until the next attempt.
_RETRY_US: Final = 10_000_000
#: While publishes are refused for want of room, it is looked so often whether any can be given back.
_RELIEF_US: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class SnapshotSettings:
    """A snapshot is due after `bytes` of journal, or `interval_us` after the first change since the last one."""

    bytes: int = 256 << 20
    interval_us: int = 300 * 1_000_000


def on_a_thread(work: Callable[[], None]) -> Callable[[], None]:
    """Begins `work` on a thread of its own; returns what waits for its end."""
    thread = threading.Thread(target=work, name="mq-snapshot", daemon=True)
    thread.start()
    return thread.join


@dataclass(slots=True)
class _Writing:
    """A snapshot on its way to the disk. `error` and `done` are set by the thread that writes."""

    keys: set[str]
    dirty: set[tuple[object, ...]]
    wait: Callable[[], None] | None = None
    error: BaseException | None = None
    done: bool = False


class Housekeeping:
    """Steps are taken by the engine between turns; only the writing of a snapshot has a thread of its own.

    Args:
        journal: whose segments are given back.
        store: of snapshots.
        segment_bytes: to reckon how much journal has been written.
        settings: when a snapshot is due.
        kept: keys of the parts of the newest snapshot.
        aside: where snapshots are written: on a thread of their own.
    """

    def __init__(
        self,
        journal: Journal,
        store: SnapshotStore,
        segment_bytes: int,
        settings: SnapshotSettings | None = None,
        kept: set[str] | None = None,
        aside: Aside = on_a_thread,
    ) -> None:
        self._journal, self._store = journal, store
        self._cleaner = Cleaner(journal, segment_bytes)
        self._segment_bytes = segment_bytes
        self._settings = settings or SnapshotSettings()
        self._kept = kept or set()
        self._aside = aside
        self._covered = store.position()
        self._changed_us: int | None = None
        self._not_before_us = 0
        self._relief_due_us = 0
        self._writing: _Writing | None = None

    @property
    def busy(self) -> bool:
        """Whether a snapshot or a cleaned segment is under way."""
        return self._writing is not None or self._cleaner.busy

    @property
    def is_cleaning(self) -> bool:
        """Whether the next step has something to do already."""
        return self._cleaner.busy

    def wait(self) -> None:
        """Waits for the thread that writes a snapshot; the next step completes it."""
        if self._writing is not None and self._writing.wait is not None:
            self._writing.wait()

    def step(self, broker: Broker, now_us: int) -> None:
        """Begins a snapshot when one is due, and gives back segments after one is complete. Called when no turn is in hand.

        Raises:
            StorageFailed: a snapshot could not be written.
        """
        if self._cleaner.step(broker, now_us):
            self.reclaim(broker)
        if self._writing is not None:
            if self._writing.done:
                self._complete(broker, self._writing, now_us)
            return
        if not broker.state.dirty:
            self._changed_us = None
        elif self._changed_us is None:
            self._changed_us = now_us
        if now_us >= self._not_before_us and (self._is_due(broker, now_us) or self._is_needed_for_room(broker, now_us)):
            self._begin(broker)

    def _is_due(self, broker: Broker, now_us: int) -> bool:
        return self._changed_us is not None and (
            self._written_bytes() >= self._settings.bytes
            or now_us - self._changed_us >= self._settings.interval_us
            or broker.state.damage_found
        )

    def _is_needed_for_room(self, broker: Broker, now_us: int) -> bool:
        """Publishes are refused: what was consumed comes back now, and not when the next two snapshots would be due.

        Only segments before the older snapshot can be given back, so a second snapshot may be needed although nothing has changed.
        """
        if not self._journal.is_short or now_us < self._relief_due_us:
            return False
        self._relief_due_us = now_us + _RELIEF_US
        if self.reclaim(broker) or self._cleaner.busy:
            return False
        older = self._store.older_position()
        return (self._journal.segments()[0][0] if older is None else older.segment) < self._journal.position.segment

    def _written_bytes(self) -> int:
        position, covered = self._journal.position, self._covered
        if covered is None:
            return position.segment * self._segment_bytes + position.position
        return (position.segment - covered.segment) * self._segment_bytes + position.position - covered.position

    def _begin(self, broker: Broker) -> None:
        writing = self._prepare(broker)
        position, parts, unchanged = self._journal.position, *self._parts(broker, writing)
        self._writing = writing
        writing.wait = self._aside(lambda: self._write(writing, position, parts, unchanged))

    def _prepare(self, broker: Broker) -> _Writing:
        self._changed_us = None
        broker.state.damage_found = False
        self._cleaner.note_changes(broker.state)
        snapshot.tidy(broker.state)
        return _Writing(set(), set(broker.state.dirty))

    def _parts(self, broker: Broker, writing: _Writing) -> tuple[list[tuple[str, bytes]], set[str]]:
        parts, unchanged = snapshot.take(broker.state, self._kept)
        writing.keys = unchanged | {key for key, _ in parts}
        return parts, unchanged

    def _write(self, writing: _Writing, position: JournalPosition, parts: list[tuple[str, bytes]], unchanged: set[str]) -> None:
        try:
            self._store.write(position, parts, unchanged)
        except BaseException as error:
            writing.error = error  # raised again on the engine's thread
        writing.done = True

    def _complete(self, broker: Broker, writing: _Writing, now_us: int) -> None:
        self._writing = None
        if isinstance(writing.error, StoreFull):
            # The journal still has everything; what was to be written is due again.
            broker.state.dirty |= writing.dirty
            self._not_before_us = now_us + _RETRY_US
            return
        if isinstance(writing.error, JournalDamaged):
            # A part that had to be copied is damaged on the disk. The state has it: write everything anew.
            snapshot.mark_all(broker.state)
            self._kept = set()
            broker.state.damage_found = True
            return
        if writing.error is not None:
            raise writing.error
        self._kept, self._covered = writing.keys, self._store.position()
        self.reclaim(broker)

    def reclaim(self, broker: Broker) -> list[int]:
        """Gives back segments that the older snapshot covers and that hold no row anybody can still get; returns them."""
        older = self._store.older_position()
        if older is None:
            return []
        covered = [number for number, _, _ in self._journal.segments() if number < older.segment]
        self._cleaner.note_changes(broker.state)
        free = broker.reclaimable(covered)
        for segment in free:
            self._journal.reclaim(segment)
        if not self._cleaner.busy:
            self._cleaner.consider([segment for segment in covered if segment not in free])
        return free

    def finish(self, broker: Broker) -> None:
        """Waits for a snapshot on its way and takes a last one, so that the next start is quick."""
        self.wait()
        if self._writing is not None:
            self._complete(broker, self._writing, 0)
        while broker.state.dirty:
            writing = self._prepare(broker)
            parts, unchanged = self._parts(broker, writing)
            self._write(writing, self._journal.position, parts, unchanged)
            self._complete(broker, writing, 0)
            if not isinstance(writing.error, JournalDamaged):
                return
