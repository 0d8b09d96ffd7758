"""The broker as a process: how it starts, refuses to start, stops and comes back."""

from __future__ import annotations

import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import grpc
import pytest

from mq_broker import LocalBroker
from mq_broker.journal.directory import FORMAT_VERSION
from mq_wire.errors import BrokerUnavailable, InvalidOption
from mq_wire.v1.admin_pb2 import HelloRequest, StatsRequest
from mq_wire.v1.subscribe_pb2 import ConsumerRef, HoldRunRequest, OpenRangeRequest, PlanRequest
from spark_tests.support.waiting import wait_until
from spark_tests.support.wire import Wire, batch_of, error_code, open_consumer, values_of

if TYPE_CHECKING:
    from collections.abc import Iterator


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def data_dir(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "broker"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "mq_broker.console", *arguments]


def test_the_second_broker_on_a_directory_is_refused(broker: LocalBroker) -> None:
    with pytest.raises(BrokerUnavailable, match=r"in use|another broker"):
        LocalBroker(broker.data_dir).start()
    with Wire(broker.address) as wire:
        assert wire.call("Hello", HelloRequest(protocol=1)).protocol == 1


def test_a_directory_of_an_unknown_version_is_refused(data_dir: pathlib.Path) -> None:
    with LocalBroker(data_dir):
        pass
    identity = data_dir / "identity"
    identity.write_bytes(identity.read_bytes().replace(b'"format": %d' % FORMAT_VERSION, b'"format": 99'))
    with pytest.raises(BrokerUnavailable) as caught:
        LocalBroker(data_dir).start()
    assert "exit code 1" in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_a_foreign_directory_is_refused_and_left_alone(data_dir: pathlib.Path) -> None:
    data_dir.mkdir()
    (data_dir / "thesis.tex").write_text("important")
    with pytest.raises(BrokerUnavailable, match="exit code 1"):
        LocalBroker(data_dir).start()
    assert [path.name for path in data_dir.iterdir() if path.name != "lock"] == ["thesis.tex"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly(data_dir: pathlib.Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        command("broker", "--data-dir", str(data_dir), "--port", "0"), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process, process.stdout:
        line = process.stdout.readline()
        address, details = line.removeprefix("mq broker ready at ").split(" ", 1)
        assert details == f"(pid {process.pid}, data {data_dir})\n"
        with Wire(address) as wire:
            wire.publisher("q").send(batch_of(values_of(10)))
            consumer = open_consumer(wire, "q", 100)
            run = wire.hold(HoldRunRequest())
            next(run)
            process.send_signal(number)
            assert process.wait(20) == 0
            assert process.stdout.read() == ""
            with pytest.raises(grpc.RpcError) as caught:
                list(consumer)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            with pytest.raises(grpc.RpcError) as caught:
                next(run)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    with LocalBroker(data_dir) as again, Wire(again.address) as wire:
        assert wire.stats("q").ready_rows == 10


def test_a_stop_of_the_broker_ends_no_run(broker: LocalBroker) -> None:
    """The query waits for the broker to come back: what it has planned and opened is still its own."""
    with Wire(broker.address) as wire:
        wire.publisher("q").send(batch_of(values_of(10)))
        held = wire.hold(HoldRunRequest())
        who = ConsumerRef(destination="q", run=next(held).run)
        plan = wire.call("Plan", PlanRequest(who=who))
        who.cluster_id, who.destination_id, who.incarnation = (
            plan.cluster_id,
            plan.destination_id,
            plan.incarnation,
        )
        assert (
            sum(part.rows for part in wire.call("OpenRange", OpenRangeRequest(who=who, end=plan.end)).parts)
            == 10
        )
        assert broker.stop() == 0
    broker.start()
    with Wire(broker.address) as wire:
        held = wire.hold(HoldRunRequest(run=who.run))
        assert next(held).run == who.run
        assert (
            sum(part.rows for part in wire.call("OpenRange", OpenRangeRequest(who=who, end=plan.end)).parts)
            == 10
        )
        held.cancel()
        wait_until(lambda: wire.stats("q").ready_rows == 10, 10, "its end still counts")


def test_the_config_file_of_the_project_runs(data_dir: pathlib.Path) -> None:
    file = pathlib.Path(__file__).parents[2] / "conf" / "broker.toml"
    process = subprocess.Popen(
        command("broker", "--config", str(file), "--data-dir", str(data_dir), "--port", "0"),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process:
        assert process.stdout.readline().startswith("mq broker ready at mq://127.0.0.1:")
        process.terminate()
        assert process.wait(20) == 0


@pytest.mark.parametrize(
    "flags", [["--config", "nowhere.toml"], ["--default-partitions", "0"], ["--segment-bytes", "33554433"]]
)
def test_wrong_flags_are_one_clear_line(data_dir: pathlib.Path, flags: list[str]) -> None:
    done = subprocess.run(
        command("broker", "--data-dir", str(data_dir), "--port", "0", *flags),
        stderr=subprocess.PIPE,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("mq: ")


def test_kill_and_start_keep_address_and_rows(broker: LocalBroker) -> None:
    address = broker.address
    with Wire(address) as wire:
        wire.publisher("q").send(batch_of(values_of(10)))
    first = broker.pid
    broker.kill()
    assert not broker.running
    broker.start()
    assert broker.address == address
    assert broker.pid != first
    with Wire(address) as wire:
        assert wire.stats("q").ready_rows == 10


def test_it_ends_with_the_process_that_started_it(data_dir: pathlib.Path) -> None:
    code = (
        f"import os, mq_broker; b = mq_broker.LocalBroker({str(data_dir)!r}).start(); print(b.pid, "
        f"flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False)
    pid = int(done.stdout)
    wait_until(lambda: not lives(pid), message="the broker outlived the process that started it")


def test_a_client_that_reads_nothing_does_not_keep_it_from_stopping(broker: LocalBroker) -> None:
    with Wire(broker.address) as wire:
        publisher = wire.publisher("q")
        for _ in range(60):
            publisher.send(batch_of([b"x" * 100_000] * 10))
        # Tens of megabytes on their way to somebody who has not read one of them.
        consumer = open_consumer(wire, "q", 1000)
        wait_until(lambda: wire.stats("q").assigned_rows > 100)
        assert broker.stop(timeout=20) == 0
        with pytest.raises(grpc.RpcError):
            list(consumer)


def test_a_port_that_is_taken_for_a_moment_is_waited_for(broker: LocalBroker) -> None:
    address = broker.address
    broker.stop()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", int(address.rpartition(":")[2])))
        other.listen()
        starter = threading.Thread(target=broker.start)
        starter.start()
        # The first attempt has failed when the broker has said so.
        wait_until(lambda: "cannot listen" in broker.stderr())
    starter.join(30)
    assert broker.running
    assert broker.address == address


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_ipv6(data_dir: pathlib.Path) -> None:
    with LocalBroker(data_dir, host="::1") as broker:
        assert broker.address.startswith("mq://[::1]:")
        with Wire(broker.address) as wire:
            assert wire.call("Hello", HelloRequest(protocol=1)).protocol == 1


def test_a_temporary_directory_goes_when_the_broker_does() -> None:
    with LocalBroker() as broker:
        kept = broker.data_dir
        assert kept.is_dir()
    assert not kept.exists()


#: A broker whose disk fails while it syncs the turn that the test asks for; the sync after it would succeed,
#: which is the trap.
FAILING = """
import errno, os, sys, threading
from mq_broker.console.main import main
sync, armed = os.fdatasync, sys.argv.pop()
def fdatasync(descriptor):
    if threading.current_thread().name == "mq-engine" and os.path.exists(armed):
        os.remove(armed)
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    sync(descriptor)
os.fdatasync = fdatasync
sys.exit(main())
"""


def test_a_failed_sync_ends_the_process_without_an_answer(
    data_dir: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    armed = tmp_path / "armed"
    process = subprocess.Popen(
        [sys.executable, "-c", FAILING, "broker", "--data-dir", str(data_dir), "--port", "0", str(armed)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        address = process.stdout.readline().split()[4]
        with Wire(address) as wire:
            publisher = wire.publisher("q")
            publisher.send(batch_of(values_of(10)))
            armed.touch()
            publisher.put(batch_of(values_of(10)))
            with pytest.raises(grpc.RpcError) as caught:
                publisher.answer()
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert process.wait(20) == 70
        assert "storage failed" in process.stderr.read()
    with LocalBroker(data_dir) as again, Wire(again.address) as wire:
        assert wire.stats("q").ready_rows in (10, 20)


def test_wrong_settings_are_refused_before_anything_starts() -> None:
    with pytest.raises(InvalidOption, match="did you mean 'default_partitions'"):
        LocalBroker(default_partition=3)
    with pytest.raises(InvalidOption, match="give 1 to 1024"):
        LocalBroker(default_partitions=0)


def test_settings_reach_the_broker() -> None:
    with (
        LocalBroker(default_partitions=7, auto_create_destinations=False) as broker,
        Wire(broker.address) as wire,
    ):
        stream = wire.publisher("q")
        assert stream.send(batch_of(values_of(1))).error.code == "UNKNOWN_DESTINATION"


def test_a_port_in_use_is_one_clear_line(broker: LocalBroker, tmp_path: pathlib.Path) -> None:
    port = broker.address.rpartition(":")[2]
    done = subprocess.run(
        command("broker", "--data-dir", str(tmp_path / "other"), "--port", port),
        stderr=subprocess.PIPE,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert [line for line in done.stderr.splitlines() if line.startswith("mq: ")] == [
        done.stderr.splitlines()[-1]
    ]
    assert port in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "other").exists(), "a broker that never ran has no data"


def holds(wire: Wire) -> bool:
    """Whether one more run could be held."""
    try:
        return bool(next(wire.hold(HoldRunRequest())).run)
    except grpc.RpcError:
        return False


@pytest.fixture
def small_broker(tmp_path: pathlib.Path) -> Iterator[LocalBroker]:
    with LocalBroker(tmp_path / "small", streams_max=260, unary_threads=8, waits_max=4) as broker:
        yield broker


def test_idle_consumers_leave_all_other_calls_their_capacity(small_broker: LocalBroker) -> None:
    with Wire(small_broker.address) as wire:
        consumers = [open_consumer(wire, f"q{number % 10}", 10) for number in range(200)]
        for _ in range(100):
            assert wire.call("Stats", StatsRequest()).broker.sessions == 200
        assert wire.publisher("q3").send(batch_of(values_of(5))).receipt.rows == 5
        for consumer in consumers[::2]:
            consumer.cancel()
        wait_until(lambda: wire.call("Stats", StatsRequest()).broker.sessions == 100)


def test_too_many_streams_are_busy_until_some_end(small_broker: LocalBroker) -> None:
    with Wire(small_broker.address) as wire:
        # The last fifth is for other connections.
        held = [wire.hold(HoldRunRequest()) for _ in range(208)]
        for stream in held:
            next(stream)
        with pytest.raises(grpc.RpcError) as caught:
            next(wire.hold(HoldRunRequest()))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert error_code(caught.value) == "BUSY"
        held[0].cancel()

        wait_until(lambda: holds(wire))


def test_one_connection_does_not_get_all_streams(tmp_path: pathlib.Path) -> None:
    with (
        LocalBroker(tmp_path / "fair", streams_max=30, streams_per_connection_max=20) as broker,
        Wire(broker.address) as greedy,
    ):
        held = [greedy.hold(HoldRunRequest()) for _ in range(20)]
        for stream in held:
            next(stream)
        with pytest.raises(grpc.RpcError, match="streams_per_connection_max") as caught:
            next(greedy.hold(HoldRunRequest()))
        assert error_code(caught.value) == "BUSY"
        with Wire(broker.address) as other:
            assert other.publisher("q").send(batch_of(values_of(5))).receipt.rows == 5
        held[0].cancel()
        wait_until(lambda: holds(greedy))


#: A consumer on a host that goes silent: it takes rows and says nothing any more.
SILENT = """
import os, signal, sys
import spark_tests.support.wire as client
client.TIMEOUT_S = None
from spark_tests.support.wire import Wire, open_consumer
with Wire(sys.argv[1]) as wire:
    stream = open_consumer(wire, "q", 100)
    stream.next()
    os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_silent_host_is_noticed_and_what_it_held_goes_back(data_dir: pathlib.Path) -> None:
    with (
        LocalBroker(data_dir, keepalive_ms=1000, keepalive_timeout_ms=500) as broker,
        Wire(broker.address) as wire,
    ):
        wire.publisher("q").send(batch_of(values_of(10)))
        silent = subprocess.Popen(
            [sys.executable, "-c", SILENT, broker.address], cwd=pathlib.Path(__file__).parents[2]
        )
        with silent:
            try:
                wait_until(lambda: wire.stats("q").assigned_rows == 10, timeout=30)
                wait_until(lambda: wire.stats("q").ready_rows == 10, timeout=15)
            finally:
                silent.kill()
