"""Snapshots: the state at one synced turn, in parts, so that only changed parts are written.

Each snapshot writes a pack and a manifest (`packs`), under `<name>.new`. Each file is synced and renamed, the
pack before the manifest.

The two newest snapshots are kept, and no pack belongs to both, so that no single damaged file spoils both. An
unchanged part is therefore in the packs of both. A new snapshot refers to the part in the packs of the
snapshot before the last one, if the part has not changed since then; otherwise it writes a copy. A pack is
kept while a manifest refers to it. The parts of a pack are copied to a new one when less than half of it is
live, or when it is old.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import chain
from typing import Final
from uuid import UUID

from mq_broker.journal import frames
from mq_broker.journal.disk import FULL, Disk, remedy_of, why_full
from mq_broker.journal.frames import BodyPlace, FrameKind
from mq_broker.journal.packs import Manifest, PackReader, PackWriter, manifest_name, pack_name
from mq_broker.journal.recovery import JournalPosition
from mq_wire.errors import InternalError, JournalDamaged, StorageFailed, StoreFull

#: After so many snapshots the parts of a pack are copied to a new one, even if they have not changed.
PACK_AGE_MAX: Final = 64
#: The largest part that is written, far below the limits of readers: 2 GiB for protobuf, 4 GiB for a frame.
PART_BYTES_MAX: Final = 64 << 20
#: Approximate size of a part's row in the manifest.
_ROW_BYTES: Final = 64


class SnapshotStore:
    """The snapshots of one broker. Only one thread may use it at a time.

    Args:
        disk: folder that only the snapshots use.
        uuid: of the journal; it seeds the checksums.
        any_state: do not fail if all snapshots are damaged. For a repair, which writes new ones.

    Raises:
        JournalDamaged: there are snapshots, and all of them are damaged.
    """

    def __init__(self, disk: Disk, uuid: UUID, *, any_state: bool = False) -> None:
        self._disk = disk
        self._seed = frames.seed_of(uuid)
        self._packs = PackReader(disk, uuid)
        self._kept: list[Manifest] = []
        #: Damaged snapshots, with the reasons. The next snapshot removes them.
        self.damaged: list[str] = []
        self._last_number = 0
        #: Keys whose parts are the same in both kept snapshots. This is not known after a start, so the first
        #: snapshot copies all parts.
        self._same: set[str] = set()
        self._any_state = any_state
        self._find()

    def _find(self) -> None:
        """Finds the two newest whole snapshots. All parts of both are checked.

        The older one is checked too, because the journal is kept from its position on. A crash may have
        brought back a manifest whose pack is gone.
        """
        for name in self._disk.list_names():
            kind, _, rest = name.partition("-")
            if kind in ("manifest", "pack") and rest[:10].isdecimal():
                self._last_number = max(self._last_number, int(rest[:10]))
        for number in self._numbers("manifest-", ".mqm")[::-1]:
            try:
                manifest = self._packs.manifest(number)
                if len(self._kept) < 2:
                    self._check_parts(manifest)
            except JournalDamaged as error:
                self.damaged.append(str(error))
                continue
            self._kept.append(manifest)
        del self._kept[2:]
        if self.damaged and not self._kept and not self._any_state:
            raise JournalDamaged(
                f"all snapshots are damaged: {'; '.join(self.damaged)}: `mq verify` shows what is lost, and "
                "`mq repair` keeps everything else; or restore the data directory from a copy; "
                "nothing was changed"
            )

    def load(self) -> tuple[JournalPosition, Iterator[tuple[str, bytes]]] | None:
        """Returns the newest whole snapshot: its position and its parts (key, bytes). None if there is
        none.
        """
        if not self._kept:
            return None
        manifest = self._kept[0]
        return manifest.position, self._packs.parts(manifest, manifest.parts)

    def position(self) -> JournalPosition | None:
        """Returns the position that the newest snapshot covers; None if there is none."""
        return self._kept[0].position if self._kept else None

    def older_position(self) -> JournalPosition | None:
        """Returns the position that the older kept snapshot covers; None if fewer than two are kept.

        Recovery may have to begin there, so only segments before that of the position may be reclaimed.
        """
        return self._kept[1].position if len(self._kept) > 1 else None

    def sizes(self) -> tuple[int, int]:
        """Returns the approximate size of the newest snapshot alone, and the size of all files of both kept
        snapshots, in bytes.
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
        """Writes a snapshot, which becomes the newest. If it fails, the kept snapshots stay as they were.

        Args:
            position: end of a committed turn; the parts are the state at this turn.
            parts: key and bytes of each new or changed part; read once, and written one after the other.
            keep: keys of unchanged parts of the newest snapshot. Parts in neither argument are dropped.

        Raises:
            StoreFull: no room.
            StorageFailed: a write or sync failed.
            JournalDamaged: an unchanged part that had to be copied is damaged: pass all parts in `parts`.
            InternalError: a key was given twice, a key to keep is not in the newest snapshot, or a part has
                more than `PART_BYTES_MAX` bytes.
        """
        number = self._last_number + 1
        self._last_number = number
        if not self.damaged:
            self._sweep()  # files of an interrupted attempt would be in the way
        try:
            kept = self._kept_parts(keep)
            manifest = self._write_pack(number, position, parts, kept)
            self._write_manifest(manifest)
        except OSError as error:
            # Once the manifest has its name, only a sync is left. A failed sync is final: the next start
            # finds the new snapshot or the one before, and both are whole.
            if error.errno in FULL and manifest_name(number) not in self._disk.list_names():
                self._remove_aside(number)
                reason = why_full(error, self._disk)
                least = (
                    f"it needs more than the {self._disk.free_bytes()} bytes that are free: "
                    "consume and acknowledge, or add space"
                )
                raise StoreFull(f"snapshot {number} could not be written: {reason or least}") from error
            raise StorageFailed(
                f"snapshot {number} of turn {position.turn} could not be written: {error}: {remedy_of(error)}"
            ) from error
        self._kept = [manifest, *self._kept[:1]]
        self._same = set(kept)
        self.damaged.clear()
        self._sweep()

    def _kept_parts(self, keep: Iterable[str]) -> dict[str, BodyPlace]:
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
        kept: dict[str, BodyPlace],
    ) -> Manifest:
        """Writes a new pack with the changed parts and copies of some unchanged ones: of parts that are only
        in packs of the newest snapshot, and of parts in packs that are mostly dead or old.
        """
        older = self._kept[1].parts if len(self._kept) > 1 else {}
        places = {key: older[key] for key in kept if key in self._same and key in older}
        worn = self._worn_packs(number, places)
        places = {key: place for key, place in places.items() if place.segment not in worn}
        copied = {key: place for key, place in kept.items() if key not in places}
        aside = pack_name(number) + ".new"
        file = self._disk.create(aside)
        try:
            writer = PackWriter(file, self._seed, number, position)
            for key, body in chain(parts, self._copies(copied)):
                if key in places:
                    raise InternalError(
                        f"part {key!r} of snapshot {number} is given twice: written or kept, not both"
                    )
                if len(body) > PART_BYTES_MAX:
                    raise InternalError(
                        f"part {key!r} of snapshot {number} has {len(body)} bytes, the limit is "
                        f"{PART_BYTES_MAX}: it must be cut into pieces; nothing was written"
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

    def _worn_packs(self, number: int, kept: dict[str, BodyPlace]) -> set[int]:
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

    def _copies(self, copied: dict[str, BodyPlace]) -> Iterator[tuple[str, bytes]]:
        return self._packs.parts(self._kept[0], copied) if copied else iter(())

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
            writer = PackWriter(file, self._seed, manifest.number, manifest.position, FrameKind.MANIFEST)
            writer.add("", body)
            writer.flush()
            file.sync()
        finally:
            file.close()
        self._disk.rename(name + ".new", name)
        self._disk.sync_directory()

    def _check_parts(self, manifest: Manifest) -> None:
        for _ in self._packs.parts(manifest, manifest.parts):
            pass

    def _numbers(self, prefix: str, suffix: str) -> list[int]:
        stems = [
            name.removeprefix(prefix).removesuffix(suffix)
            for name in self._disk.list_names()
            if name.startswith(prefix)
        ]
        return sorted(int(stem) for stem in stems if stem.isdecimal())

    def _sweep(self) -> None:
        """Removes files that no kept snapshot needs. Files that come back in a crash are removed the next
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
        """Removes the files of a snapshot without manifest. If that fails, the next sweep removes them."""
        for name in self._disk.list_names():
            if name.endswith(".new") or name == pack_name(number):
                with contextlib.suppress(OSError):
                    self._disk.remove(name)
