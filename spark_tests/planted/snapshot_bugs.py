"""Bugs in snapshots, in the space that they free, and in the cleaner."""

from __future__ import annotations

from typing import Final

from mq_broker.core import apply, consumer_parts, owners, retention, snapshot, touching
from mq_broker.core.model import facets
from mq_broker.core.model.audit import AuditMemory
from mq_broker.core.model.subscription import Backlog, Subscription
from mq_broker.engine.cleaner import Cleaner
from mq_broker.engine.engine import Engine
from mq_broker.engine.housekeeping import Housekeeping
from mq_broker.journal.snapshots import SnapshotStore
from spark_tests.support.planting import Bug, Change

FILES: Final = (
    Bug(
        "pack not synced before its name",
        "a snapshot's parts are on the disk once the operating system likes",
        (Change(SnapshotStore._write_pack, "file.sync()", "pass"),),
        "simulation",
    ),
    Bug(
        "manifest not synced before its name",
        "a snapshot's table of contents is on the disk once the operating system likes",
        (Change(SnapshotStore._write_manifest, "file.sync()", "pass"),),
        "simulation",
    ),
    Bug(
        "directory not synced behind a pack",
        "the manifest's name may be durable before that of the pack it names",
        (Change(SnapshotStore._write_pack, "self._disk.sync_directory()", "pass"),),
        "crash states",
        is_rare=True,
    ),
    Bug(
        "the sweep takes a pack that the older snapshot needs",
        "only what the newest manifest names is kept",
        (
            Change(
                SnapshotStore._wanted,
                "for manifest in self._kept for pack in manifest.packs()",
                "for pack in self._kept[0].packs()",
            ),
        ),
        "rot",
    ),
    Bug(
        "a segment recycled that the older snapshot needs",
        "segments are given back that the newest snapshot covers",
        (
            Change(
                Housekeeping.reclaim, "older = self._store.older_position()", "older = self._store.position()"
            ),
        ),
        "rot",
    ),
)

CONTENT: Final = (
    Bug(
        "snapshot in the middle of a turn",
        "the state is exported before the turn that made it is written, under the turn before",
        (
            Change(
                Engine._finish_turn,
                "self._journal.commit()",
                "self._housekeeping.step(self._broker, self._now_us())\nself._journal.commit()",
            ),
        ),
        "simulation",
    ),
    Bug(
        "acknowledged rows do not make their part dirty",
        "a snapshot keeps the part as it was before, with the rows ready",
        (
            Change(
                apply._acknowledged,
                "touch(state, what.destination, rows.partition, offsets.min(), offsets.max() + 1)",
                "pass",
            ),
        ),
        "simulation",
    ),
    Bug(
        "plans do not make their consumer's part dirty",
        "a snapshot keeps a consumer as it was before its last plans",
        (Change(touching.consumer_of, 'state.dirty.add(("consumers", what.destination))', "pass"),),
        "simulation",
    ),
    Bug(
        "an epoch does not make its part dirty",
        "a snapshot may hold an older epoch than the one that was given last",
        (Change(apply._epoch_taken, 'state.dirty.add(("broker",))', "pass"),),
        "simulation",
    ),
    Bug(
        "no room for a snapshot, and what it held is forgotten",
        "what changed before a snapshot that found the disk full is in none of those that follow",
        (Change(Housekeeping._complete, "broker.state.dirty |= writing.dirty", "pass"),),
        "simulation",
        is_rare=True,
    ),
    Bug(
        "a part is read up to its first piece",
        "what did not fit into the first piece of a part is gone after a start",
        (
            Change(
                snapshot.restore,
                "by_kind.setdefault(kind, []).append((key, body))",
                "parts.number_of(key) or by_kind.setdefault(kind, []).append((key, body))",
            ),
        ),
        "model",
    ),
    Bug(
        "old pieces of a part stay",
        "of a part that changed only the first piece counts as changed",
        (Change(snapshot.take, "if is_unchanged(part_of(key))", "if is_unchanged(key)"),),
        "model",
    ),
    Bug(
        "audit not restored",
        "after a start from a snapshot nobody knows which sequences are taken",
        (Change(snapshot._restore_log, "audit_parts.restore(partition.audit, part)", "pass"),),
        "simulation",
    ),
    Bug(
        "after a start producers are forgotten in another order",
        "of all producers without a name those that sent last are forgotten first",
        (Change(AuditMemory.restore, "found.sort(key=lambda known: known[:3])", "found.reverse()"),),
        "model",
    ),
    Bug(
        "markers not in the snapshot",
        "after a start from a snapshot a commit that was done may be done again",
        (Change(owners.restore_markers, "for m in part.markers", "for m in ()"),),
        "simulation",
    ),
    Bug(
        "who committed is not in the snapshot",
        "after a start from a snapshot a batch of another query may be taken for one that was committed",
        (Change(owners.restore_markers, "m.query_id, m.time_us", '"", m.time_us'),),
        "model",
    ),
    Bug(
        "targets of writers' epochs not in the snapshot",
        "after a start from a snapshot an epoch of one target holds for all",
        (Change(owners.restore_queries, 'e.target if e.HasField("target") else None', "None"),),
        "model",
    ),
    Bug(
        "targets of staged sets not in the snapshot",
        "after a start from a snapshot a set counts as one of a client that names no target",
        (
            Change(
                snapshot._restore_staged,
                'target = part.target if part.HasField("target") else None',
                "target = None",
            ),
        ),
        "model",
    ),
    Bug(
        "staged sets not in the snapshot",
        "after a start from a snapshot what was staged before is gone",
        (
            Change(
                snapshot._export,
                "return iter(()) if held is None else _staged_pieces(key, held)",
                "return iter(())",
            ),
        ),
        "simulation",
    ),
    Bug(
        "writers' epochs not in the snapshot",
        "after a start from a snapshot a zombie writer may stage and discard",
        (Change(owners.restore_queries, "for e in known.epochs", "for e in ()"),),
        "model",
    ),
    Bug(
        "fenced batches not in the snapshot",
        "after a start from a snapshot a batch whose input went to others may be committed",
        (Change(owners.restore_queries, 'if known.HasField("fenced_through"):', "if False:"),),
        "model",
    ),
    Bug(
        "counts lost at a restart",
        "after a start from a snapshot rows that failed count as never tried",
        (
            Change(
                snapshot._restore_rows,
                "counts.restore(known.bit, BitMap64.deserialize(known.offsets))",
                "pass",
            ),
        ),
        "model",
    ),
    Bug(
        "one of two counts lost in a snapshot",
        "after a start from a snapshot rows that failed were only handed out",
        (Change(snapshot._restore_rows, "backlog.failed if known.failed else", ""),),
        "model",
    ),
    Bug(
        "rows in a connected consumer's hands are not in the snapshot",
        "what is held while a snapshot is taken is gone when it is needed",
        (Change(Subscription.holders, "for session in self.sessions.values():", "for session in ():"),),
        "simulation",
    ),
    Bug(
        "a plan's readers are not in the snapshot",
        "after a start from a snapshot a plan that was read counts as unread, and is cut anew",
        (
            Change(
                consumer_parts._restore_plan,
                "plan.opened_by_run, plan.read_by_run = kept.opened_by_run, kept.read_by_run",
                "pass",
            ),
        ),
        "simulation",
    ),
    Bug(
        "a row lost at a chunk's end",
        "the last offset of each part of the lanes is in no snapshot",
        (
            Change(
                snapshot._rows_pieces,
                "window = range_bitmap(low, high)",
                "window = range_bitmap(low, high - 1)",
            ),
        ),
        "model",
    ),
    Bug(
        "moved frames forget which rows are left",
        "after a start from a snapshot a frame whose survivors were moved counts as whole",
        (
            Change(
                snapshot._restore_rows, "{f.base: BitMap64.deserialize(f.offsets) for f in part.sparse}", "{}"
            ),
        ),
        "simulation",
        is_rare=True,
    ),
)

