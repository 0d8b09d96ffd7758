"""Spark drivers as processes of their own, which a test kills, stops, and asks what happened to their
query.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
from typing import Any, Final

from spark_tests.spark_crash.processes import in_session, kill_session
from spark_tests.support.tree import PROJECT, ROOTS
from spark_tests.support.waiting import wait_until

CONF: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.driver.memory": "512m",
}


def python_path() -> str:
    """Where Spark's processes find the packages under test and these helpers."""
    return os.pathsep.join([str(PROJECT), *(str(PROJECT / root) for root in ROOTS.values())])


def environment_of(host: str) -> dict[str, str]:
    """Returns the environment of a Spark process at this address."""
    return os.environ | {
        "SPARK_LOCAL_IP": host,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": python_path(),
    }


class Driver:
    """One driver process with its JVM and Python workers. Its query starts with `go`; until then it gets
    ready for that.

    Args:
        job: see `spark_tests.spark_crash.job`.
        log: where it writes what it says; stderr goes beside it.
    """

    def __init__(self, job: dict[str, Any], log: pathlib.Path) -> None:
        self._said, self._log = log, log.with_suffix(".err")
        with self._said.open("wb") as said, self._log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "spark_tests.spark_crash.job", json.dumps(job)],
                cwd=log.parent,
                env=environment_of("127.0.0.1"),
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=errors,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def go(self, **settled: Any) -> None:
        """Lets its query begin, with what goes into its job only now."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(settled).encode() + b"\n")
        self._process.stdin.flush()

    def events(self) -> list[dict[str, Any]]:
        """What it has said so far."""
        return [
            json.loads(line)
            for line in self._said.read_text().splitlines(keepends=True)
            if line.endswith("\n")
        ]

    def failures(self) -> list[str]:
        """What its query has failed with so far."""
        return [event["error"] for event in self.events() if event["said"] == "failed"]

    def failure_beside(self) -> str:
        """What the query beside it has failed with; empty while it has not."""
        return next((event["error"] for event in self.events() if event["said"] == "beside failed"), "")

    def check(self) -> bool:
        """Raises where the process has ended by itself."""
        if self._process.poll() is not None:
            raise AssertionError(
                f"the driver ended with {self._process.returncode}: {self.events()[-3:]} "
                f"{self._log.read_text()[-3000:]}"
            )
        return True

    def kill(self) -> None:
        """Ends driver, JVM and all workers at once with SIGKILL."""
        kill_session(self.pid)
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        wait_until(lambda: not in_session(self.pid), 10, "the driver's processes live on")

    def pause(self) -> None:
        """Stops all of its processes with SIGSTOP."""
        for pid in in_session(self.pid):
            os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Lets them go on."""
        for pid in in_session(self.pid):
            os.kill(pid, signal.SIGCONT)
