"""Building the wheel as a release does."""

from __future__ import annotations

import pathlib
import subprocess
import sys

from spark_tests.support.tree import PROJECT, ROOTS


def build_wheel(folder: pathlib.Path) -> pathlib.Path:
    """Returns the wheel, built below `folder`.

    From a copy: setuptools leaves build/ and *.egg-info beside the sources, and would take stale files from
        there.
    """
    source, out = folder / "source", folder / "dist"
    source.mkdir()
    for name in ["setup.py", "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE"]:
        (source / name).write_bytes((PROJECT / name).read_bytes())
    for package, root in ROOTS.items():
        for path in (PROJECT / root / package).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                target = source / path.relative_to(PROJECT)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(path.read_bytes())
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.glob("*.whl")
    return built
