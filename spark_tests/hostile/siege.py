"""A broker under attack: the process, a client that behaves beside it, and a watch on what the broker takes
meanwhile.

MQ_SIEGE_SCALE says how many times larger than in the short run each attack is (1).
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import grpc

from mq_broker import LocalBroker
from spark_tests.hostile import http2
from spark_tests.hostile.witness import Witness
from spark_tests.support.waiting import wait_until
from spark_tests.support.wire import Wire

SCALE: Final = float(os.environ.get("MQ_SIEGE_SCALE", "1"))
#: What one attack may cost the broker in anonymous memory, and what may be left of it when its connections
#: are gone.
PEAK_BYTES_MAX: Final = 400 << 20
LEFT_BYTES_MAX: Final = 50 << 20
#: How long what is left may take to be no more than that.
BACK_S_MAX: Final = 20.0
#: A broker that is told to stop has ended by then, whatever is done to it.
STOP_S_MAX: Final = 10.0
#: Memory of the broker, however many attacks it has had.
RSS_ANON_BYTES_MAX: Final = 700 << 20
#: Rounds of the innocent client that an attack at its height is held for.
ROUNDS: Final = 20
P99_S_MAX: Final = 5.0
#: A burst of thousands of calls is worked off before what comes behind it.
LONGEST_S_MAX: Final = 18.0
_SAMPLE_S: Final = 0.01
_RSS_ANON: Final = re.compile(r"RssAnon:\s+(\d+) kB")
_THREADS: Final = re.compile(r"Threads:\s+(\d+)")


@dataclass(frozen=True)
class Usage:
    """What a process has of each."""

    rss_anon_bytes: int = 0
    threads: int = 0
    files: int = 0

    def most(self, other: Usage) -> Usage:
        """The larger of each."""
        return Usage(
            max(self.rss_anon_bytes, other.rss_anon_bytes),
            max(self.threads, other.threads),
            max(self.files, other.files),
        )

    def __str__(self) -> str:
        return f"{self.rss_anon_bytes >> 20} MiB, {self.threads} threads, {self.files} files"


def usage(pid: int) -> Usage:
    """Returns what a process has now; nothing where it has ended."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
        files = len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return Usage()
    memory, threads = _RSS_ANON.search(status), _THREADS.search(status)
    if memory is None or threads is None:  # a zombie has neither
        return Usage()
    return Usage(int(memory[1]) << 10, int(threads[1]), files)


class Watch:
    """Looks at a process a hundred times a second, while its block lasts, and keeps the peaks."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ended = threading.Event()
        self.before = self.peak = usage(pid)

    def _look(self) -> None:
        while not self._ended.wait(_SAMPLE_S):
            self.peak = self.peak.most(usage(self._pid))

    def __enter__(self) -> Watch:
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self.peak = self.peak.most(usage(self._pid))


class Target:
    """What an attack knows of the broker, and what it holds open until the attack is over."""

    def __init__(self, address: str, scale: float = SCALE, seed: str = "") -> None:
        self.address = address
        self.port = int(address.rpartition(":")[2])
        self.rng = random.Random(seed)
        self._scale = scale
        self._stack = contextlib.ExitStack()

    def times(self, count: int) -> int:
        """How often something is done that is done `count` times in the short run."""
        return max(1, round(count * self._scale))

    def link(self, first: bytes = b"") -> socket.socket:
        """A bare TCP connection, on which `first` was sent."""
        return self._stack.enter_context(http2.connected(self.port, first))

    def link_from(self, host: str, first: bytes) -> socket.socket:
        """Another one, from another host of this machine, such as 127.0.0.9."""
        link = socket.create_connection(("127.0.0.1", self.port), timeout=2, source_address=(host, 0))
        self._stack.enter_context(link).sendall(first)
        return link

    def client(self, *, window: int = 65_535, reads: bool = True) -> http2.Client:
        """An HTTP/2 connection that keeps to flow control, and reads only on request."""
        return self._stack.enter_context(http2.Client(self.port, window=window, reads=reads))

    def wire(self) -> Wire:
        """An ordinary gRPC channel of its own."""
        return self._stack.enter_context(Wire(self.address))

    def new_wire(self) -> Wire:
        """Another one, whose end is the caller's."""
        return Wire(self.address)

    def held(self, what: Any) -> Any:
        """Enters a context that lasts as long as the attack."""
        return self._stack.enter_context(what)

    def later(self, what: Callable[[], object]) -> None:
        """Does something when the attack is over."""
        self._stack.callback(what)

    def close(self) -> None:
        """Everything that is open ends at once, as when the attacker is killed."""
        self._stack.close()


