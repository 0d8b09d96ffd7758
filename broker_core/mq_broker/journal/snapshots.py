"""Snapshots: the state at one synced turn, in parts, so that only what has changed is written.

    pack-<n>.mqk        parts that were written by snapshot n: frames of kind PART, the header is the key, the
    body the part manifest-<n>.mqm    one frame of kind MANIFEST: its body (JSON) names the turn and, for each
    key, pack, position, size and CRC

Both are written under `<name>.new`, synced and renamed, the pack before the manifest. In these frames the
segment is the number of the file and turn and generation are those of the snapshot, so a file under another's
name does not read.

The two newest manifests are kept, and no pack serves both: what is damaged in one file never spoils both. So
an unchanged part lies in either's packs, and a snapshot takes over the places of the one before the last
where the part has not changed since, else a copy. A pack lives while a manifest names it; one of which less
than half is live is written anew, and so is one that is old.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Final
from uuid import UUID

from mq_broker.journal import frames
from mq_broker.journal.disk import FULL, Disk, DiskFile, read_in, remedy_of, why_full
from mq_broker.journal.frames import ALIGNMENT, ZEROS, Frame, FrameKind, Place
from mq_broker.journal.recovery import JournalPosition
from mq_wire.errors import InternalError, JournalDamaged, StorageFailed, StoreFull

#: After so many snapshots a pack is written anew even though nothing in it has changed.
PACK_AGE_MAX: Final = 64
#: The largest part that is written: far less than any reader takes (parsers end at 2 GiB, a frame at 4 GiB).
PART_BYTES_MAX: Final = 64 << 20
#: Buffers of this size together go to the disk in one write.
_WRITE_BYTES: Final = 1 << 20
#: What a part takes in the manifest, about.
_ROW_BYTES: Final = 64


def manifest_name(number: int) -> str:
    """File name of the manifest of snapshot `number`."""
    return f"manifest-{number:010d}.mqm"


def pack_name(number: int) -> str:
    """File name of the pack of snapshot `number`."""
    return f"pack-{number:010d}.mqk"


@dataclass(frozen=True, slots=True)
class Manifest:
    """A snapshot's table of contents: where each part lies. `Place.segment` is the number of the pack."""

    number: int
    position: JournalPosition
    parts: dict[str, Place]

    def packs(self) -> set[int]:
        """Returns the numbers of the packs it needs."""
        return {place.segment for place in self.parts.values()}


