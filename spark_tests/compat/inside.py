"""The state that the current version recovers from a directory, in this process, as plain JSON with names for
everything.

Where the state is given another form, this is the place that says where its old content is now; the
expectations never change.
"""

from __future__ import annotations

import copy
import pathlib
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from pyroaring import BitMap64

from mq_broker.core.commands import Settings
from mq_broker.core.model.destination import Destination, Partition
from mq_broker.core.model.durable_consumer import Past, Plan
from mq_broker.core.model.query import Query
from mq_broker.core.model.staged import StagedSet
from mq_broker.core.model.state import State
from mq_broker.core.model.subscription import Backlog
from mq_broker.engine.opening import recover
from mq_broker.journal.directory import DataDirectory
from mq_broker.journal.journal import Journal
from mq_broker.journal.settings import JournalSettings
from mq_broker.journal.snapshots import SnapshotStore
from mq_wire.store.v1 import store_pb2 as store

SEGMENT_BYTES: Final = 32 << 20
SETTINGS: Final = JournalSettings(
    segment_bytes=SEGMENT_BYTES, pool_segments=2, spare_bytes=SEGMENT_BYTES // 2
)


def state_of(path: pathlib.Path) -> dict[str, Any]:
    """Recovers a data directory and returns what it holds."""
    return _recovered(path)[0]


def still_kept(expected: dict[str, Any]) -> dict[str, Any]:
    """Returns an expected state without what is not kept any more: which rows a plan had that were given
    back. Nobody ever asked for it.
    """
    kept = copy.deepcopy(expected)
    for destination in kept["destinations"].values():
        for consumer in destination["consumers"].values():
            for plan in consumer["plans"].values():
                if plan["returned"]:
                    plan["assignments"] = {}
    return kept


def entries_in(path: pathlib.Path) -> dict[str, int]:
    """Returns which entries lie behind the newest snapshot, and how many parts of which kind in it: what a
    recovery has to read.
    """
    return dict(sorted(_recovered(path)[1].items()))


def _recovered(path: pathlib.Path) -> tuple[dict[str, Any], Counter[str]]:
    met: Counter[str] = Counter()
    with DataDirectory.open(path) as directory:
        identity = directory.identity
        assert identity.created
        disks, settings = (directory.journal_disk, directory.snapshot_disk), Settings(default_partitions=2)
        met.update(_entries(directory))
        broker, journal, _ = recover(
            *disks, identity.cluster.bytes, identity.journal, settings, SETTINGS, created=True
        )
        try:
            return _state(broker.state), met
        finally:
            journal.close()


def _entries(directory: DataDirectory) -> Iterator[str]:
    """Yields the kind of each entry that is to be replayed, and of each part of the snapshot."""
    identity = directory.identity
    loaded = SnapshotStore(directory.snapshot_disk, identity.journal).load()
    for key, body in [] if loaded is None else loaded[1]:
        yield f"part {key.partition('/')[0]}"
        if key.startswith("rows/"):
            rows = store.RowsPart.FromString(bytes(body))
            if rows.sparse:
                yield "part rows, of moved frames"
            if rows.frames and not rows.frame_bytes:
                yield "part rows, of format 1"
        if key.startswith("log/") and store.LogPart.FromString(bytes(body)).quarantined:
            yield "part log, of damaged rows"
    journal, turns = Journal.recover(
        directory.journal_disk, SETTINGS, identity.journal, None if loaded is None else loaded[0]
    )
    for turn in turns:
        for header, _, _ in turn.entries:
            yield str(store.Entry.FromString(bytes(header)).WhichOneof("what"))
    journal.close()


def _state(state: State) -> dict[str, Any]:
    return {
        "cluster_id": state.cluster_id.hex(),
        "epoch": state.epoch,
        "next_destination": state.next_destination,
        "producers": dict(state.producers),
        "query_epochs": {
            query.query_id: query.epoch(None) for query in state.queries.values() if query.epochs
        },
        # Kept as one number per query since: no query of the expectations had more than one.
        "fenced_batches": sorted(
            [q.query_id, q.fenced_through] for q in state.queries.values() if q.fenced_through is not None
        ),
        "plans_cut": state.plans_cut,
        "queries": {query.query_id: _query(query) for query in state.queries.values()},
        "markers": {
            f"{owner} -> {target}": {
                "version": marker.version,
                "run_id": marker.run_id,
                "rows": marker.rows,
                "query_id": marker.query_id,
                "time_us": marker.time_us,
            }
            for (owner, target), marker in state.markers.items()
        },
        "staged": {token.hex(): _staged(state, held) for token, held in state.staged.items()},
        "destinations": {name: _destination(destination) for name, destination in state.by_name.items()},
    }


def _query(query: Query) -> dict[str, Any]:
    return {
        "reads": {str(batch): plans for batch, plans in query.reads.items()},
        "readers": {
            str(number): [reader.spark_run_id, reader.run, reader.incarnation.hex()]
            for number, reader in query.readers.items()
        },
        "epochs": {repr(target): epoch for target, epoch in query.epochs.items()},
        "fenced_through": query.fenced_through,
        "committed": query.committed,
    }


