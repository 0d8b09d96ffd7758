"""The source tree as tests of style and structure see it."""

from __future__ import annotations

import ast
import functools
import pathlib
from collections.abc import Iterator

PROJECT = pathlib.Path(__file__).resolve().parents[2]
#: Import package -> its source root.
ROOTS = {"mq_wire": "proto", "mq_broker": "broker_core", "pyspark_mq": "connector"}
_FOLDERS = ("proto", "broker_core", "connector", "spark_tests", "examples", "benchmarks")


@functools.cache
def sources() -> tuple[pathlib.Path, ...]:
    """Every Python file that people write: no generated stubs."""
    found = [PROJECT / "setup.py"]
    for folder in _FOLDERS:
        found += [path for path in (PROJECT / folder).rglob("*.py") if not path.name.endswith("_pb2.py")]
    return tuple(sorted(found))


def shown(path: pathlib.Path) -> str:
    """The path as a reader of the tree knows it."""
    return str(path.relative_to(PROJECT))


@functools.cache
def parsed(path: pathlib.Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@functools.cache
def imports(path: pathlib.Path) -> tuple[tuple[int, str], ...]:
    """Line and absolute module of every import in a file, also of those inside functions; a relative import
    is resolved.
    """
    return tuple(_imports(path))


def _imports(path: pathlib.Path) -> Iterator[tuple[int, str]]:
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            parent = ".".join([*base, *([node.module] if node.module else [])])
            yield node.lineno, parent
            for alias in node.names:
                yield node.lineno, f"{parent}.{alias.name}"


def module_name(path: pathlib.Path) -> str:
    """The dotted name that a file is imported under."""
    for root in ROOTS.values():
        if path.is_relative_to(PROJECT / root):
            parts = path.relative_to(PROJECT / root).with_suffix("").parts
            break
    else:
        parts = path.relative_to(PROJECT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