class SnapshotStore:
    """The snapshots of one broker. One thread at a time.

    Args:
        disk: folder of the snapshots alone.
        uuid: of the journal; seeds the checksums.
        any_state: whether none of the snapshots need be whole: a repair writes new ones.

    Raises:
        JournalDamaged: there are snapshots, and none of them is whole.
    """

    def __init__(self, disk: Disk, uuid: UUID, *, any_state: bool = False) -> None:
        self._disk = disk
        self._seed = frames.seed_of(uuid)
        self._kept: list[Manifest] = []
        #: Manifests that did not read, with the reason; they are removed with the next snapshot.
        self.damaged: list[str] = []
        self._last_number = 0
        #: Keys whose parts are the same in both kept snapshots; after a start that is not known, so all is
        #: copied once.
        self._same: set[str] = set()
        self._any_state = any_state
        self._find()

    def _find(self) -> None:
        """Takes the two newest snapshots that are whole, each part of them checked.

        Also of the older one: what it needs of the journal is all that is kept. A manifest without its pack
            may have come back in a crash.
        """
        for name in self._disk.list_names():
            kind, _, rest = name.partition("-")
            if kind in ("manifest", "pack") and rest[:10].isdecimal():
                self._last_number = max(self._last_number, int(rest[:10]))
        for number in self._numbers("manifest-", ".mqm")[::-1]:
            try:
                manifest = self._read_manifest(number)
                if len(self._kept) < 2:
                    self._check_parts(manifest)
            except JournalDamaged as error:
                self.damaged.append(str(error))
                continue
            self._kept.append(manifest)
        del self._kept[2:]
        if self.damaged and not self._kept and not self._any_state:
            raise JournalDamaged(
                f"no snapshot is whole: {'; '.join(self.damaged)}: `mq verify` shows what it costs, `mq "
                f"repair` goes on with what is left, "
                "or restore the data directory from a copy; nothing was changed"
            )

    def load(self) -> tuple[JournalPosition, Iterator[tuple[str, bytes]]] | None:
        """Returns the newest whole snapshot: its position and its parts (key, bytes); None when there was
        never one.
        """
        if not self._kept:
            return None
        manifest = self._kept[0]
        return manifest.position, self._parts(manifest, manifest.parts)

    def position(self) -> JournalPosition | None:
        """Returns the position that the newest snapshot covers."""
        return self._kept[0].position if self._kept else None

    def older_position(self) -> JournalPosition | None:
        """Returns the position that the older kept snapshot covers; None while there are fewer than two.

        Recovery may have to begin there: only segments before its segment may be reclaimed.
        """
        return self._kept[1].position if len(self._kept) > 1 else None

    def sizes(self) -> tuple[int, int]:
        """Returns about how many bytes all of the newest snapshot takes by itself, and how many both that are
        kept take now.
        """
        parts = self._kept[0].parts if self._kept else {}
        whole = sum(
            frames.frame_bytes(len(key.encode()), place.size) + _ROW_BYTES for key, place in parts.items()
        )
        return whole, sum(self._size_of(name) for name in self._wanted())

    def _wanted(self) -> set[str]:
        names = {manifest_name(manifest.number) for manifest in self._kept}
        return names | {pack_name(pack) for manifest in self._kept for pack in manifest.packs()}

    def _size_of(self, name: str) -> int:
        try:
            file = self._disk.open(name)
            try:
                return file.size()
            finally:
                file.close()
        except OSError as error:
            raise StorageFailed(f"{name} could not be opened: {error}: {remedy_of(error)}") from error

    def write(
        self, position: JournalPosition, parts: Iterable[tuple[str, bytes]], keep: Iterable[str] = ()
    ) -> None:
        """Writes a snapshot; afterwards it is the newest. What fails leaves the snapshots as they were.

        Args:
            position: behind a turn that is committed; the state is that of this turn.
            parts: key and bytes of each part that is new or changed; consumed once, written as it comes.
            keep: keys of the newest snapshot that are unchanged. What is in neither is forgotten.

        Raises:
            StoreFull: no room.
            StorageFailed: a write or sync failed.
            JournalDamaged: an unchanged part that had to be copied is rotten: write all parts anew.
            InternalError: a key twice, one to keep that the newest snapshot does not have, or a part of more
                than `PART_BYTES_MAX`.
        """
        number = self._last_number + 1
        self._last_number = number
        if not self.damaged:
            self._sweep()  # what an attempt left that broke off must not stand in the way
        try:
            kept = self._kept_parts(keep)
            manifest = self._write_pack(number, position, parts, kept)
            self._write_manifest(manifest)
        except OSError as error:
            # Behind a manifest with its name stands a sync alone, and a failed one is final: the next start
            # finds either state, each whole.
            if error.errno in FULL and manifest_name(number) not in self._disk.list_names():
                self._remove_aside(number)
                reason = why_full(error, self._disk)
                least = (
                    f"it needs more than the {self._disk.free_bytes()} bytes that are free: consume "
                    f"and acknowledge, or add space"
                )
                raise StoreFull(f"snapshot {number} could not be written: {reason or least}") from error
            raise StorageFailed(
                f"snapshot {number} of turn {position.turn} could not be written: {error}: {remedy_of(error)}"
            ) from error
        self._kept = [manifest, *self._kept[:1]]
        self._same = set(kept)
        self.damaged.clear()
        self._sweep()

    def _kept_parts(self, keep: Iterable[str]) -> dict[str, Place]:
        newest = self._kept[0].parts if self._kept else {}
        try:
            return {key: newest[key] for key in keep}
        except KeyError as error:
            raise InternalError(
                f"part {error} is to be kept, and the newest snapshot does not have it: write it"
            ) from None

    def _write_pack(
        self,
        number: int,
        position: JournalPosition,
        parts: Iterable[tuple[str, bytes]],
        kept: dict[str, Place],
    ) -> Manifest:
        """Writes changed parts into a new pack, and unchanged ones that only the newest snapshot has, or in
        packs mostly dead or old.
        """
        older = self._kept[1].parts if len(self._kept) > 1 else {}
        places = {key: older[key] for key in kept if key in self._same and key in older}
        worn = self._worn_packs(number, places)
        places = {key: place for key, place in places.items() if place.segment not in worn}
        copied = {key: place for key, place in kept.items() if key not in places}
        aside = pack_name(number) + ".new"
        file = self._disk.create(aside)
        try:
            writer = _PackWriter(file, self._seed, number, position)
            for key, body in chain(parts, self._copies(copied)):
                if key in places:
                    raise InternalError(
                        f"part {key!r} of snapshot {number} is given twice: written or kept, not both"
                    )
                if len(body) > PART_BYTES_MAX:
                    raise InternalError(
                        f"part {key!r} of snapshot {number} has {len(body)} bytes, the limit is "
                        f"{PART_BYTES_MAX}: it must be cut into "
                        "pieces; nothing was written"
                    )
                places[key] = writer.add(key, body)
            writer.flush()
            file.sync()
        finally:
            file.close()
        if writer.position:
            self._disk.rename(aside, pack_name(number))
            self._disk.sync_directory()
        else:
            self._disk.remove(aside)
        return Manifest(number, position, places)

    def _worn_packs(self, number: int, kept: dict[str, Place]) -> set[int]:
        live: dict[int, int] = {}
        for key, place in kept.items():
            live[place.segment] = live.get(place.segment, 0) + frames.frame_bytes(
                len(key.encode()), place.size
            )
        worn = set()
        for pack, live_bytes in live.items():
            if 2 * live_bytes < self._size_of(pack_name(pack)) or number - pack > PACK_AGE_MAX:
                worn.add(pack)
        return worn

    def _copies(self, copied: dict[str, Place]) -> Iterator[tuple[str, bytes]]:
        return self._parts(self._kept[0], copied) if copied else iter(())

    def _write_manifest(self, manifest: Manifest) -> None:
        rows = [
            [key, place.segment, place.position, place.size, place.crc]
            for key, place in sorted(manifest.parts.items())
        ]
        body = json.dumps(
            {"parts": rows, "position": asdict(manifest.position)}, separators=(",", ":"), ensure_ascii=True
        ).encode()
        name = manifest_name(manifest.number)
        file = self._disk.create(name + ".new")
        try:
            writer = _PackWriter(file, self._seed, manifest.number, manifest.position, FrameKind.MANIFEST)
            writer.add("", body)
            writer.flush()
            file.sync()
        finally:
            file.close()
        self._disk.rename(name + ".new", name)
        self._disk.sync_directory()

    def _read_manifest(self, number: int) -> Manifest:
        view = self._map(manifest_name(number))
        _read_in(view, 0, len(view), manifest_name(number))
        frame = frames.decode(view, number, 0, self._seed)
        if not isinstance(frame, Frame) or frame.kind is not FrameKind.MANIFEST:
            why = "not a manifest" if isinstance(frame, Frame) else frame.value
            raise JournalDamaged(f"{manifest_name(number)}, position 0: {why}")
        body = frames.body_of(view, frame)
        if body is None:
            raise JournalDamaged(
                f"{manifest_name(number)}, position {frame.body_position}: the table of contents is damaged"
            )
        content = json.loads(bytes(body))
        return Manifest(
            number,
            JournalPosition(**content["position"]),
            {key: Place(*place) for key, *place in content["parts"]},
        )

    def _check_parts(self, manifest: Manifest) -> None:
        for _ in self._parts(manifest, manifest.parts):
            pass

    def _parts(self, manifest: Manifest, places: dict[str, Place]) -> Iterator[tuple[str, bytes]]:
        """Yields parts with their checksums checked, pack by pack."""
        views: dict[int, memoryview] = {}
        for key, place in sorted(places.items(), key=lambda part: (part[1].segment, part[1].position)):
            name = pack_name(place.segment)
            if place.segment not in views:
                views = {place.segment: self._map(name)}
            view = views[place.segment]
            head = frames.frame_bytes(len(key.encode()), None)
            _read_in(view, place.position - head, head + place.size, name)
            frame = frames.decode(view, place.segment, place.position - head, self._seed)
            whole = (
                isinstance(frame, Frame)
                and frame.kind is FrameKind.PART
                and frame.header == key.encode()
                and frame.place() == place
            )
            body = frames.body_of(view, frame) if isinstance(frame, Frame) and whole else None
            if body is None:
                raise JournalDamaged(
                    f"{name}, position {place.position}: part {key!r} of snapshot {manifest.number} is "
                    f"damaged"
                )
            yield key, bytes(body)

    def _map(self, name: str) -> memoryview:
        try:
            file = self._disk.open(name)
        except FileNotFoundError:
            raise JournalDamaged(f"{name} is missing") from None
        try:
            if file.size() == 0:
                raise JournalDamaged(f"{name} is empty")
            return file.map()
        finally:
            file.close()

    def _numbers(self, prefix: str, suffix: str) -> list[int]:
        stems = [
            name.removeprefix(prefix).removesuffix(suffix)
            for name in self._disk.list_names()
            if name.startswith(prefix)
        ]
        return sorted(int(stem) for stem in stems if stem.isdecimal())

    def _sweep(self) -> None:
        """Removes what neither kept manifest names; names that come back after a crash are swept next
        time.
        """
        wanted = self._wanted()
        try:
            for name in self._disk.list_names():
                if name not in wanted and name.startswith(("pack-", "manifest-")):
                    self._disk.remove(name)
        except OSError as error:
            raise StorageFailed(
                f"old snapshot files could not be removed: {error}: {remedy_of(error)}"
            ) from error

    def _remove_aside(self, number: int) -> None:
        """Frees the room of a snapshot that has no manifest; where even that fails, the next sweep
        does it.
        """
        for name in self._disk.list_names():
            if name.endswith(".new") or name == pack_name(number):
                with contextlib.suppress(OSError):
                    self._disk.remove(name)


