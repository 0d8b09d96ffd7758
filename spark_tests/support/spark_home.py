"""A home of Spark that starts twice as fast as the installed one; for tests, which start Spark a hundred
times.

    python -m spark_tests.support.spark_home

writes an archive of Spark's classes, which its next JVMs map instead of loading and checking 15,000 files of
jars.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import subprocess
import sys
from typing import Final

from spark_tests.support.tree import PROJECT

HOME: Final = pathlib.Path(sys.prefix) / "spark-home"
_ARCHIVE: Final = HOME / "classes.jsa"
#: Short-lived JVMs: what runs once is worth neither the second compiler nor a look at Spark's own bytecode.
JAVA_OPTIONS: Final = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
#: Beyond that there is no archive, and nothing is lost but time.
_PATIENCE_S: Final = 300.0
#: An archive of another Java is passed over; the warning would stand between the lines of examples.
_QUIET: Final = "-Xlog:disable -Xlog:all=error:stderr"


def set_environment() -> None:
    """Has all Sparks of this process and its children start from here, unless the environment names another
    home.
    """
    if "SPARK_HOME" in os.environ or importlib.util.find_spec("pyspark") is None:
        return
    _make()
    os.environ["SPARK_HOME"] = str(HOME)
    archive = f"-XX:SharedArchiveFile={_ARCHIVE} {_QUIET}" if _ARCHIVE.exists() else ""
    options = f"{JAVA_OPTIONS} {archive}".strip()
    # As much for executors in JVMs of their own, unless their application names other options.
    os.environ.setdefault("SPARK_SUBMIT_OPTS", f'{options} "-Dspark.executor.extraJavaOptions={options}"')


def _make() -> None:
    """Spark's own files without its zipped Python sources, so that workers take the installed package.

    The zip is compiled anew by every Python that starts, which is half a second each time.
    """
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    HOME.mkdir(exist_ok=True)
    for name in ("bin", "jars"):
        if not (HOME / name).is_symlink():
            (HOME / name).symlink_to(pathlib.Path(spec.origin).parent / name)


def _write_archive() -> None:
    """By the classes that an example has loaded when it ends."""
    _make()
    options = f"{JAVA_OPTIONS} -XX:ArchiveClassesAtExit={_ARCHIVE} {_QUIET}"
    environment = {
        **os.environ,
        "SPARK_HOME": str(HOME),
        "SPARK_SUBMIT_OPTS": options,
        "PYSPARK_PYTHON": sys.executable,
    }
    example = PROJECT / "examples" / "02_exactly_once.py"
    subprocess.run(
        [sys.executable, str(example)],
        env=environment,
        stdout=subprocess.DEVNULL,
        check=True,
        timeout=_PATIENCE_S,
    )


if __name__ == "__main__":
    _write_archive()