def side_by_side(tasks: Sequence[Callable[[], object]]) -> None:
    """Does all of them at the same time, and raises what the first of them raised that did."""
    errors: list[Exception] = []

    def one(task: Callable[[], object]) -> None:
        try:
            task()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(task,), daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@dataclass(frozen=True)
class Attack:
    """One attack.

    Attributes:
        run: does it, and returns at its height: what is still open stays open until the harness has seen
            enough.
        prepare: lawful work before it, such as rows to read; its memory is not the attack's.
        lawful: work that anybody may ask for; others then wait for longer.
        peak_bytes_max: what it may cost in memory; less than usual where the attack is small.
        left_bytes_max: what may be left of it when its connections are gone; more than usual where Python
            keeps it for the next time.
        seconds: how long `run` takes at least in the short run: the broker is told to stop at some moment of
            that.
        settings: of the broker.
        limits: command line before the broker's, such as `prlimit`.
    """

    name: str
    run: Callable[[Target], object]
    prepare: Callable[[Target], object] | None = None
    lawful: bool = False
    peak_bytes_max: int = PEAK_BYTES_MAX
    left_bytes_max: int = LEFT_BYTES_MAX
    seconds: float = 1.0
    settings: dict[str, Any] = field(default_factory=dict)
    limits: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """What an attack has cost."""

    attack: Attack
    before: Usage
    peak: Usage
    after: Usage
    back_s: float
    rounds: list[dict[str, Any]]

    def took_s(self, share: float) -> float:
        """The latency of the innocent client's rounds that this share of them keeps to, in seconds."""
        took = sorted(round_["took_s"] for round_ in self.rounds)
        return float(took[min(int(len(took) * share), len(took) - 1)]) if took else float("inf")

    def __str__(self) -> str:
        return (
            f"{self.attack.name}: {self.before} before, at most {self.peak}, {self.after} after "
            f"{self.back_s:.1f} s; {len(self.rounds)} "
            f"rounds of p50 {self.took_s(0.5) * 1000:.0f}, p99 {self.took_s(0.99) * 1000:.0f}, max "
            f"{self.took_s(1) * 1000:.0f} ms"
        )

    def check(self) -> None:
        """The promises that hold under every attack.

        Raises:
            AssertionError: one was broken.
        """
        errors = [round_["error"] for round_ in self.rounds if round_["error"]]
        assert not errors, f"{len(errors)} of {len(self.rounds)} rounds failed, such as {errors[0]}; {self}"
        cost = self.peak.rss_anon_bytes - self.before.rss_anon_bytes
        assert cost < self.attack.peak_bytes_max, f"{cost >> 20} MiB more at the peak; {self}"
        left = self.after.rss_anon_bytes - self.before.rss_anon_bytes
        assert left < self.attack.left_bytes_max, f"{left >> 20} MiB are left; {self}"


class LimitedBroker(LocalBroker):
    """A broker under limits of the system: its command stands behind another one, such as `prlimit`."""

    def __init__(self, folder: pathlib.Path, limits: Sequence[str] = (), **settings: Any) -> None:
        self._limits = list(limits)
        super().__init__(folder, **settings)

    def _command(self) -> list[str]:
        return [*self._limits, *super()._command()]


