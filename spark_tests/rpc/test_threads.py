"""Threads: what the system allows is shared out, none is promised that is not there, and a broker whose
threads end, ends.
"""

from __future__ import annotations

import pathlib
import resource
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable

import grpc
import pytest

from mq_broker.config import BrokerConfig
from mq_broker.rpc.bounds import LiveStreams
from mq_broker.rpc.thread_limits import ThreadLimit, tightest
from mq_broker.rpc.threads import KEPT, Shares, Waits, Workers
from mq_wire.errors import Busy, InvalidOption
from mq_wire.v1.admin_pb2 import HelloRequest
from spark_tests.support.waiting import wait_until
from spark_tests.support.wire import Wire

UNLIMITED = "0 0 4294967295\n"


def system(root: pathlib.Path, files: dict[str, str] | None = None) -> pathlib.Path:
    """A file system with these files."""
    common = {"proc/self/uid_map": UNLIMITED, "proc/self/status": "CapEff:\tffffffffffffffff\n"}
    for name, text in {**common, **(files or {})}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def found(root: pathlib.Path) -> tuple[int, int]:
    limit = tightest(root)
    assert limit is not None
    return limit.limit, limit.used


def test_where_the_system_says_nothing_nothing_is_limited(tmp_path: pathlib.Path) -> None:
    assert tightest(system(tmp_path)) is None


def test_control_groups_of_both_versions_and_those_above_them(tmp_path: pathlib.Path) -> None:
    first = system(
        tmp_path / "v2",
        {
            "proc/self/cgroup": "0::/system.slice/mq.service\n",
            "sys/fs/cgroup/system.slice/mq.service/pids.max": "max\n",
            "sys/fs/cgroup/system.slice/mq.service/pids.current": "3\n",
            "sys/fs/cgroup/system.slice/pids.max": "300\n",
            "sys/fs/cgroup/system.slice/pids.current": "20\n",
        },
    )
    assert found(first) == (300, 20)
    # In a container the group may have the host's name.
    second = system(
        tmp_path / "v1",
        {
            "proc/self/cgroup": "8:pids:/kubepods/pod7\n1:cpu:/\n", "sys/fs/cgroup/pids/pids.max": "200\n",
            "sys/fs/cgroup/pids/pids.current": "190\n",
        },
    )  # fmt: skip
    assert found(second) == (200, 190)
    assert "TasksMax" in str(tightest(second))


def test_the_tightest_counts(tmp_path: pathlib.Path) -> None:
    root = system(
        tmp_path,
        {
            "proc/loadavg": "0.5 0.5 0.5 2/150 4711\n",
            "proc/sys/kernel/threads-max": "20000\n",
            "proc/sys/kernel/pid_max": "32768\n",
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/pids.max": "5000\n",
            "sys/fs/cgroup/pids.current": "9\n",
        },
    )
    assert found(root) == (5000, 9)
    (root / "proc/sys/kernel/pid_max").write_text("1000\n")
    assert found(root) == (1000, 150)


def test_the_limit_of_a_user_counts_all_that_the_user_runs(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (40, 40))
    monkeypatch.setattr("os.getuid", lambda: 1000)
    root = system(
        tmp_path,
        {
            "proc/10/status": "Uid:\t1000\t1000\nThreads:\t7\n",
            "proc/11/status": "Uid:\t1000\t0\nThreads:\t5\n",
            "proc/12/status": "Uid:\t1\t1\nThreads:\t90\n",
            "proc/self/status": "Uid:\t1000\nCapEff:\t0000000000000000\n",
        },
    )
    assert found(root) == (40, 12)
    (root / "proc/self/status").write_text("CapEff:\t0000000001000000\n")  # CAP_SYS_RESOURCE
    assert tightest(root) is None
    (root / "proc/self/uid_map").write_text("0 100000 65536\n")  # but not in a user namespace
    assert found(root) == (40, 12)


@pytest.mark.parametrize("left", [80, 100, 268, 1000, 3000, 5375, 5376, 10**6])
def test_shares_never_come_to_more_than_there_is(left: int) -> None:
    config = BrokerConfig()
    shares = Shares.of(config, ThreadLimit("it may have few", left + 20, 20))
    assert shares.threads + KEPT <= left
    assert min(shares.streams, shares.waits, shares.silent, shares.short) >= 4
    assert shares.streams <= config.streams_max
    assert bool(shares.cause) == (left < 5376)


