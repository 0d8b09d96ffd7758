"""Files build on one another in one direction: whoever reads one need not have read those that use it."""

from __future__ import annotations

import pathlib

from spark_tests.support.tree import imports, module_name, sources

#: Name -> names that it imports, types included.
Graph = dict[str, set[str]]


def tree() -> Graph:
    """Every file and what it imports of the others. `from p import m` is about module m alone."""
    paths = {module_name(path): path for path in sources()}
    return {name: set(_imported(path, paths)) - {name} for name, path in paths.items()}


def _imported(path: pathlib.Path, known: dict[str, pathlib.Path]) -> list[str]:
    names = [name for _, name in imports(path) if name in known]
    return [name for name in names if not any(other.startswith(f"{name}.") for other in names)]


def circles(graph: Graph) -> list[set[str]]:
    """Returns the sets of files that all import one another, directly or not."""
    reached = {name: _reached(graph, name) for name in graph}
    found = []
    for name in graph:
        circle = {other for other in reached[name] if name in reached[other]} | {name}
        if len(circle) > 1 and circle not in found:
            found.append(circle)
    return found


def _reached(graph: Graph, start: str) -> set[str]:
    seen, left = set[str](), [start]
    while left:
        new = graph[left.pop()] - seen
        seen |= new
        left += new
    return seen


def test_no_files_import_one_another() -> None:
    found = circles(tree())
    assert not found, "\n".join(", ".join(sorted(circle)) for circle in found)


def test_a_circle_is_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": set[str]()}
    assert circles(graph) == [{"a", "b", "c"}]
