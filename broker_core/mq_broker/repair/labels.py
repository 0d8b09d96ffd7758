"""Files under a wrong name: swapped, copied, or put there by hand. Their content shows the right name."""

from __future__ import annotations

from uuid import UUID

from mq_broker.journal import frames
from mq_broker.journal.disk import Disk
from mq_broker.journal.frames import Frame
from mq_broker.journal.packs import manifest_name, pack_name
from mq_broker.journal.segments import decode_header, segment_name
from mq_broker.repair.findings import Finding
from mq_broker.repair.salvage import Relabelled
from mq_wire.errors import DataDirectoryUnusable, JournalDamaged

_SEGMENT = 16


def relabel_segments(disk: Disk, uuid: UUID) -> tuple[Relabelled, list[Finding]]:
    """Returns the journal's folder with each segment under its own name, and findings for misplaced files."""
    claims = {}
    for name in disk.list_names():
        number = _number(name, "segment-", ".mqj")
        if number is not None and segment_name(number) == name:
            claims[name] = _segment_claims(disk, name, number, uuid)
    return _relabel(disk, claims, segment_name)


def relabel_snapshots(disk: Disk, uuid: UUID) -> tuple[Relabelled, list[Finding]]:
    """Returns the folder of the snapshots with each manifest and pack under its own name, and findings for
    misplaced files.
    """
    seed = frames.seed_of(uuid)
    names: dict[str, str | None] = {}
    findings = []
    for prefix, suffix, name_of in (("manifest-", ".mqm", manifest_name), ("pack-", ".mqk", pack_name)):
        claims = {}
        for name in disk.list_names():
            number = _number(name, prefix, suffix)
            if number is not None and name_of(number) == name:
                claims[name] = _frame_claims(disk, name, number, seed)
        shown, found = _relabel(disk, claims, name_of)
        names |= shown.names
        findings += found
    return Relabelled(disk, names), findings


def _number(name: str, prefix: str, suffix: str) -> int | None:
    stem = name.removeprefix(prefix).removesuffix(suffix)
    return int(stem) if name.startswith(prefix) and name.endswith(suffix) and stem.isdecimal() else None


def _segment_claims(disk: Disk, name: str, number: int, uuid: UUID) -> int | None:
    """Returns the number in the header of a segment, None if the header is damaged, and -1 if the segment
    belongs to another journal.
    """
    file = disk.open(name)
    size, header = file.size(), file.read_at(0, 64)
    file.close()
    claimed = int.from_bytes(header[24:32], "little")
    for candidate in (number, claimed):
        try:
            return decode_header(header, uuid, candidate, size).number
        except JournalDamaged:
            continue
        except DataDirectoryUnusable:
            if UUID(bytes=header[8:24]) == uuid:
                raise
            return -1
    return None


def _frame_claims(disk: Disk, name: str, number: int, seed: int) -> int | None:
    file = disk.open(name)
    view = file.map()
    file.close()
    claimed = int.from_bytes(bytes(view[_SEGMENT : _SEGMENT + 8]), "little")
    for candidate in (number, claimed):
        if isinstance(frames.decode(view, candidate, 0, seed), Frame):
            return candidate
    return None


def _relabel(disk: Disk, claims: dict[str, int | None], name_of: object) -> tuple[Relabelled, list[Finding]]:
    assert callable(name_of)
    names: dict[str, str | None] = {}
    findings = []
    for name, number in claims.items():
        if number is None or name_of(number) == name:
            continue
        names.setdefault(name, None)
        own = name_of(number) if number >= 0 else ""
        if number < 0:
            findings.append(Finding(name, 0, "belongs to another journal"))
        elif own in claims and claims[own] == number:
            findings.append(Finding(name, 0, f"is a copy of {own}"))
        else:
            names[own] = name
            findings.append(Finding(name, 0, f"is {own} under a wrong name"))
    return Relabelled(disk, names), findings
