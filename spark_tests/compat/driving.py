"""Runs `spark_job` with the packages of any version."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any, Final

from spark_tests.spark_crash.drivers import CONF, environment_of
from spark_tests.support.tree import PROJECT, ROOTS

#: The packages of this tree.
CURRENT: Final = tuple(str(PROJECT / root) for root in ROOTS.values())


def command(jobs: list[dict[str, Any]], roots: tuple[str, ...] = CURRENT) -> tuple[list[str], dict[str, str]]:
    """Returns the command line and the environment of a driver whose packages are found in `roots`, and
    nowhere else before.
    """
    work = {"master": "local[2]", "conf": CONF, "jobs": jobs}
    environment = environment_of("127.0.0.1") | {"PYTHONPATH": os.pathsep.join([*roots, str(PROJECT)])}
    return [sys.executable, "-m", "spark_tests.compat.spark_job", json.dumps(work)], environment


def drive(
    folder: pathlib.Path, jobs: list[dict[str, Any]], roots: tuple[str, ...] = CURRENT, timeout: float = 240
) -> list[dict[str, Any]]:
    """Runs queries to their end; returns what was said."""
    arguments, environment = command(jobs, roots)
    with (folder / "driver.err").open("wb") as errors:
        done = subprocess.run(
            arguments,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            timeout=timeout,
            check=False,
        )
    assert done.returncode == 0, (folder / "driver.err").read_text()[-4000:]
    return said(done.stdout.decode())


def said(text: str) -> list[dict[str, Any]]:
    """What a driver has said; a line that is not complete yet is left out."""
    return [
        json.loads(line)
        for line in text.splitlines(keepends=True)
        if line.startswith("{") and line.endswith("\n")
    ]
