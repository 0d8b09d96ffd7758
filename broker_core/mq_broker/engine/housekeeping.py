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
#: What a frame adds to the next snapshot, about: where it lies, and a range that is remembered.
_FRAME_BYTES: Final = 128
#: And a staged set, which is a part by itself.
_SET_BYTES: Final = 640


@dataclass(frozen=True, slots=True)
class SnapshotSettings:
    """A snapshot is due after `bytes` of journal, or `interval_us` after the first change since the
    last one.
    """

    bytes: int = 256 << 20
    interval_us: int = 300 * 1_000_000


def room_for(sizes: tuple[int, int], frames: int, sets: int) -> tuple[int, int]:
    """Returns how many bytes snapshots need beside those that are kept, and how many the next one alone.

    Two are kept while a third is written, each as large as the last and what so many new frames add.

    Args:
        sizes: as `SnapshotStore.sizes` has them.
        frames: written since the last one.
        sets: staged since then.
    """
    last, used = sizes
    size = last + frames * _FRAME_BYTES + sets * _SET_BYTES
    return max(3 * size - used, size), size


def on_a_thread(work: Callable[[], None]) -> Callable[[], None]:
    """Begins `work` on a thread of its own; returns what waits for its end."""
    thread = threading.Thread(target=work, name="mq-snapshot", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the system gives no thread at present, and a snapshot cannot wait for one
        work()
        return lambda: None
    return thread.join


@dataclass(slots=True)
class _Writing:
    """A snapshot on its way to the disk. `error` and `done` are set by the thread that writes; `again`: it
    can be tried again at once.
    """

    keys: set[str]
    dirty: set[tuple[object, ...]]
    wait: Callable[[], None] | None = None
    error: BaseException | None = None
    done: bool = False
    again: bool = False


class Housekeeping:
    """Steps are taken by the engine between turns; only the writing of a snapshot has a thread of its own.

    Args:
        journal: whose segments are given back.
        store: of snapshots.
        settings: when a snapshot is due.
        kept: keys of the parts of the newest snapshot.
        replayed: how many frames of the journal are behind it.
        aside: where snapshots are written: on a thread of their own.
    """

    def __init__(
        self,
        journal: Journal,
        store: SnapshotStore,
        settings: SnapshotSettings | None = None,
        kept: set[str] | None = None,
        aside: Aside = on_a_thread,
        replayed: int = 0,
    ) -> None:
        self._journal, self._store = journal, store
        self._cleaner = Cleaner(journal)
        self._settings = settings or SnapshotSettings()
        self._kept = kept or set()
        self._aside = aside
        self._covered = store.position()
        self._changed_us: int | None = None
        self._not_before_us = 0
        self._relief_due_us = 0
        #: Whether somebody waits for a snapshot; after one that found no room nobody does for a while.
        self._is_pressed, self._pressed_not_before_us = False, 0
        self._writing: _Writing | None = None
        #: Sizes of snapshots, and how many frames there were with the last one.
        self._sizes, self._counted = store.sizes(), -replayed
        self._sets = 0

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

    def step(self, broker: Broker, now_us: int, monotonic_us: int | None = None) -> None:
        """Begins a snapshot when one is due, and gives back segments after one is complete. Called when no
        turn is in hand.

        Args:
            broker: whose state it is.
            now_us: wall clock, microseconds.
            monotonic_us: microseconds that only grow; None = the wall clock, where only one is told.

        Raises:
            StorageFailed: a snapshot could not be written.
        """
        time_us = now_us if monotonic_us is None else monotonic_us
        if self._cleaner.step(broker, now_us):
            self.reclaim(broker)
        self.keep_room(broker)
        if self._writing is not None:
            if self._writing.done:
                self._complete(broker, self._writing, time_us)
            return
        if not broker.state.dirty:
            self._changed_us = None
        elif self._changed_us is None:
            self._changed_us = time_us
        if time_us >= self._not_before_us and (
            self._is_due(broker, time_us) or self._is_needed_for_room(broker, time_us)
        ):
            self._begin(broker)

    def keep_room(self, broker: Broker) -> None:
        """New segments leave room for snapshots. Before a segment is asked for."""
        self._journal.space.keep_free(self._room_for(broker)[0])

    def _room_for(self, broker: Broker) -> tuple[int, int]:
        return room_for(
            self._sizes, broker.ledger.frames - self._counted, max(len(broker.state.staged) - self._sets, 0)
        )

    def _is_due(self, broker: Broker, time_us: int) -> bool:
        return self._changed_us is not None and (
            self._journal.space.bytes_since(self._covered) >= self._settings.bytes
            or time_us - self._changed_us >= self._settings.interval_us
            or broker.state.damage_found
        )

    def _is_needed_for_room(self, broker: Broker, time_us: int) -> bool:
        """Rows are refused, or state is written into what is kept back for it: what was consumed comes back
        now, and not when the next two snapshots would be due.
        """
        if self._journal.space.lacks_reserve and self._is_behind():
            return True
        if not (self._journal.is_short or self._journal.space.lacks_reserve) or time_us < self._relief_due_us:
            return False
        self._relief_due_us = time_us + _RELIEF_US
        return not self.reclaim(broker) and not self._cleaner.busy and self._is_behind()

    def _is_behind(self) -> bool:
        """Only segments before the older snapshot can be given back, so a second one may be needed although
        nothing has changed.
        """
        older = self._store.older_position()
        return (
            self._journal.space.segments()[0][0] if older is None else older.segment
        ) < self._journal.position.segment

    def relieve(self, broker: Broker, time_us: int) -> None:
        """Snapshots here and now until all before the segment in hand is covered.

        For whoever would take the last segment. To be called when no turn is in hand.

        Raises:
            StorageFailed: a snapshot could not be written.
        """
        self.wait()
        if self._writing is not None:
            self._complete(broker, self._writing, time_us)
        self.reclaim(broker)
        self._is_pressed = True
        while self.may_relieve(time_us):
            self._write_now(broker, time_us)
        self._is_pressed = False

    def may_relieve(self, time_us: int) -> bool:
        """Whether snapshots could bring segments back: then the last one that is kept for state is not taken
        before they are written.
        """
        return self._is_behind() and time_us >= self._pressed_not_before_us

    def _write_now(self, broker: Broker, time_us: int) -> _Writing:
        """Writes a snapshot on this thread."""
        writing = self._prepare(broker)
        parts, unchanged = self._parts(broker, writing)
        self._write(writing, self._journal.position, parts, unchanged)
        self._complete(broker, writing, time_us)
        return writing

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

    def _write(
        self,
        writing: _Writing,
        position: JournalPosition,
        parts: list[tuple[str, bytes]],
        unchanged: set[str],
    ) -> None:
        try:
            self._store.write(position, parts, unchanged)
        except BaseException as error:
            writing.error = error  # raised again on the engine's thread
        writing.done = True

    def _complete(self, broker: Broker, writing: _Writing, time_us: int) -> None:
        self._writing = None
        if isinstance(writing.error, StoreFull):
            # The journal still has everything; what was to be written is due again. At once where empty
            # segments can make way.
            broker.state.dirty |= writing.dirty
            writing.again = self._journal.give_way(self._room_for(broker), left=0 if self._is_pressed else 1)
            if not writing.again:
                self._not_before_us = time_us + _RETRY_US
                if self._is_pressed:
                    self._pressed_not_before_us = self._not_before_us
            return
        if isinstance(writing.error, JournalDamaged):
            # A part that had to be copied is damaged on the disk. The state has it: write everything anew.
            snapshot.mark_all(broker.state)
            self._kept = set()
            broker.state.damage_found = writing.again = True
            return
        if writing.error is not None:
            raise writing.error
        self._kept, self._covered = writing.keys, self._store.position()
        self._sizes, self._counted, self._sets = (
            self._store.sizes(),
            broker.ledger.frames,
            len(broker.state.staged),
        )
        self.reclaim(broker)

    def reclaim(self, broker: Broker) -> list[int]:
        """Gives back segments that the older snapshot covers and that hold no row anybody can still get;
        returns them.
        """
        older = self._store.older_position()
        if older is None:
            return []
        covered = [number for number, _, _ in self._journal.space.segments() if number < older.segment]
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
            if not self._write_now(broker, 0).again:
                return
