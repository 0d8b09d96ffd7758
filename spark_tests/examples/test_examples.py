"""Every example runs as it is written."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from spark_tests.support.tree import PROJECT

EXAMPLES = sorted((PROJECT / "examples").glob("[0-9]*.py"))
SAYS = {
    "01_first_rows.py": "order 3",
    "02_exactly_once.py": "20000 results, each exactly once",
    "03_foreach_batch.py": "3000 orders in SQLite, 300 urgent ones",
    "04_plain_python.py": "10000 more as Arrow record batches",
    "05_executors.py": "10000 rows went through two executors",
}


def run(folder: pathlib.Path, *arguments: str) -> str:
    # From another folder, with nothing but the installed packages: as a user would.
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        text=True,
        capture_output=True,
        check=False,
        env=dict(os.environ),
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
    return done.stdout


def test_each_example_is_known_here_and_in_the_readme() -> None:
    assert [path.name for path in EXAMPLES] == list(SAYS)
    readme = (PROJECT / "README.md").read_text(encoding="utf-8")
    assert all(f"(examples/{name})" in readme for name in SAYS)


def test_plain_python(tmp_path: pathlib.Path) -> None:
    assert SAYS["04_plain_python.py"] in run(tmp_path, str(PROJECT / "examples" / "04_plain_python.py"))


@pytest.mark.spark
@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", ["01_first_rows.py", "02_exactly_once.py", "03_foreach_batch.py"])
def test_with_spark(name: str, tmp_path: pathlib.Path) -> None:
    assert SAYS[name] in run(tmp_path, str(PROJECT / "examples" / name))


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_several_executors(wheel: pathlib.Path, tmp_path: pathlib.Path) -> None:
    assert SAYS["05_executors.py"] in run(tmp_path, str(PROJECT / "examples" / "05_executors.py"), str(wheel))


@pytest.mark.spark
@pytest.mark.timeout(180)
def test_demo(tmp_path: pathlib.Path) -> None:
    """With made-up flights, since tests need no network: everything else is as `make demo` has it, the
    SIGKILL included.
    """
    rows, random = 40_000, np.random.default_rng(7)
    lines = ["carrier,flight,origin,dest,dep_delay,arr_delay,distance,air_time"]
    for number, late in enumerate(random.integers(-60, 200, rows)):
        delay = "" if number % 40 == 0 else str(late)
        lines.append(f"{'AB'[number % 2]}A,{number % 900},JFK,LAX,{delay},{delay},2475,330")
    flights = tmp_path / "flights.csv"
    flights.write_text("\n".join(lines) + "\n")
    arguments = [
        "-m",
        "examples.flights.demo",
        "--flights",
        str(flights),
        "--dir",
        str(tmp_path / "demo"),
        "--rows-per-batch",
        "5000",
    ]
    said = run(PROJECT, *arguments)
    assert "exactly once" in said
    assert "NOT exactly once" not in said
    assert "SIGKILL" in said
    assert "40,000" in said