def test_with_too_few_a_broker_does_not_begin() -> None:
    with pytest.raises(
        InvalidOption, match=r"threads, and it may have 100, of which 30 are in use: raise the limit"
    ):
        Shares.of(BrokerConfig(), ThreadLimit("it may have 100", 100, 30))


@pytest.fixture
def few_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sees to it that so many more threads can be started and no more."""
    start, left = threading.Thread.start, [0]

    def starting(thread: threading.Thread) -> None:
        if not left[0]:
            raise RuntimeError("can't start new thread")
        left[0] -= 1
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", starting)
    return lambda count: left.__setitem__(0, count)


def test_what_lasts_never_takes_the_threads_of_what_is_short(few_threads: Callable[[int], None]) -> None:
    few_threads(5)
    workers, release = Workers(2), threading.Event()
    streams = LiveStreams(100, 100, workers)
    with streams.counted("a"), streams.counted("a", 2):
        with pytest.raises(
            Busy,
            match=r"no thread beside its 5 \(can't start new thread\).*close streams, or raise the limit",
        ):
            streams.counted("a").__enter__()
        lasting = [workers.submit(release.wait, 10) for _ in range(3)]
        assert workers.submit(lambda: 7).result(10) == 7
    assert workers.reserved == 0
    with streams.counted("b", 3):  # there is room again
        assert workers.made == 5
    release.set()
    assert all(future.result(10) for future in lasting)
    workers.shutdown()


def test_a_reader_gives_its_thread_back_when_it_ends(few_threads: Callable[[int], None]) -> None:
    few_threads(3)
    workers, begun, release = Workers(1), threading.Event(), threading.Event()
    streams = LiveStreams(100, 100, workers)

    def reading() -> None:
        begun.set()
        release.wait(10)

    with streams.counted("a", 2):
        streams.aside(reading)
    assert begun.wait(10)
    assert workers.reserved == 1  # it outlives its stream
    release.set()
    workers.shutdown()
    assert workers.reserved == 0


def test_threads_that_nobody_needs_any_more_end() -> None:
    workers = Workers(2)
    workers.reserve(200)
    assert workers.made == 202
    before = threading.active_count()
    workers.release(200)
    assert workers.made == 2 + 64
    wait_until(lambda: threading.active_count() <= before - 136)
    workers.reserve(100)
    assert workers.made == 102
    assert workers.submit(lambda: 7).result(10) == 7
    workers.release(100)
    workers.shutdown()
    wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("mq-rpc_")])


def test_who_cannot_wait_on_a_thread_does_not(few_threads: Callable[[int], None]) -> None:
    few_threads(2)
    workers = Workers(1)
    waits = Waits(2, workers)
    assert [waits.enter(), waits.enter()] == [True, False]
    waits.leave()
    assert waits.enter()
    waits.leave()
    workers.shutdown()


def test_too_few_threads_for_the_start_are_told(few_threads: Callable[[int], None]) -> None:
    few_threads(3)
    with pytest.raises(
        InvalidOption, match="the broker cannot start: the system gives this broker no thread beside its 3"
    ):
        Workers(4)


def test_a_call_that_breaks_takes_no_thread_with_it() -> None:
    workers = Workers(1)
    with pytest.raises(ZeroDivisionError):
        workers.submit(lambda: 1 // 0).result(10)
    assert workers.submit(lambda: 7).result(10) == 7
    workers.shutdown()


SERVING_THREAD_ENDS = """
    import sys
    from mq_broker.config import BrokerConfig
    from mq_broker.process import BrokerProcess
    from mq_broker.rpc.threads import Workers

    def refuse(*arguments):
        raise RuntimeError("can't start new thread")

    Workers.submit = refuse
    sys.exit(BrokerProcess(BrokerConfig(port=0, data_dir=sys.argv[1]), "0").run())
"""


def test_a_broker_whose_serving_thread_ends_ends_with_it(tmp_path: pathlib.Path) -> None:
    """gRPC's own thread, which takes calls in: without it a process is there, and nobody is served."""
    arguments = [sys.executable, "-c", textwrap.dedent(SERVING_THREAD_ENDS), str(tmp_path / "broker")]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split()[4]
            with Wire(address) as wire, pytest.raises(grpc.RpcError, match=r"UNAVAILABLE|CANCELLED"):
                wire.call("Hello", HelloRequest(protocol=1))
            assert process.wait(20) == 71
            assert process.stderr is not None
            last = [line for line in process.stderr.read().splitlines() if "CRITICAL" in line]
            assert len(last) == 1
            assert "(_serve) failed: RuntimeError: can't start new thread; start it again" in last[0]
        finally:
            process.kill()