def _staged(state: State, held: StagedSet) -> dict[str, Any]:
    frames = []
    for frame in held.frames:
        entry = frame.entry
        priorities = (
            frame.facets.priority
            if isinstance(frame.facets.priority, int)
            else frame.facets.priority.tolist()
        )
        frames.append(
            {
                "destination": state.by_number[entry.destination].name,
                "partition": entry.partition,
                "first": entry.first_sequence,
                "rows": entry.records.rows,
                "columns": entry.records.columns,
                "crc": entry.records_crc,
                "priorities": priorities,
            }
        )
    about = {"epoch": held.epoch, "query_id": held.query_id, "batch_id": held.batch_id, "run_id": held.run_id}
    about["target"] = held.target
    return about | {"last_time_us": held.last_time_us, "rows": held.rows, "frames": frames}


def _destination(destination: Destination) -> dict[str, Any]:
    return {
        "number": destination.number,
        "id": destination.destination_id.hex(),
        "partitions": [
            _partition(partition, backlog)
            for partition, backlog in zip(destination.partitions, destination.queue.backlogs, strict=True)
        ],
        "ended": {
            incarnation.hex(): [successor.hex(), name]
            for incarnation, (successor, name, *_) in destination.queue.ended.items()
        },
        "ended_shared": sorted(
            incarnation.hex() for incarnation, ended in destination.queue.ended.items() if ended.shared
        ),
        "consumers": {
            incarnation.hex(): {
                "name": consumer.name,
                "run": consumer.run,
                "minted_by_run": consumer.minted_by_run,
                "minted_time_us": consumer.minted_time_us,
                "next_plan": consumer.next_plan,
                "next": _keys(consumer.next),
                # Boundaries before what is kept are known since.
                "floor": _keys(consumer.boundary(consumer.last_past)),
                "acknowledged_plan": consumer.acknowledged_plan,
                "plans": {str(plan.number): _plan(plan) for plan in consumer.plans.values()},
                "lowest_boundary": _keys(consumer.floor),
                "past": {str(past.number): _past(past) for past in consumer.past.values()},
            }
            for incarnation, consumer in destination.queue.consumers.items()
        },
    }


def _levels(bits: tuple[BitMap64, ...]) -> list[list[int]]:
    """As version 0.1.0 kept failed attempts: [k] = offsets with more than k."""
    counts = Counter(offset for bit, known in enumerate(bits) for offset in [*known] * (1 << bit))
    return [
        sorted(offset for offset in counts if counts[offset] > level)
        for level in range(max(counts.values(), default=0))
    ]


def _plan(plan: Plan) -> dict[str, Any]:
    assignments = {
        str(number): {
            "first": first,
            "lanes": {str(priority): [*offsets] for priority, offsets in selection.lanes},
        }
        for number, (first, selection) in plan.assignments.items()
    }
    return {
        "run": plan.run,
        "time_us": plan.time_us,
        "end": _keys(plan.end),
        "returned": plan.returned,
        "acknowledged": plan.acknowledged,
        "opened_by_run": plan.opened_by_run,
        "read_by_run": plan.read_by_run,
        "failed_attempts": plan.failed_attempts,
        "batches": [list(batch) for batch in sorted(plan.batches)],
        "assignments": assignments,
        "serial": plan.serial,
        "committed": plan.committed,
        "emptied": plan.emptied,
    }


def _past(past: Past) -> dict[str, Any]:
    about = {"serial": past.serial, "returned": past.returned, "used": past.used}
    return about | {"end": _keys(past.end), "numbers": _keys(past.numbers)}


def _partition(partition: Partition, backlog: Backlog) -> dict[str, Any]:
    index = partition.log.index()
    return {
        "next_offset": partition.log.next_offset,
        "duplicates": partition.duplicates,
        "ready": {
            str(priority): [*offsets] for priority, offsets in enumerate(backlog.ready.offsets) if offsets
        },
        "attempts": _levels(backlog.handed_out.bits),
        "quarantined": [*partition.quarantined],
        "frames": index.bases.tolist(),
        "frame_times_us": index.frames["time_us"].tolist(),
        "frame_columns": {
            name: index.frames[name].tolist()
            for name in ("span", "rows", "columns", "priority", "shift", "crc")
        },
        "frame_producers": [index.producers[number] for number in index.frames["producer"].tolist()],
        "sparse": {str(base): [*left] for base, left in index.sparse.items()},
        "producers": {
            name: {
                "epoch": mark.epoch,
                "next_sequence": mark.next_sequence,
                "rows": mark.rows,
                "last_offset": mark.last_offset,
                "ranges": [
                    [known.first, known.rows, known.crc, known.base, known.time_us] for known in mark.ranges
                ],
            }
            for name, mark in partition.audit.marks()
        },
    }


def _keys(positions: dict[int, int]) -> dict[str, int]:
    return {str(partition): number for partition, number in sorted(positions.items())}
