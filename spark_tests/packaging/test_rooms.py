"""The rooms of the tests: what is shared stands in `support/`, and nobody builds on another's tests."""

from __future__ import annotations

import pathlib
from collections import defaultdict
from typing import Final

from spark_tests.support.tree import PROJECT, imports, module_name, shown, sources

#: What every folder of tests may import beside itself.
SHARED: Final = {"support", "model", "oracle"}
#: A folder and another that it may import as well, with the reason.
NEIGHBOURS: Final = {
    ("planted", "simulation"): "planted bugs are searched for in simulated histories",
    ("compat", "spark_crash"): "queries of old versions died at the steps where those of today are killed",
}

#: Importing module -> module that it imports, both under `spark_tests`, with the line.
Import = tuple[str, int, str]


def modules() -> dict[str, pathlib.Path]:
    """Every file of the tests by its module name."""
    return {module_name(path): path for path in sources() if path.is_relative_to(PROJECT / "spark_tests")}


def all_imports() -> list[Import]:
    known = modules()
    return [
        (module_name(path), line, imported)
        for path in sources()
        for line, imported in imports(path)
        if imported in known
    ]


def room_of(module: str) -> str:
    """The folder that a module stands in; the root of the tests for their `conftest`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 2 else ""


def is_test(module: str) -> bool:
    return module.rpartition(".")[2].startswith(("test_", "conftest"))


def of_tests(found: list[Import]) -> list[Import]:
    """Imports of test modules."""
    return [each for each in found if is_test(each[2])]


def of_neighbours(found: list[Import]) -> list[Import]:
    """Imports of another folder that is neither shared nor in the table."""
    return [
        (module, line, imported)
        for module, line, imported in found
        if module.startswith("spark_tests.")
        and room_of(imported) != room_of(module)
        and room_of(imported) not in SHARED
        and (room_of(module), room_of(imported)) not in NEIGHBOURS
    ]


def of_shared(found: list[Import]) -> list[Import]:
    """Imports by shared rooms of what is not shared."""
    return [each for each in found if room_of(each[0]) in SHARED and room_of(each[2]) not in SHARED]


def test_nobody_imports_a_test() -> None:
    assert of_tests(all_imports()) == [], "what others need stands in spark_tests/support"


def test_folders_import_what_is_shared() -> None:
    assert of_neighbours(all_imports()) == [], "what others need stands in spark_tests/support"


def test_what_is_shared_needs_nobody() -> None:
    assert of_shared(all_imports()) == []
    assert [
        shown(path) for name, path in modules().items() if room_of(name) == "support" and is_test(name)
    ] == []


def test_the_table_of_neighbours_has_nothing_that_is_not_used() -> None:
    used = {(room_of(module), room_of(imported)) for module, _, imported in all_imports()}
    assert set(NEIGHBOURS) <= used, f"nobody needs {set(NEIGHBOURS) - used}"


def test_the_alarms_ring() -> None:
    neighbours = ("spark_tests.core.test_a", 1, "spark_tests.engine.b")
    a_test = ("spark_tests.core.b", 1, "spark_tests.core.test_a")
    shared = ("spark_tests.support.a", 1, "spark_tests.core.b")
    good = ("spark_tests.core.test_a", 1, "spark_tests.support.b")
    found = [neighbours, a_test, shared, good]
    assert of_tests(found) == [a_test]
    assert of_neighbours(found) == [neighbours, shared]
    assert of_shared(found) == [shared]


def test_no_two_test_files_have_one_name() -> None:
    by_name = defaultdict(list)
    for name, path in modules().items():
        if name.rpartition(".")[2].startswith("test_"):
            by_name[path.name].append(shown(path))
    assert [paths for paths in by_name.values() if len(paths) > 1] == []
