"""A data directory that goes away under a running broker, and one that is not where it was at the next
start.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator

import grpc
import pytest

from mq_broker import LocalBroker
from spark_tests.support.waiting import wait_until
from spark_tests.support.wire import Wire, batch_of, values_of

MQ = [sys.executable, "-m", "mq_broker.console"]


def remove_content(path: pathlib.Path) -> None:
    for segment in (path / "journal").iterdir():
        segment.unlink()


def cut_content(path: pathlib.Path) -> None:
    for segment in (path / "journal").glob("segment-*"):
        os.truncate(segment, 0)


LOSSES: dict[str, Callable[[pathlib.Path], object]] = {
    "removed": shutil.rmtree,
    "moved": lambda path: path.rename(path.with_name("moved")),
    "lock removed": lambda path: (path / "lock").unlink(),
    "journal removed": lambda path: shutil.rmtree(path / "journal"),
    "files of the journal removed": remove_content,
    "files of the journal cut": cut_content,
}


@pytest.fixture
def broker(tmp_path: pathlib.Path) -> Iterator[subprocess.Popen[str]]:
    flags = ["broker", "--data-dir", str(tmp_path / "data"), "--port", "0", "--segment-bytes", str(32 << 20)]
    with subprocess.Popen(
        [*MQ, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("how", LOSSES)
def test_it_is_noticed_and_ends_the_broker(
    tmp_path: pathlib.Path, broker: subprocess.Popen[str], how: str
) -> None:
    assert broker.stdout is not None
    assert broker.stderr is not None
    with Wire(broker.stdout.readline().split()[4]) as wire:
        publisher = wire.publisher("q")
        publisher.send(batch_of(values_of(10)))
        LOSSES[how](tmp_path / "data")

        def is_refused() -> bool:
            try:
                publisher.send(batch_of(values_of(10)))
            except grpc.RpcError:
                return True
            return False

        wait_until(is_refused, message="receipts for what no start will find")
    assert broker.wait(20) == 70
    *_, last = broker.stderr.read().splitlines()
    assert "CRITICAL" in last
    assert str(tmp_path / "data") in last
    assert ("put it back" in last) == (how in ("removed", "moved", "journal removed"))


def test_a_directory_that_is_made_anew_is_told(tmp_path: pathlib.Path) -> None:
    with LocalBroker(tmp_path / "data", segment_bytes=32 << 20) as broker:
        wait_until(
            lambda: f"WARNING a new, empty data directory was made at {tmp_path / 'data'}" in broker.stderr()
        )
        broker.stop()
        broker.start()
        wait_until(lambda: "is ready" in broker.stderr())
        assert "was made" not in broker.stderr()
