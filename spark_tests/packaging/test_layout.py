"""The rules of the tree: who may import whom, and how long a file and a function may be."""

from __future__ import annotations

import ast
import re
import subprocess

from spark_tests.support.tree import PROJECT, imports, module_name, parsed, shown, sources

FILE_LINES_MAX = 400
#: Of tests and their machines, of which four are longer.
TEST_LINES_MAX = 460
FUNCTION_LINES_MAX = 60

#: Package or part of one -> what it must not import, with those of its modules that may.
FORBIDDEN: dict[str, tuple[set[str], tuple[str, ...]]] = {
    "mq_wire": ({"mq_broker", "pyspark_mq", "pyspark", "py4j", "grpc"}, ()),
    "mq_broker": ({"pyspark_mq", "pyspark", "py4j"}, ("mq_broker.console",)),
    "mq_broker.core": (
        {f"mq_broker.{room}" for room in ("engine", "journal", "rpc", "repair", "console")},
        (),
    ),
    # What there is knows nothing of who changes it, or writes it down.
    "mq_broker.core.model": (
        {f"mq_broker.core.{room}" for room in ("handlers", "apply", "ledger", "snapshot", "broker")},
        (),
    ),
    "pyspark_mq": ({"mq_broker", "py4j", "pyroaring"}, ()),
    # All of these would load Spark, the last one on the first use of the name.
    "pyspark_mq.client": ({"pyspark", "pyspark_mq.spark", "pyspark_mq.DefaultSource"}, ()),
}
#: What must run without a file, socket, thread or clock of its own: the broker's rules, and the client's.
SANS_IO = (
    "mq_broker.core",
    *(
        f"pyspark_mq.client.{name}"
        for name in (
            "acknowledging",
            "backoff",
            "boundary",
            "lane",
            "outstanding",
            "receive_window",
            "sessions",
            "window",
        )
    ),
)
SANS_IO_FORBIDDEN = {
    "os",
    "io",
    "time",
    "socket",
    "threading",
    "asyncio",
    "subprocess",
    "pathlib",
    "logging",
    "random",
    "grpc",
    "mmap",
}


def within(name: str, package: str) -> bool:
    """Whether a dotted name is a package, or something in it."""
    return name == package or name.startswith(f"{package}.")


def may_not_import(module: str) -> set[str]:
    """The packages that a module must leave alone."""
    found = set[str]()
    for package, (forbidden, exempt) in FORBIDDEN.items():
        if within(module, package) and not any(within(module, name) for name in exempt):
            found |= forbidden
    return found | SANS_IO_FORBIDDEN if any(within(module, name) for name in SANS_IO) else found


def violations() -> list[str]:
    return [
        f"{shown(path)}:{line}: {module} must not import {imported}"
        for path in sources()
        for module in [module_name(path)]
        for line, imported in imports(path)
        if any(within(imported, name) for name in may_not_import(module))
    ]


def test_packages_import_only_what_they_may() -> None:
    assert violations() == []


def test_the_client_may_not_know_spark() -> None:
    """The Spark half stands on the client: who needs only the client needs no Spark."""
    of_the_client = may_not_import("pyspark_mq.client.producer")
    assert {"pyspark", "pyspark_mq.spark", "mq_broker"} <= of_the_client
    assert "pyspark" not in may_not_import("pyspark_mq.spark.source")
    assert "threading" in may_not_import("pyspark_mq.client.receive_window")
    assert all(any(within(module_name(path), name) for path in sources()) for name in SANS_IO)
    assert within("pyspark.sql.types", "pyspark")
    assert not within("pyspark_mq.client.link", "pyspark")


def test_every_file_of_the_connector_is_in_one_of_its_two_halves() -> None:
    """Beside them stand the public names, and the columns, whose path `Consumer.batches` tells."""
    modules = {module_name(path) for path in sources() if within(module_name(path), "pyspark_mq")}
    halves = ("pyspark_mq.client", "pyspark_mq.spark")
    outside = {module for module in modules if not any(within(module, half) for half in halves)}
    assert outside == {"pyspark_mq", "pyspark_mq.columns"}
    for half in halves:
        assert sum(within(module, half) for module in modules) > 10