class Siege:
    """The broker, its innocent client, and what is checked at the end of each attack."""

    def __init__(self, folder: pathlib.Path, limits: Sequence[str] = (), **settings: Any) -> None:
        self.broker = LimitedBroker(folder, limits, **settings).start()
        try:
            self.witness = Witness(self.broker.address)
        except BaseException:
            self.broker.kill()
            raise
        self.port = int(self.broker.address.rpartition(":")[2])
        self.wire = Wire(self.broker.address)

    def rss_anon_bytes(self) -> int:
        return usage(self.broker.pid).rss_anon_bytes

    def check(self, rounds: int = 100) -> None:
        """While the attack goes on, others are served, and quickly."""
        seen = self.witness.wait_for(rounds)
        assert not [round_["error"] for round_ in seen if round_["error"]]
        took = sorted(round_["took_s"] for round_ in seen)
        assert took[int(len(took) * 0.99)] < P99_S_MAX, took[-5:]
        assert took[-1] < LONGEST_S_MAX, took[-5:]
        assert self.broker.running
        assert self.rss_anon_bytes() < RSS_ANON_BYTES_MAX

    def _hold(self, rounds: int, began: float) -> None:
        """Waits for so many rounds, or for the first that fails."""
        height = time.monotonic()

        def enough() -> bool:
            seen = self.witness.since(began)
            return any(r["error"] for r in seen) or sum(r["began"] >= height for r in seen) >= rounds

        wait_until(enough, 180, f"{rounds} rounds of the innocent client, or one that fails")

    def endure(
        self, attack: Attack, rounds: int = ROUNDS, scale: float = SCALE, *, measured: bool = False
    ) -> Report:
        """Goes through an attack, holds it at its height for so many rounds of the innocent client, ends it
        and waits until its memory is back, for as long as that may take; not where it has failed already,
        unless it is `measured`.

        Raises:
            AssertionError: the innocent client made no progress.
        """
        target = Target(self.broker.address, scale, attack.name)
        try:
            if attack.prepare is not None:
                attack.prepare(target)
                self.witness.wait_for(5)
            with Watch(self.broker.pid) as watch:
                began = time.monotonic()
                try:
                    attack.run(target)
                    self._hold(rounds, began)
                finally:
                    target.close()
                seen = self.witness.since(began)
                ended = time.monotonic()
                if (
                    watch.peak.rss_anon_bytes - watch.before.rss_anon_bytes < attack.peak_bytes_max
                    or measured
                ):
                    with contextlib.suppress(AssertionError):  # the report says what is left
                        wait_until(
                            lambda: (
                                self.rss_anon_bytes() < watch.before.rss_anon_bytes + attack.left_bytes_max
                            ),
                            BACK_S_MAX,
                        )
                return Report(
                    attack, watch.before, watch.peak, usage(self.broker.pid), time.monotonic() - ended, seen
                )
        finally:
            target.close()

    def end(self) -> None:
        """The innocent client has lost nothing and has nothing twice; the broker ends promptly, and no error
        was a bug of its own.
        """
        try:
            self.witness.close()
        finally:
            self.wire.channel.close()
            code = self.broker.stop(STOP_S_MAX)
        assert code == 0, (
            f"told to stop, the broker ended with {code} after {STOP_S_MAX} s at most: {self.broker.stderr()}"
        )
        assert "Traceback" not in self.broker.stderr(), self.broker.stderr()

    def abandon(self) -> None:
        """Ends both at once: one of them may hang."""
        self.broker.kill()
        self.witness.kill()
        self.wire.channel.close()


def stop_during(attack: Attack, folder: pathlib.Path, rng: random.Random) -> None:
    """Tells a broker to stop at some moment of an attack.

    Raises:
        AssertionError: it did not, or not in time, or it says that something of its own went wrong.
    """
    broker = LimitedBroker(folder, attack.limits, **attack.settings).start()
    target, unheard = Target(broker.address, SCALE, attack.name), list[BaseException]()

    def attacking() -> None:
        try:
            attack.run(target)
        except (OSError, grpc.RpcError, AssertionError, ValueError) as error:
            unheard.append(error)  # what an attacker sees of a broker that ends

    try:
        if attack.prepare is not None:
            attack.prepare(target)
        thread = threading.Thread(target=attacking, daemon=True)
        thread.start()
        thread.join(rng.uniform(0, attack.seconds))
        code = broker.stop(STOP_S_MAX)
        assert code == 0, (
            f"told to stop during {attack.name}, the broker ended with {code}: {broker.stderr()}"
        )
        assert "Traceback" not in broker.stderr(), broker.stderr()
    finally:
        broker.kill()
        target.close()
