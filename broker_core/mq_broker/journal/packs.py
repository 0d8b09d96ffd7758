"""The files of a snapshot: packs with its parts, and a manifest that says where each part is.

pack-<n>.mqk        the parts that snapshot n wrote: frames of kind PART; header = key, body = part
manifest-<n>.mqm    one frame of kind MANIFEST; its body (JSON) has the position that the snapshot covers, and
                    pack, position, size and CRC of each part by key

In these frames the segment is the number of the file; turn and generation are those of the snapshot. So a
file under the name of another one is not accepted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from mq_broker.journal import frames
from mq_broker.journal.disk import Disk, DiskFile, read_in
from mq_broker.journal.frames import ALIGNMENT, ZEROS, BodyPlace, Frame, FrameKind
from mq_broker.journal.recovery import JournalPosition
from mq_wire.errors import DataDirectoryUnusable, JournalDamaged

#: Buffers are written together once they have this size.
_WRITE_BYTES: Final = 1 << 20


def manifest_name(number: int) -> str:
    """File name of the manifest of snapshot `number`."""
    return f"manifest-{number:010d}.mqm"


def pack_name(number: int) -> str:
    """File name of the pack of snapshot `number`."""
    return f"pack-{number:010d}.mqk"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The table of contents of a snapshot: the place of each part. `BodyPlace.segment` is the number of the
    pack.
    """

    number: int
    position: JournalPosition
    parts: dict[str, BodyPlace]

    def packs(self) -> set[int]:
        """Returns the numbers of the packs that hold its parts."""
        return {place.segment for place in self.parts.values()}


class PackWriter:
    """Appends frames to a pack or a manifest, in writes of about a megabyte.

    Args:
        file: an empty file.
        seed: of the header CRCs (`frames.seed_of`).
        number: of the snapshot.
        position: that the snapshot covers.
        kind: of the frames.

    Attributes:
        position: where the next frame goes.
    """

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

    def add(self, key: str, body: bytes) -> BodyPlace:
        """Adds a frame; returns the place of its body."""
        crc = frames.crc_of(body)
        head, _ = frames.encode_head(
            self._seed, self._kind, key.encode(), len(body), crc,
            (self._number, self.position), (self._at.turn, self._at.generation, self._index),
        )  # fmt: skip
        place = BodyPlace(self._number, self.position + len(head), len(body), crc)
        self._buffers += (head, body, ZEROS[: -len(body) % ALIGNMENT])
        self._index += 1
        self.position = frames.align(place.position + len(body), ALIGNMENT)
        if self.position - self._written >= _WRITE_BYTES:
            self.flush()
        return place

    def flush(self) -> None:
        """Writes the frames that are not written yet."""
        if self._buffers:
            self._file.write_at(self._buffers, self._written)
            self._buffers = []
            self._written = self.position


class PackReader:
    """Reads manifests and parts, with their checksums checked.

    Args:
        disk: folder of the snapshots.
        uuid: of the journal; it seeds the checksums.
    """

    def __init__(self, disk: Disk, uuid: UUID) -> None:
        self._disk = disk
        self._seed = frames.seed_of(uuid)

    def manifest(self, number: int) -> Manifest:
        """Returns the manifest of snapshot `number`.

        Raises:
            JournalDamaged: it is missing or damaged.
            DataDirectoryUnusable: a newer version wrote it.
        """
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
        try:
            position, parts = content.pop("position"), content.pop("parts")
            if not content:
                places = {key: BodyPlace(*place) for key, *place in parts}
                return Manifest(number, JournalPosition(**position), places)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            content = {str(error): None}
        raise DataDirectoryUnusable(
            f"{manifest_name(number)} has a table of contents that this version does not know "
            f"({', '.join(content)}): start the newer mq broker that wrote it; nothing was changed"
        )

    def parts(self, manifest: Manifest, places: dict[str, BodyPlace]) -> Iterator[tuple[str, bytes]]:
        """Yields (key, bytes) of the parts at these places, pack by pack.

        Raises:
            JournalDamaged: a part or its pack is missing or damaged.
        """
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
                    f"{name}, position {place.position}: "
                    f"part {key!r} of snapshot {manifest.number} is damaged"
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


def _read_in(view: memoryview, start: int, size: int, name: str) -> None:
    try:
        read_in(view, start, size)
    except OSError as error:
        raise JournalDamaged(f"{name}, position {start}: {size} bytes: {error}") from error
