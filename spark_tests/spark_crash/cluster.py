"""A standalone Spark cluster on this machine: a master and workers under host names of their own, so that
speculation has where to go.

Spark never runs a second attempt on the host of the first, and in `local-cluster` all hosts are one.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
from typing import Final

from spark_tests.spark_crash.drivers import environment_of
from spark_tests.spark_crash.processes import kill_session
from spark_tests.support.spark_home import JAVA_OPTIONS
from spark_tests.support.waiting import wait_until

_MASTER: Final = "org.apache.spark.deploy.master.Master"
_WORKER: Final = "org.apache.spark.deploy.worker.Worker"
_PATIENCE_S: Final = 90.0


class Cluster:
    """One master, and so many workers with one core each.

    Attributes:
        address: `spark://host:port`.
    """

    def __init__(self, folder: pathlib.Path, workers: int = 2) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        log = self._start("127.0.0.1", "master", _MASTER)
        self.address = self._said(log, r"Starting Spark master at (spark://\S+)")
        for number in range(workers):
            host, name = f"127.0.0.{number + 2}", f"worker-{number}"
            options = ["--cores", "1", "--memory", "1g", "--work-dir", str(folder / name), self.address]
            self._said(self._start(host, name, _WORKER, *options), r"(Successfully registered) with master")

    def close(self) -> None:
        """Ends all of it, executors too."""
        for process in self._processes:
            kill_session(process.pid)
            process.wait()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, host: str, name: str, main_class: str, *options: str) -> pathlib.Path:
        environment = environment_of(host)
        environment |= {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS}
        log = self._folder / f"{name}.log"
        command = [str(pathlib.Path(environment["SPARK_HOME"]) / "bin" / "spark-class"), main_class]
        with log.open("wb") as said:
            self._processes.append(
                subprocess.Popen(
                    [*command, "--host", host, "--port", "0", "--webui-port", "0", *options],
                    cwd=self._folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                    start_new_session=True,
                )
            )
        return log

    @staticmethod
    def _said(log: pathlib.Path, pattern: str) -> str:
        found = wait_until(
            lambda: re.search(pattern, log.read_text()), _PATIENCE_S, f"{log} does not say {pattern!r}"
        )
        assert found is not None
        return found[1]
