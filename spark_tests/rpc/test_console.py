"""The command `mq`, each time as a process of its own."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from mq_wire.errors import SessionClosed
from mq_wire.v1.subscribe_pb2 import ConsumerRef, HoldRunRequest, PlanRequest
from pyspark_mq import Consumer
from spark_tests.support.wire import Wire, batch_of, values_of

if TYPE_CHECKING:
    from mq_broker import LocalBroker


class Mq:
    def __init__(self, address: str) -> None:
        self.address = address
        self.warned = ""

    def __call__(self, *arguments: str, stdin: str = "", code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "mq_broker.console", *arguments, "--broker", self.address],
            input=stdin, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        self.warned = done.stderr
        return done.stdout if code == 0 else done.stderr


@pytest.fixture
def mq(module_broker: LocalBroker) -> Mq:
    return Mq(module_broker.address)


def test_send_and_receive(mq: Mq, queue_name: str) -> None:
    assert mq("send", queue_name, "one", "two") == f"sent 2 messages to {queue_name}\n"
    assert (
        mq("send", queue_name, "urgent", "--priority", "9", "--key", "k", "--header", "a=b")
        == f"sent 1 message to {queue_name}\n"
    )
    first = mq("receive", queue_name, "--verbose")
    assert first.endswith("\turgent\n")
    assert "priority=9" in first
    assert "key=k" in first
    assert "a=b" in first
    assert sorted(mq("receive", queue_name, "--count", "2").split()) == ["one", "two"]
    assert "depth" in mq("stats", queue_name)
    assert mq("receive", queue_name, "--count", "0", "--timeout", "0.2") == ""


def test_lines_of_stdin(mq: Mq, queue_name: str) -> None:
    mq("send", queue_name, stdin="a\nb\nc\n")
    assert sorted(mq("receive", queue_name, "--count", "3").splitlines()) == ["a", "b", "c"]


def test_without_ack_the_message_stays(mq: Mq, queue_name: str) -> None:
    mq("send", queue_name, "stays")
    assert mq("receive", queue_name, "--no-ack") == "stays\n"
    assert mq("receive", queue_name) == "stays\n"


def test_queues_create_delete(mq: Mq, queue_name: str) -> None:
    assert mq("create", queue_name, "--partitions", "3") == f"created {queue_name} with 3 partitions\n"
    heads, line = mq("queues", queue_name).splitlines()
    assert heads.split()[:3] == ["QUEUE", "PARTITIONS", "READY"]
    assert line.split()[:3] == [queue_name, "3", "0"]
    mq("send", queue_name, "x")
    assert "--force" in mq("delete", queue_name, code=1)
    assert mq("delete", queue_name, "--force") == f"deleted {queue_name} with 1 messages\n"
    assert len(mq("queues", queue_name).splitlines()) == 1


def test_stats_of_the_broker(mq: Mq) -> None:
    assert "memory (RssAnon)" in mq("stats")


def test_consumers(mq: Mq) -> None:
    assert mq("consumers", "list").split()[:2] == ["QUEUE", "CONSUMER"]
    assert "there is no consumer 'ghost'" in mq("consumers", "release", "ghost", code=1)


def test_what_a_named_consumer_holds_is_shown_and_released(mq: Mq, wire: Wire, queue_name: str) -> None:
    name = f"report-{queue_name}"
    wire.publisher(queue_name).send(batch_of(values_of(10)))
    run = next(stream := wire.hold(HoldRunRequest())).run
    wire.call("Plan", PlanRequest(who=ConsumerRef(destination=queue_name, consumer=name, run=run)))
    heads, line = (text.split() for text in mq("consumers", "list", queue_name).splitlines())
    shown = dict(zip(heads, line, strict=False))
    assert (shown["CONSUMER"], shown["CONNECTED"], shown["UNACKNOWLEDGED"]) == (name, "yes", "10")
    assert (
        mq("consumers", "release", name)
        == f"released {name} of {queue_name}: 10 messages returned, 0 acknowledged\n"
    )
    assert f"a running query used the name {name}" in mq.warned
    assert len(mq("consumers", "list", queue_name).splitlines()) == 1
    assert wire.stats(queue_name).ready_rows == 10
    stream.cancel()


def test_options_may_stand_before_values(mq: Mq, queue_name: str) -> None:
    assert (
        mq("send", queue_name, "--priority", "9", "hello", "--key", "k", "you")
        == f"sent 2 messages to {queue_name}\n"
    )
    lines = mq("receive", "--verbose", queue_name, "--count", "2").splitlines()
    assert [line.split("\t")[1] for line in lines] == ["hello", "you"]
    assert all("priority=9" in line and "key=k" in line for line in lines)


def test_creating_what_is_there_says_so(mq: Mq, queue_name: str) -> None:
    assert mq("create", queue_name, "--partitions", "3") == f"created {queue_name} with 3 partitions\n"
    assert mq("create", queue_name) == f"{queue_name} existed already, with 3 partitions\n"
    assert "exists with 3 partitions, not 4" in mq("create", queue_name, "--partitions", "4", code=1)


def test_a_misspelt_queue_is_refused_and_not_made(mq: Mq, queue_name: str) -> None:
    for command in (
        ["receive", queue_name],
        ["receive", queue_name, "--count", "0"],
        ["stats", queue_name],
    ):
        assert f"mq create {queue_name}" in mq(*command, code=1)
    assert queue_name not in mq("queues")


def test_a_connected_consumer_is_shown_and_ended(mq: Mq, wire: Wire, queue_name: str) -> None:
    wire.publisher(queue_name).send(batch_of(values_of(10)))
    with Consumer(mq.address, queue=queue_name) as consumer:
        assert consumer.receive(timeout=20)
        heads, line = mq("consumers", "list", queue_name).splitlines()
        shown = dict(zip(heads.split(), line.split(maxsplit=13), strict=True))
        assert (shown["CONSUMER"], shown["CONNECTED"], shown["UNACKNOWLEDGED"]) == ("-", "yes", "10")
        assert shown["CLIENT"].startswith("pyspark-mq ")
        session = shown["SESSION"]
        assert (
            mq("consumers", "end", session)
            == f"ended session {session} of {queue_name}: 10 messages returned\n"
        )
        with pytest.raises(SessionClosed, match="ended by an operator"):
            consumer.receive(timeout=20)
    assert f"no consumer with session {session} is connected" in mq("consumers", "end", session, code=1)
    assert "`mq consumers end SESSION`" in mq("consumers", "release", "-", code=1)


def test_receive_says_that_the_broker_went_away(broker: LocalBroker, queue_name: str) -> None:
    flags = ["--count", "0", "--timeout", "2", "--broker", broker.address]
    command = [sys.executable, "-m", "mq_broker.console", "receive", queue_name, *flags]
    with Wire(broker.address) as wire:
        wire.publisher(queue_name).send(batch_of(values_of(10)))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as receiving:
        assert receiving.stdout is not None
        for _ in range(10):
            assert receiving.stdout.readline()
        broker.kill()
        _, stderr = receiving.communicate(timeout=60)
    assert receiving.returncode == 1
    assert "has been away for" in stderr
    assert broker.address in stderr


def test_errors_are_one_line(mq: Mq) -> None:
    text = mq("send", "bad/name", "x", code=1)
    assert text.startswith("mq: ")
    assert len(text.splitlines()) == 1
    nobody = Mq("mq://127.0.0.1:1")("queues", code=1)
    assert "127.0.0.1:1" in nobody
    assert len(nobody.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    ["send q x --priority 10", "receive q --count -1", "create q --partitions -1", "broker --port x"],
)
def test_wrong_numbers_are_wrong_arguments(arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mq_broker.console", *arguments.split()],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "error: argument" in done.stderr


def test_a_line_that_is_too_large_is_named_and_what_is_stored_counted(
    mq: Mq, wire: Wire, queue_name: str, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "lines").write_bytes(b"1\n2\n3\n" + b"4" * 5_000_000 + b"\n5\n")
    text = mq("send", queue_name, "--file", str(tmp_path / "lines"), code=1)
    assert "line 4: " in text
    assert "the 3 before it are stored" in text
    assert len(text.splitlines()) == 1
    assert wire.stats(queue_name).ready_rows == 3


def test_a_staged_set_that_is_not_there_is_refused(mq: Mq) -> None:
    assert f"no staged set {'ab' * 16}" in mq("staged", "discard", "ab" * 16, code=1)


@pytest.mark.parametrize("count", ["0", "1500"])
def test_without_ack_any_count_is_shown(mq: Mq, queue_name: str, count: str) -> None:
    lines = "".join(f"{number}\n" for number in range(1700))
    mq("send", queue_name, stdin=lines)
    shown = mq("receive", queue_name, "--no-ack", "--count", count, "--timeout", "2").splitlines()
    assert len(set(shown)) == (int(count) or 1700)
    assert mq.warned == ""
    assert mq("receive", queue_name, "--count", "1").strip() in lines.split()


def run(*arguments: str | bytes, **environment: str) -> tuple[int, str]:
    """Exit code and stderr of a command."""
    command = [sys.executable, "-m", "mq_broker.console", *arguments]
    done = subprocess.run(
        command, capture_output=True, check=False, timeout=60, env={**os.environ, **environment}
    )
    assert b"Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stderr.decode()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("create q --partitions 99999999999999999999", "--partitions: '99999999999999999999' is not allowed"),
        ("create q --partitions 0", "--partitions: '0' is not allowed: give 1 to"),
        ("consumers end -1", "SESSION"),
        ("consumers end 99999999999999999999", "SESSION: '99999999999999999999' is not allowed"),
        ("send q x --header nix", "--header: 'nix' is not NAME=VALUE"),
        ("send q x --timeout 0", "--timeout: '0' is not allowed"),
        ("send q x --timeout nan", "--timeout: 'nan' is not allowed"),
        ("receive q --timeout -1", "--timeout"),
        ("queues --broker nonsense", "--broker: address 'nonsense' does not begin with mq://"),
        ("queues --broker mq://localhost:99999", "--broker"),
        ("send q x --file /nonexistent", "values and --file were given"),
    ],
)
def test_arguments_that_nothing_can_be_done_with(arguments: str, words: str) -> None:
    code, stderr = run(*arguments.split())
    assert code == 2, stderr
    assert words in stderr.splitlines()[-1]


def test_a_missing_argument_is_named_and_no_other() -> None:
    assert "required: QUEUE\n" in run("send")[1]


@pytest.mark.parametrize("locale", [{}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}])
def test_arguments_that_are_no_text(mq: Mq, queue_name: str, locale: dict[str, str]) -> None:
    broker = ("--broker", mq.address)
    code, stderr = run("send", queue_name, b"v\xff", *broker, **locale)
    assert (code, stderr.splitlines()[-1]) == (
        2,
        r"mq send: error: argument VALUE: 'v\xff' is not UTF-8: send bytes as lines of stdin, or of --file",
    )
    code, stderr = run("send", queue_name, "x", "--key", b"\xff", *broker, **locale)
    assert (code, stderr.splitlines()[-1][:45]) == (2, r"mq send: error: argument --key: '\xff' is not")
    assert run("send", queue_name, "h\u00e4", *broker, **locale) == (0, "")
    assert mq("receive", queue_name) == "h\u00e4\n"


def test_only_what_is_there_is_deleted_and_what_cannot_be_is_not_advised(mq: Mq, queue_name: str) -> None:
    assert mq("delete", queue_name, code=1) == (
        f"mq: queue {queue_name!r} does not exist: `mq queues` lists all queues\n"
    )
    for command in ("stats", "delete"):
        assert "mq create" not in mq(command, "a b", code=1)
