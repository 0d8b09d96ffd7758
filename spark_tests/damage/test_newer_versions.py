"""What a newer version wrote is no damage: a start, `mq verify` and `mq repair` refuse it by name and change
nothing.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

import numpy as np
import pytest

from mq_broker.core.commands import Settings
from mq_broker.core.model.log import FRAME
from mq_broker.engine.opening import open_engine, recover
from mq_broker.journal import frames
from mq_broker.journal.directory import FORMAT_VERSION, DataDirectory, Identity, _checksum
from mq_broker.journal.packs import PackWriter, manifest_name
from mq_broker.journal.settings import TINY
from mq_broker.journal.snapshots import SnapshotStore
from mq_broker.repair.directory import repair_directory, verify_directory
from mq_wire.errors import DataDirectoryUnusable
from mq_wire.store.v1 import store_pb2 as store
from spark_tests.damage.small import SETTINGS, small
from spark_tests.support.files import contents
from spark_tests.support.worlds.commands import records_of
from spark_tests.support.worlds.disks import JOURNAL
from spark_tests.support.worlds.lists import CLUSTER

Change = Callable[[str, bytes], bytes]

#: A field of a number that no message has, with the value 1.
NEWER: Final = b"\x98\x06\x01"
FIELD: Final = "field 99"
WORDS: Final = "which this version does not know: start the newer mq broker that wrote it"
RECORDS, COLUMNS, _ = records_of([(b"row", 4)])


@pytest.fixture
def data(tmp_path: pathlib.Path) -> pathlib.Path:
    """A directory with everything, as this version writes it."""
    folder = tmp_path / "data"
    for name, files in small().directory._asdict().items():
        (folder / name).mkdir(parents=True)
        for file, content in files.items():
            (folder / name / file).write_bytes(content)
    identity = Identity(UUID(bytes=CLUSTER), JOURNAL, created=True)
    for name in ("identity", "identity.copy"):
        (folder / name).write_bytes(identity.encode())
    return folder


def start(data: pathlib.Path) -> None:
    with DataDirectory.open(data) as directory:
        open_engine(directory, SETTINGS, TINY)


def is_refused(data: pathlib.Path, what: str) -> None:
    """Whoever opens the directory says what is in it, and leaves it alone."""
    before = contents(data)
    for opened in (start, verify_directory, repair_directory):
        with pytest.raises(DataDirectoryUnusable) as refused:
            opened(data)
        assert what in str(refused.value), refused.value
        assert "start the " in str(refused.value), refused.value
        assert contents(data) == before, f"{opened.__name__} changed it"


# ---- entries


def write_entry(data: pathlib.Path, header: bytes, body: Any = None) -> None:
    """Adds an entry to the journal, and one that everybody knows behind it."""
    with DataDirectory.open(data) as directory:
        _, journal, _ = recover(
            directory.journal_disk, directory.snapshot_disk, CLUSTER, JOURNAL, SETTINGS, TINY, created=True
        )
        journal.add(header, body)
        journal.add(store.Entry(epoch_taken={"epoch": 10_000}).SerializeToString())
        journal.commit()
        journal.close()


def entry(number: int, content: bytes) -> bytes:
    """An entry whose field of this number has this content."""
    tag = number << 3 | 2
    tags = bytes([tag]) if tag < 128 else bytes([tag & 127 | 128, tag >> 7])
    assert len(content) < 128
    return store.Entry(time_us=1).SerializeToString() + tags + bytes([len(content)]) + content


def published(**records: int) -> bytes:
    """Rows of a queue, as an entry describes them."""
    what = {"rows": 1, "columns": COLUMNS, **records}
    return store.Entry(
        published={"destination": 1, "partition": 0, "records": what, "producer_id": "c" * 32}
    ).SerializeToString()


ENTRIES: Final[dict[str, tuple[bytes, bool, str]]] = {
    "another kind": (entry(99, b"new"), False, "an entry with field 99"),
    "nothing": (store.Entry(time_us=1).SerializeToString(), False, "an entry without content"),
    "a field beside": (store.Entry(epoch_taken={"epoch": 9999}).SerializeToString() + NEWER, False, FIELD),
    "a field within": (
        entry(10, store.Acknowledged(destination=1).SerializeToString() + NEWER),
        False,
        f"{FIELD} in 'acknowledged'",
    ),
    "a field far within": (
        entry(10, b"\x08\x01" + b"\x12\x05\x08\x00" + NEWER),
        False,
        f"{FIELD} in 'acknowledged.rows'",
    ),
    "a form": (b"\xff\xff\xff", False, "an entry in another form"),
    "a subscription": (
        store.Entry(acknowledged={"destination": 1, "subscription": 7}).SerializeToString(),
        False,
        "'acknowledged' of subscription 7",
    ),
    "a schema": (published(schema_id=3), True, "'published' with records of schema 3"),
    "columns": (published(columns=1 << 20 | 2), True, "records of columns 0x100002"),
    "priorities": (published(priority_plus_one=42), True, "records of priority 41"),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry(name: str, data: pathlib.Path) -> None:
    header, has_rows, what = ENTRIES[name]
    write_entry(data, header, RECORDS if has_rows else None)
    is_refused(data, what)


# ---- parts of snapshots


def write_snapshot(data: pathlib.Path, change: Callable[[dict[str, bytes]], None]) -> None:
    """Writes the newest snapshot again with other parts."""
    with DataDirectory.open(data) as directory:
        kept = SnapshotStore(directory.snapshot_disk, JOURNAL)
        loaded = kept.load()
        assert loaded is not None
        found = {key: bytes(body) for key, body in loaded[1]}
        change(found)
        kept.write(loaded[0], found.items())


def changed(key: str, change: Callable[[bytes], bytes]) -> Callable[[dict[str, bytes]], None]:
    """Changes the first part whose key begins with `key`."""

    def apply(found: dict[str, bytes]) -> None:
        name = min(known for known in found if known.startswith(key))
        found[name] = change(found[name])

    return apply


def rows(**what: Any) -> Callable[[bytes], bytes]:
    """Adds to a part of rows."""
    return lambda body: body + store.RowsPart(**what).SerializeToString()


def frames_as(columns: int) -> bytes:
    frame = np.zeros(1, FRAME)
    frame["columns"] = columns
    return frame.tobytes()


def longer(body: bytes) -> bytes:
    """Frames with one column more, each."""
    part = store.RowsPart.FromString(body)
    count = len(part.frames) // FRAME.itemsize
    part.frames = b"".join(
        part.frames[at * FRAME.itemsize : (at + 1) * FRAME.itemsize] + b"more" for at in range(count)
    )
    part.frame_bytes = FRAME.itemsize + 4
    return part.SerializeToString()


def shorter(body: bytes) -> bytes:
    part = store.RowsPart.FromString(body)
    part.frame_bytes = FRAME.itemsize - 8
    return part.SerializeToString()


def half(body: bytes) -> bytes:
    part = store.RowsPart.FromString(body)
    part.frames = part.frames[:-3]
    return part.SerializeToString()


def unsized(body: bytes) -> bytes:
    """As format 1 had frames, with one that is longer."""
    part = store.RowsPart.FromString(body)
    part.frames, part.frame_bytes = bytes(64 + 4), 0
    return part.SerializeToString()


def longer_ranges(body: bytes) -> bytes:
    """Ranges of audits with one number more, each."""
    part = store.LogPart.FromString(body)
    part.audit_tables[0].range_base.append(1)
    return part.SerializeToString()


def within(kind: Any, path: str) -> Callable[[bytes], bytes]:
    """Adds a field that is not known to the first message at a path."""

    def change(body: bytes) -> bytes:
        part = kind.FromString(body)
        inner = part
        for name in path.split("."):
            inner = getattr(inner, name)
            if not hasattr(inner, "MergeFromString"):
                inner = inner[0]
        inner.MergeFromString(NEWER)
        return bytes(part.SerializeToString())

    return change


PARTS: Final[dict[str, tuple[Callable[[dict[str, bytes]], None], str]]] = {
    "another kind": (lambda found: found.update({"topics/1": b"", "broker": b"?"}), "parts 'topics/1'"),
    "many": (lambda found: found.update({f"topics/{at}": b"" for at in range(9)}), "and 4 more"),
    "another key": (lambda found: found.update({"rows/1/0/0/7": b""}), "parts 'rows/1/0/0/7'"),
    "a form": (changed("broker", lambda body: b"\xff\xff\xff"), "part 'broker' in another form"),
    "a field": (changed("broker", lambda body: body + NEWER), f"part 'broker' with {FIELD}"),
    "a field of a piece": (lambda found: found.update({"broker+1": NEWER}), f"part 'broker+1' with {FIELD}"),
    "a field of a destination": (
        changed("broker", within(store.BrokerPart, "destinations.created")),
        f"{FIELD} in 'destinations.created'",
    ),
    "a field of a query": (
        changed("queries/", within(store.QueriesPart, "queries")),
        f"{FIELD} in 'queries'",
    ),
    "a field of a marker": (
        changed("markers/", within(store.MarkersPart, "markers")),
        f"{FIELD} in 'markers'",
    ),
    "a field of an audit": (
        changed("log/", within(store.LogPart, "audit_tables")),
        f"{FIELD} in 'audit_tables'",
    ),
    "longer ranges of audits": (changed("log/", longer_ranges), "ranges of audits in"),
    "a field of a plan": (
        changed("consumers/", within(store.ConsumersPart, "consumers.plans.planned.assignments.lanes")),
        f"{FIELD} in 'consumers.plans.planned.assignments.lanes'",
    ),
    "a field of a set": (
        changed("staged/", within(store.StagedPart, "frames.staged.records")),
        f"{FIELD} in 'frames.staged.records'",
    ),
    "a subscription of rows": (
        changed("rows/", rows(ready=[{"priority": 4, "subscription": 3}])),
        "of subscription 3",
    ),
    "a subscription of counts": (
        changed("rows/", rows(count_bits=[{"bit": 0, "subscription": 4}])),
        "of subscription 4",
    ),
    "a subscription of a consumer": (
        changed(
            "consumers/",
            lambda body: store.ConsumersPart(consumers=[{"subscription": 5}]).SerializeToString(),
        ),
        "of subscription 5",
    ),
    "a subscription of an end": (
        changed(
            "consumers/", lambda body: store.ConsumersPart(ended=[{"subscription": 6}]).SerializeToString()
        ),
        "of subscription 6",
    ),
    "a schema": (
        changed(
            "staged/",
            lambda body: store.StagedPart(
                frames=[{"staged": {"records": {"schema_id": 8}}}]
            ).SerializeToString(),
        ),
        "records of schema 8",
    ),
    "columns": (
        changed("rows/", lambda body: rows(frames=frames_as(1 << 20), frame_bytes=FRAME.itemsize)(b"")),
        "columns 0x100000",
    ),
    "longer frames": (changed("rows/", longer), f"frames with {FRAME.itemsize + 4} bytes each"),
    "shorter frames": (changed("rows/", shorter), f"frames with {FRAME.itemsize - 8} bytes each"),
    "half a frame": (changed("rows/", half), f"for frames of {FRAME.itemsize} each"),
    "longer frames without a size": (changed("rows/", unsized), "of 68 bytes, for frames of 64 each"),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_a_snapshot(name: str, data: pathlib.Path) -> None:
    change, what = PARTS[name]
    write_snapshot(data, change)
    is_refused(data, what)


# ---- tables of contents and identities


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda content: content | {"codec": "zstd"}, "(codec)"),
        (lambda content: content | {"position": content["position"] | {"epoch": 1}}, "epoch"),
        (lambda content: content | {"parts": [[*part, 1] for part in content["parts"]]}, "arguments"),
        (lambda content: {"parts": content["parts"]}, "position"),
        (lambda content: [content], "integer"),
    ],
)
def test_a_table_of_contents(change: Callable[[Any], Any], what: str, data: pathlib.Path) -> None:
    with DataDirectory.open(data) as directory:
        disk = directory.snapshot_disk
        kept = SnapshotStore(disk, JOURNAL)
        manifest = kept._kept[0]
        name = manifest_name(manifest.number)
        content = json.loads(_body(data / "snapshots" / name, manifest.number))
        disk.remove(name)
        file = disk.create(name)
        writer = PackWriter(
            file, frames.seed_of(JOURNAL), manifest.number, manifest.position, frames.FrameKind.MANIFEST
        )
        writer.add("", json.dumps(change(content)).encode())
        writer.flush()
        file.sync()
        file.close()
    is_refused(data, what)


def _body(path: pathlib.Path, number: int) -> bytes:
    view = memoryview(path.read_bytes())
    frame = frames.decode(view, number, 0, frames.seed_of(JOURNAL))
    assert isinstance(frame, frames.Frame)
    return bytes(view[frame.body_position : frame.body_position + frame.body_size])


@pytest.mark.parametrize("name", ["identity", "identity.copy"])
@pytest.mark.parametrize(
    ("more", "what"), [({"format": FORMAT_VERSION + 1}, "format"), ({"features": ["topics"]}, "features")]
)
def test_an_identity(name: str, more: dict[str, Any], what: str, data: pathlib.Path) -> None:
    content = json.loads((data / name).read_text())
    del content["checksum"]
    content |= more
    (data / name).write_text(json.dumps(content | {"checksum": _checksum(content)}))
    is_refused(data, what)


@pytest.mark.parametrize("lost", ["identity", "identity.copy"])
def test_a_newer_format_whose_other_file_is_lost(lost: str, data: pathlib.Path) -> None:
    """The one that is left says enough: nobody takes it for damage."""
    newer = replace(Identity(UUID(bytes=CLUSTER), JOURNAL, created=True), format=FORMAT_VERSION + 1)
    for name in ("identity", "identity.copy"):
        (data / name).write_bytes(newer.encode())
    (data / lost).unlink()
    before = contents(data)
    for opened in (verify_directory, repair_directory):
        with pytest.raises(DataDirectoryUnusable, match="format"):
            opened(data)
    with suppress(DataDirectoryUnusable):
        start(data)
        raise AssertionError("it started")
    assert contents(data) == before


def test_what_this_version_writes_is_known(data: pathlib.Path) -> None:
    """Nothing is refused where nothing is newer."""
    assert verify_directory(data).findings == []
    with DataDirectory.open(data) as directory:
        recover(
            directory.journal_disk, directory.snapshot_disk, CLUSTER, JOURNAL, Settings(), TINY, created=True
        )
