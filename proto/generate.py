"""Generates the Python stubs beside the .proto files, with the oldest supported grpcio-tools and protobuf.

The tools are installed into a virtual environment of their own (.venv-protos), so that no other environment
gets an older protobuf. --check writes nothing and compares the committed stubs with freshly generated ones.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent
PROJECT = ROOT.parent
TOOLS = PROJECT / ".venv-protos"


def tools_python() -> pathlib.Path:
    """Returns the Python of .venv-protos. Creates the environment from the group `protos` of pyproject.toml
    if it is missing or older than pyproject.toml.
    """
    python = TOOLS / "bin" / "python"
    ready = TOOLS / ".ready"
    if not ready.exists() or ready.stat().st_mtime < (PROJECT / "pyproject.toml").stat().st_mtime:
        uv = [sys.executable, "-m", "uv"]
        environment = {**os.environ, "UV_LINK_MODE": "copy"}
        subprocess.run(
            [*uv, "venv", "--quiet", "--clear", "--python", sys.executable, TOOLS],
            check=True,
            env=environment,
        )
        install = [*uv, "pip", "install", "--quiet", "--python", python, "--group", "protos", "setuptools<81"]
        subprocess.run(install, check=True, cwd=PROJECT, env=environment)
        ready.touch()
    return python


def generate(target: pathlib.Path) -> None:
    """Writes the stubs of all .proto files below `target`. _pb2_grpc files are not needed: mq_wire.service
    reads the descriptor.
    """
    files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "mq_wire").rglob("*.proto"))
    command = [
        tools_python(),
        "-m",
        "grpc_tools.protoc",
        f"--proto_path={ROOT}",
        f"--python_out={target}",
        f"--pyi_out={target}",
        *files,
    ]
    subprocess.run(command, check=True, cwd=ROOT)


def differences(fresh: pathlib.Path) -> list[str]:
    """Returns the paths of stubs that differ between the source root and `fresh`, or that only one has."""
    expected = {
        path.relative_to(fresh): path.read_text(encoding="utf-8") for path in fresh.rglob("*_pb2.py*")
    }
    stubs = [*(ROOT / "mq_wire").rglob("*_pb2*.py"), *(ROOT / "mq_wire").rglob("*_pb2*.pyi")]
    present = {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in stubs}
    return sorted(
        str(path) for path in expected.keys() | present.keys() if expected.get(path) != present.get(path)
    )


def main() -> int:
    """Returns the exit code: 1 if --check found a difference, otherwise 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if the stubs differ")
    if not parser.parse_args().check:
        generate(ROOT)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        fresh = pathlib.Path(folder)
        generate(fresh)
        wrong = differences(fresh)
    for path in wrong:
        sys.stderr.write(f"proto/{path} does not match its .proto file: run `make protos`\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
