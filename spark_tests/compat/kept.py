"""What earlier versions left behind: data directories and checkpoints as archives, and beside each what it
must still say.
"""

from __future__ import annotations

import json
import pathlib
import tarfile
from typing import Any, Final

from mq_broker import LocalBroker

_CENTURY_S: Final = 100 * 365 * 86_400
HERE: Final = pathlib.Path(__file__).resolve().parent
V1: Final = HERE / "v1"
V2: Final = HERE / "v2"
WHEEL: Final = V1 / "pyspark_mq-0.1.0-py3-none-any.whl"
#: What a process leaves in a directory that is not state.
_NOT_KEPT: Final = {"lock", "spark-home"}


def pack(folder: pathlib.Path, archive: pathlib.Path) -> None:
    """Packs a folder. Journals are mostly zeros, of which xz makes next to nothing."""
    with tarfile.open(archive, "w:xz", preset=9) as tar:
        for path in sorted(folder.rglob("*")):
            if not _NOT_KEPT.intersection(path.relative_to(folder).parts):
                tar.add(path, str(path.relative_to(folder)), recursive=False, filter=_nobody)


def unpack(archive: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """Returns the folder, with what was packed."""
    folder.mkdir(parents=True)
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder


def load(name: str, version: pathlib.Path = V1) -> dict[str, Any]:
    """Returns what was written down when `name` was made."""
    loaded: dict[str, Any] = json.loads((version / f"{name}.json").read_text(encoding="utf-8"))
    return loaded


def save(name: str, content: dict[str, Any], version: pathlib.Path = V1) -> None:
    """Writes the expectation, short lists on one line each so that a reader finds something."""
    text = json.dumps(content, indent=1, sort_keys=True)
    (version / f"{name}.json").write_text(_flat_lists(text) + "\n", encoding="utf-8")


def differences(actual: Any, expected: Any, path: str = "") -> list[str]:
    """Returns where `actual` is not what was expected, one line each. What newer versions say in addition is
    no difference.
    """
    if actual == expected:
        return []
    if isinstance(actual, dict) and isinstance(expected, dict):
        return [
            line
            for key in expected
            for line in differences(actual.get(key, "(missing)"), expected[key], f"{path}/{key}")
        ]
    if isinstance(actual, list) and isinstance(expected, list) and len(actual) == len(expected):
        pairs = enumerate(zip(actual, expected, strict=True))
        return [line for at, (one, other) in pairs for line in differences(one, other, f"{path}[{at}]")]
    return [f"{path}: {actual!r} instead of {expected!r}"]


def check(actual: Any, expected: Any, what: str) -> None:
    """Fails with the places where `actual` differs."""
    lines = differences(actual, expected)
    assert not lines, "\n".join([f"{what}: {len(lines)} differences", *lines[:40]])


def _flat_lists(text: str) -> str:
    """Joins the lines of lists that hold neither lists nor objects."""
    out: list[str] = []
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        if lines[at].endswith("[") and at + 1 < len(lines):
            end = at + 1
            while not lines[end].rstrip(",").endswith(("[", "{", "]", "}")):
                end += 1
            if lines[end].strip().rstrip(",") == "]":
                out.append(
                    lines[at] + " ".join(line.strip() for line in lines[at + 1 : end]) + lines[end].strip()
                )
                at = end + 1
                continue
        out.append(lines[at])
        at += 1
    return "\n".join(out)


def _nobody(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mode = 0o755 if info.isdir() else 0o644
    return info


def opened(data: pathlib.Path) -> LocalBroker:
    """The current broker on an old directory. What is in it never grows too old: neither its staged sets nor
    the plans of its runs.
    """
    return LocalBroker(
        data, segment_bytes=32 << 20, default_partitions=2, staged_ttl_s=_CENTURY_S, run_grace_s=_CENTURY_S
    )
