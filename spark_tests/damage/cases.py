"""What is done to a small directory: one bit in each byte, cuts at each byte, whole files zeroed, lost,
copied or exchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import combinations

from spark_tests.damage.small import Directory, Files, Truth, moments, small


@dataclass(frozen=True)
class Case:
    """One damage. `earlier`: what the directory may hold instead, where nothing on the disk can tell."""

    name: str
    make: Callable[[], Directory]
    earlier: tuple[Truth, ...] = ()
    may_be_unknowable: bool = False


def _files(directory: Directory) -> Iterator[tuple[int, str]]:
    for folder in (0, 1):
        for name in sorted(directory[folder]):
            yield folder, name


def changed(folder: int, changes: dict[str, bytes | None]) -> Directory:
    """The small directory with other contents of some files; None removes one."""
    folders: list[Files] = [dict(small().directory.journal), dict(small().directory.snapshots)]
    for name, content in changes.items():
        if content is None:
            folders[folder].pop(name, None)
        else:
            folders[folder][name] = content
    return Directory(*folders)


def _flip(folder: int, name: str, position: int) -> Directory:
    content = bytearray(small().directory[folder][name])
    content[position] ^= 1 << position % 8
    return changed(folder, {name: bytes(content)})


def newest(folder: int, prefix: str) -> str:
    return max(name for name in small().directory[folder] if name.startswith(prefix))


def flips() -> list[Case]:
    """One bit in each byte of each file. Rot in the very last turn cannot be told from a turn that was never
    finished.
    """
    directory = small().directory
    return [
        Case(
            f"bit {position % 8} of byte {position} of {name}",
            partial(_flip, folder, name, position),
            (moments()[-2],),
        )
        for folder, name in _files(directory)
        for position in range(len(directory[folder][name]))
    ]


def cuts() -> list[Case]:
    """The last segment, the newest manifest and the newest pack, cut short at each byte."""
    cases: list[Case] = []
    for folder, name in ((0, newest(0, "segment-")), (1, newest(1, "manifest-")), (1, newest(1, "pack-"))):
        content = small().directory[folder][name]
        cases += (
            Case(f"{name} cut to {size} bytes", partial(_cut, folder, name, size))
            for size in range(len(content))
        )
    return cases


def _cut(folder: int, name: str, size: int) -> Directory:
    return changed(folder, {name: small().directory[folder][name][:size]})


def _next_name(name: str) -> str:
    prefix, _, rest = name.rpartition("-")
    number, _, suffix = rest.partition(".")
    return f"{prefix}-{int(number) + 1:010d}.{suffix}"


def whole_files() -> list[Case]:
    """Each file zeroed, emptied, lost, copied under the next name, exchanged with another of its kind, or as
    it was before.
    """
    cases: list[Case] = []
    directory = small().directory
    for folder, name in _files(directory):
        content = directory[folder][name]
        cases += (
            Case(f"{name} {what}", partial(changed, folder, {name: other}))
            for what, other in (("zeroed", bytes(len(content))), ("emptied", b""), ("lost", None))
        )
        copy = _next_name(name)
        over = "over" if copy in directory[folder] else "to"
        cases.append(Case(f"{name} copied {over} {copy}", partial(changed, folder, {copy: content})))
    for folder in (0, 1):
        for first, second in combinations(sorted(directory[folder]), 2):
            if first.partition("-")[0] == second.partition("-")[0]:
                exchanged: dict[str, bytes | None] = {
                    first: directory[folder][second],
                    second: directory[folder][first],
                }
                cases.append(Case(f"{first} and {second} exchanged", partial(changed, folder, exchanged)))
    return cases + _older_versions()


def _older_versions() -> list[Case]:
    """What the last segments were a few turns ago. If it is the very last one, nothing on the disk tells what
    came behind.
    """
    now = small().directory.journal
    return [
        Case(f"{name} as it was at turn {moment.turn}", partial(changed, 0, {name: content}), (moment,))
        for moment in moments()
        for name, content in moment.directory.journal.items()
        if now.get(name) not in (None, content)
    ]
