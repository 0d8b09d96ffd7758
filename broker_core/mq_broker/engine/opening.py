"""From a data directory to an engine: snapshot, replay, and a journal open for writing."""

from __future__ import annotations

import os
from collections.abc import Callable
from uuid import UUID

import pyarrow as pa

from mq_broker.core import snapshot
from mq_broker.core.broker import Broker
from mq_broker.core.commands import Settings
from mq_broker.engine.engine import Engine
from mq_broker.engine.housekeeping import Aside, Housekeeping, SnapshotSettings, on_a_thread, room_for
from mq_broker.journal.directory import DataDirectory
from mq_broker.journal.disk import Disk, told_if_unreadable
from mq_broker.journal.journal import Journal
from mq_broker.journal.settings import JournalSettings
from mq_broker.journal.snapshots import SnapshotStore
from mq_wire.errors import DataDirectoryUnusable


def open_engine(
    directory: DataDirectory,
    settings: Settings,
    journal_settings: JournalSettings,
    snapshot_settings: SnapshotSettings | None = None,
    on_failure: Callable[[BaseException], None] | None = None,
) -> Engine:
    """Returns an engine over what the data directory holds, not yet started.

    Raises:
        BrokerFault: see `Journal.recover` and `SnapshotStore`, or a file that cannot be read; nothing was
            changed.
    """
    identity = directory.identity
    with told_if_unreadable():
        broker, journal, housekeeping = recover(
            directory.journal_disk,
            directory.snapshot_disk,
            identity.cluster.bytes,
            identity.journal,
            settings,
            journal_settings,
            snapshot_settings,
            created=identity.created,
        )
    try:
        if identity.created:
            directory.upgrade()
        else:
            directory.finish()
    except BaseException:
        journal.close()
        raise
    return Engine(broker, journal, housekeeping, on_failure=on_failure)


def recover(
    journal_disk: Disk,
    snapshot_disk: Disk,
    cluster_id: bytes,
    journal_id: UUID,
    settings: Settings,
    journal_settings: JournalSettings,
    snapshot_settings: SnapshotSettings | None = None,
    *,
    created: bool,
    new_id: Callable[[], bytes] = lambda: os.urandom(16),
    aside: Aside = on_a_thread,
) -> tuple[Broker, Journal, Housekeeping]:
    """Returns core, journal and housekeeping as the disks have them; `created` tells whether there is a
    journal yet.
    """
    store = SnapshotStore(snapshot_disk, journal_id)
    if not created:
        if (
            store.position() is not None
            or sum(name.startswith("segment-") for name in journal_disk.list_names()) > 1
        ):
            raise DataDirectoryUnusable(
                "the identity says that the first start was never finished, but there are snapshots or "
                "segments of later ones, which it "
                "would remove. Restore the identity file from a copy; nothing was changed"
            )
        journal = Journal.create(journal_disk, journal_settings, journal_id)
        broker = Broker(cluster_id, settings, journal, new_id)
        return broker, journal, Housekeeping(journal, store, snapshot_settings, aside=aside)
    loaded = store.load()
    journal, turns = Journal.recover(
        journal_disk, journal_settings, journal_id, loaded[0] if loaded is not None else None
    )
    broker = Broker(cluster_id, settings, journal, new_id)
    kept: set[str] = set()
    if loaded is not None:
        parts = list(loaded[1])
        kept = {key for key, _ in parts}
        snapshot.restore(broker.state, iter(parts))
    sizes, replayed = store.sizes(), 0
    journal.space.keep_free(room_for(sizes, replayed, len(broker.state.staged))[0])
    for turn in turns:
        replayed += sum(body is not None for _, body, _ in turn.entries)
        # before the pool begins to fill
        journal.space.keep_free(room_for(sizes, replayed, len(broker.state.staged))[0])
        for header, body, place in turn.entries:
            broker.replay(header, None if body is None else pa.py_buffer(body), place)
    return broker, journal, Housekeeping(journal, store, snapshot_settings, kept, aside, replayed)
