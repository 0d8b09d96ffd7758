"""A Kafka broker and Spark's connector to it, in a folder of their own, on loopback ports."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.data import VALUE_BYTES
from benchmarks.jars import fetched

JAVA_OPENS = [
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
]
START_S = 60.0
PARTITIONS = 4


@dataclass(frozen=True)
class Kafka:
    """A running broker.

    Attributes:
        address: bootstrap server, host:port.
        connector_jars: folder with what Spark needs to speak to it.
    """

    address: str
    folder: pathlib.Path
    broker_jars: pathlib.Path
    connector_jars: pathlib.Path

    def fill(self, topic: str, rows: int) -> float:
        """Publishes with Kafka's own performance tool, in large batches; returns rows a second."""
        arguments = [
            "--topic",
            topic,
            "--num-records",
            rows,
            "--record-size",
            VALUE_BYTES,
            "--throughput",
            -1,
            "--producer-props",
        ]
        settings = [
            f"bootstrap.servers={self.address}",
            "acks=all",
            "batch.size=262144",
            "linger.ms=10",
            "buffer.memory=268435456",
        ]
        said = _run(
            _java(self.broker_jars, "org.apache.kafka.tools.ProducerPerformance", *arguments, *settings),
            self.folder,
        )
        return float(re.findall(r"([\d.]+) records/sec", said)[-1])

    def create(self, topic: str) -> None:
        arguments = [
            "--bootstrap-server",
            self.address,
            "--create",
            "--topic",
            topic,
            "--partitions",
            PARTITIONS,
        ]
        _run(_java(self.broker_jars, "org.apache.kafka.tools.TopicCommand", *arguments), self.folder)


@contextlib.contextmanager
def running(cache: pathlib.Path) -> Iterator[Kafka]:
    """A one-node broker with the topics `in` and `out`, its data below `cache`; jars are fetched on first use
    and kept there.
    """
    broker_jars, connector_jars = fetched(cache, "kafka"), fetched(cache, "spark-kafka")
    folder = cache / "kafka"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    port, controller = _free_port(), _free_port()
    (folder / "server.properties").write_text(
        f"process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:{controller}\n"
        f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\nadvertised.listeners=PLAINTEXT://127.0.0.1:{port}\n"
        f"controller.listener.names=CONTROLLER\nlistener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\n"
        f"inter.broker.listener.name=PLAINTEXT\nlog.dirs={folder}/data\nnum.partitions={PARTITIONS}\n"
        f"offsets.topic.replication.factor=1\ntransaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n"
    )
    cluster = _run(_java(broker_jars, "kafka.tools.StorageTool", "random-uuid"), folder).split()[-1]
    _run(
        _java(broker_jars, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", "server.properties"),
        folder,
    )
    with (folder / "broker.log").open("wb") as log:
        command = _java(broker_jars, "kafka.Kafka", "server.properties")
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, start_new_session=True)
    try:
        _wait_for_port(port, process, folder / "broker.log")
        kafka = Kafka(f"127.0.0.1:{port}", folder, broker_jars, connector_jars)
        kafka.create("in")
        kafka.create("out")
        yield kafka
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _java(classpath: pathlib.Path, *arguments: object) -> list[str]:
    return ["java", "-Xmx1g", *JAVA_OPENS, "-cp", f"{classpath}/*", *map(str, arguments)]


def _run(command: list[str], folder: pathlib.Path) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=900,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{command[-1]} of Kafka failed:\n{done.stdout[-2000:]}")
    return done.stdout


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _wait_for_port(port: int, process: subprocess.Popen[bytes], log: pathlib.Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.2)
    raise SystemExit(f"Kafka did not come up on port {port} of {os.uname().nodename}; see {log}")