SPACE: Final = (
    Bug(
        "a segment recycled while pinned",
        "a view that is being read does not keep its segments",
        (
            Change(
                retention.reclaimable,
                "if segment not in live and segment not in state.pins",
                "if segment not in live",
            ),
        ),
        "simulation",
        is_rare=True,
    ),
    Bug(
        "a segment with staged rows is recycled",
        "only frames of the log count as live",
        (Change(retention.live_segments, "for held in state.staged.values()", "for held in ()"),),
        "model",
        is_rare=True,
    ),
    Bug(
        "facets of stored rows are not read at a restart",
        "rows of several priorities have the default one after a restart",
        (Change(facets.stored_facets, "return facets_of(described, batch)", "return DEFAULT"),),
        "model",
    ),
    Bug(
        "what is kept for a checkpoint is forgotten at a restart",
        "rows of the last acknowledged batch may be freed after a start from a snapshot",
        (Change(Backlog.restore_plan, "self.kept = _union(self.kept, offsets)", "pass"),),
        "model",
    ),
    Bug(
        "the cleaner drops what plans hold",
        "only what is ready counts as a survivor",
        (
            Change(
                Backlog.plan,
                "self.ready.remove(selection.lanes)",
                "self.ready.remove(selection.lanes)\n"
                "self.unacknowledged = self.unacknowledged - selection.offsets()",
            ),
        ),
        "simulation",
    ),
    Bug(
        "the cleaner drops what connected consumers hold",
        "rows in a session's hands do not count as survivors",
        (
            Change(
                Backlog.live,
                "(self.unacknowledged & window)",
                "(self.ready.selection().offsets() & window)",
            ),
        ),
        "simulation",
    ),
    Bug(
        "the floor forgets what connected consumers hold",
        "frames of rows in a session's hands are trimmed away",
        (
            Change(
                Backlog.floor,
                "held = (self.unacknowledged, self.kept)",
                "held = (self.ready.selection().offsets(), self.kept)",
            ),
        ),
        "simulation",
    ),
    Bug(
        "a cleaned segment is given back before its survivors are synced",
        "the move is in the turn in hand while its source is overwritten",
        (
            Change(
                Cleaner.step, "self._journal.commit()\nreturn self._work is None", "return self._work is None"
            ),
        ),
        "simulation",
    ),
)