class _PackWriter:
    """Appends frames to a file, in writes of about a megabyte."""

    def __init__(
        self,
        file: DiskFile,
        seed: int,
        number: int,
        position: JournalPosition,
        kind: FrameKind = FrameKind.PART,
    ) -> None:
        self._file = file
        self._seed = seed
        self._number = number
        self._at = position
        self._kind = kind
        self._index = 0
        self._buffers: list[bytes | memoryview] = []
        self._written = 0
        self.position = 0

    def add(self, key: str, body: bytes) -> Place:
        crc = frames.crc_of(body)
        head, _ = frames.encode_head(
            self._seed, self._kind, key.encode(), len(body), crc,
            (self._number, self.position), (self._at.turn, self._at.generation, self._index),
        )  # fmt: skip
        place = Place(self._number, self.position + len(head), len(body), crc)
        self._buffers += (head, body, ZEROS[: -len(body) % ALIGNMENT])
        self._index += 1
        self.position = frames.align(place.position + len(body), ALIGNMENT)
        if self.position - self._written >= _WRITE_BYTES:
            self.flush()
        return place

    def flush(self) -> None:
        if self._buffers:
            self._file.write_at(self._buffers, self._written)
            self._buffers = []
            self._written = self.position


def _read_in(view: memoryview, start: int, size: int, name: str) -> None:
    try:
        read_in(view, start, size)
    except OSError as error:
        raise JournalDamaged(f"{name}, position {start}: {size} bytes: {error}") from error
