"""What a broker says on stderr: one line an event, as text or JSON, of things that are on the disk."""

from __future__ import annotations

import io
import json
import logging
import os
import pathlib
import signal
from typing import Any

import pytest

from mq_broker import LocalBroker
from mq_broker.log import LogOutput, say
from mq_wire.errors import InvalidOption
from mq_wire.v1.admin_pb2 import CreateDestinationRequest, DeleteDestinationRequest, HelloRequest
from spark_tests.support.waiting import wait_until
from spark_tests.support.wire import Wire


def events(broker: LocalBroker) -> dict[str, dict[str, Any]]:
    """The last line of each event."""
    return {line["event"]: line for line in map(json.loads, broker.stderr().splitlines())}


def test_a_broker_says_who_came_and_what_was_made_and_removed(tmp_path: pathlib.Path) -> None:
    with LocalBroker(tmp_path / "broker", log_format="json") as broker, Wire(broker.address) as wire:
        wire.call("Hello", HelloRequest(protocol=1, client="test\nERROR forged"))
        wire.call("CreateDestination", CreateDestinationRequest(name="orders", partitions=3))
        wire.call("DeleteDestination", DeleteDestinationRequest(name="orders"))
        wait_until(lambda: "destination_deleted" in events(broker))
        said = events(broker)
    assert said["ready"]["port"] > 0
    assert said["connected"]["client"] == "test\nERROR forged"
    assert (said["destination_created"]["queue"], said["destination_created"]["partitions"]) == ("orders", 3)
    assert said["destination_deleted"]["level"] == "info"
    assert all(line["time"].endswith("Z") for line in said.values())


def test_a_hangup_changes_nothing_and_is_answered(tmp_path: pathlib.Path) -> None:
    with LocalBroker(tmp_path / "broker") as broker:
        assert broker.pid is not None
        for _ in range(3):
            os.kill(broker.pid, signal.SIGHUP)
        wait_until(lambda: "SIGHUP is ignored" in broker.stderr())
        with Wire(broker.address) as wire:
            assert wire.call("Hello", HelloRequest(protocol=1)).protocol == 1
        assert broker.stop() == 0


def test_an_unknown_format_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InvalidOption, match="one of text, json"):
        LocalBroker(tmp_path / "broker", log_format="xml")


def test_a_line_of_text_is_one_line_whatever_clients_call_themselves() -> None:
    stream = io.StringIO()
    with LogOutput("text", "info", stream):
        say(logging.INFO, "connected", "a client\ncame", client='x" y=1\n2026 ERROR', peer="ipv4:1", rows=7)
        say(logging.DEBUG, "detail", "not said")
    (line,) = stream.getvalue().splitlines()
    assert line.endswith(r'INFO a client came client="x\" y=1\n2026 ERROR" peer=ipv4:1 rows=7')


def test_an_error_brings_its_traceback_and_a_writer_that_is_too_slow_costs_lines_not_time() -> None:
    class Stuck(io.StringIO):
        """A pipe whose reader waits to be woken."""

        def __init__(self) -> None:
            super().__init__()
            self.released, self._released = os.pipe()

        def write(self, text: str) -> int:
            os.read(self.released, 1)
            return super().write(text)

        def release(self) -> None:
            os.close(self._released)

    stream = Stuck()
    with LogOutput("json", "info", stream):
        for number in range(20_000):
            say(logging.INFO, "many", f"line {number}")
        stream.release()
        wait_until(lambda: stream.getvalue().count("\n") >= 10_000)
        say(logging.ERROR, "bug", "it broke", error=ValueError("boom"))
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    os.close(stream.released)
    assert "ValueError: boom" in lines[-1]["traceback"]
    missing = next(line for line in lines if line["event"] == "lines_dropped")
    assert len(lines) - 2 + int(missing["message"].split()[0]) == 20_000