def too_long(name: str, lines: int, tree: ast.Module) -> list[str]:
    """Says what is too long of a file: itself, and its functions."""
    found, limit = [], TEST_LINES_MAX if name.startswith("spark_tests/") else FILE_LINES_MAX
    if lines > limit:
        found.append(f"{name} has {lines} lines, more than {limit}: give it another room")
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                where = f"{name}:{node.lineno} {node.name}"
                found.append(f"{where} has {length} lines, more than {FUNCTION_LINES_MAX}")
    return found


def test_files_and_functions_are_short() -> None:
    found = []
    for path in sources():
        lines = len(path.read_text(encoding="utf-8").splitlines())
        found += too_long(shown(path), lines, parsed(path))
    assert not found, "\n".join(found)


def test_the_alarm_for_lengths_rings() -> None:
    long = ast.parse("def long():\n" + "    x()\n" * FUNCTION_LINES_MAX)
    length = FUNCTION_LINES_MAX + 1
    assert too_long("a.py", length, long) == [
        f"a.py:1 long has {length} lines, more than {FUNCTION_LINES_MAX}"
    ]
    assert len(too_long("a.py", FILE_LINES_MAX + 1, long)) == 2
    assert too_long("a.py", FILE_LINES_MAX, ast.parse("x()")) == []


def broad_excepts(tree: ast.Module) -> list[int]:
    """Lines of handlers that catch everything and neither raise nor use what they caught."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        broad = node.type is None or (
            isinstance(node.type, ast.Name) and node.type.id in {"Exception", "BaseException"}
        )
        passes_on = any(isinstance(inner, ast.Raise) for inner in ast.walk(node)) or any(
            isinstance(inner, ast.Name) and inner.id == node.name
            for body in node.body
            for inner in ast.walk(body)
        )
        if broad and not passes_on:
            found.append(node.lineno)
    return found


def test_no_error_is_swallowed() -> None:
    assert [f"{shown(path)}:{line}" for path in sources() for line in broad_excepts(parsed(path))] == []


def test_the_alarm_for_swallowed_errors_rings() -> None:
    assert broad_excepts(ast.parse("try:\n  x()\nexcept Exception:\n  pass\n")) == [3]
    assert broad_excepts(ast.parse("try:\n  x()\nexcept Exception as error:\n  tell(error)\n")) == []


def test_tests_do_not_sleep() -> None:
    waiting = PROJECT / "spark_tests" / "support" / "waiting.py"
    found = [
        f"{shown(path)}:{node.lineno}"
        for path in sources()
        if path.is_relative_to(PROJECT / "spark_tests") and path != waiting
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Attribute) and node.attr == "sleep"
    ]
    assert found == [], "wait for a condition with wait_until"


def test_markdown_has_one_title_and_live_links() -> None:
    folders = [PROJECT / "proto", PROJECT / "examples", PROJECT / "benchmarks"]
    for path in [*PROJECT.glob("*.md"), *(found for folder in folders for found in folder.rglob("*.md"))]:
        text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert len(re.findall(r"^# ", text, re.MULTILINE)) == 1, f"{shown(path)} needs exactly one title"
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
            assert (path.parent / target).exists(), f"{shown(path)} links to {target}, which is not there"


def test_nothing_that_is_made_is_committed() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=PROJECT, text=True, capture_output=True, check=False)
    if listed.returncode:  # an unpacked archive instead of a clone: nothing to check
        return
    made = re.compile(
        r"(^|/)(\.venv|build|dist|__pycache__|\.hypothesis|spark-warehouse)(/|$)|\.(pyc|whl|jar)$"
    )
    # What earlier versions were is kept on purpose, their wheels too.
    kept = "spark_tests/compat/v"
    assert [
        name for name in listed.stdout.splitlines() if made.search(name) and not name.startswith(kept)
    ] == []
