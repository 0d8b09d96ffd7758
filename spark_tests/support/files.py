"""What is in a folder."""

from __future__ import annotations

import pathlib


def contents(directory: pathlib.Path) -> dict[str, bytes]:
    """Every file of a data directory but its lock, with its bytes."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name != "lock"
    }
