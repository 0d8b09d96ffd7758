"""A local broker process on a free loopback port, for notebooks, examples and tests."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final

from mq_broker.config import BrokerConfig
from mq_wire.errors import BrokerUnavailable

_READY: Final = re.compile(r"mq broker ready at (mq://\S+) \(pid (\d+), data (.+)\)\n")
_STDERR_SHOWN_BYTES: Final = 8192
#: Seconds to wait when another process uses the port of this broker.
_PORT_TAKEN_S: Final = 10.0


class LocalBroker:
    """A real broker process. It ends when this process ends, in whatever way.

        with LocalBroker() as broker:
            Producer(broker.address, queue="orders")

    Args:
        data_dir: its data directory, which is kept; None = a temporary directory, removed at `close()`.
        start_timeout: seconds until it must be ready; recovery of a large journal takes some time.
        settings: settings of `BrokerConfig`, such as `default_partitions=1`. The default port is a free one.

    Raises:
        InvalidOption: an unknown setting or a wrong value.
    """

    def __init__(
        self, data_dir: str | Path | None = None, *, start_timeout: float = 60.0, **settings: Any
    ) -> None:
        self._temporary = Path(tempfile.mkdtemp(prefix="mq-broker-")) if data_dir is None else None
        self.data_dir = Path(self._temporary or data_dir or "")
        self._settings = {"host": "127.0.0.1", "port": 0, **settings, "data_dir": str(self.data_dir)}
        self._start_timeout = start_timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] | None = None
        self._stderr_lock = threading.Lock()
        self._said = ""
        self._address = ""
        try:
            BrokerConfig.of(self._settings)
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        """`mq://127.0.0.1:54321`; the same for every start of this object, so that clients heal.

        Raises:
            BrokerUnavailable: it was never started.
        """
        if not self._address:
            raise BrokerUnavailable(
                f"the local broker on {self.data_dir} was never started: "
                "call start() or use it in a with block"
            )
        return self._address

    @property
    def pid(self) -> int:
        """Process id of the broker.

        Raises:
            BrokerUnavailable: it is not running.
        """
        if self._process is None:
            raise BrokerUnavailable(f"the local broker on {self.data_dir} is not running: call start()")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is running."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> LocalBroker:
        """Starts the process and returns when it is ready. Does nothing if it is running.

        Raises:
            BrokerUnavailable: it did not become ready; the error has its last lines on stderr.
        """
        deadline = time.monotonic() + _PORT_TAKEN_S
        while not self.running:
            try:
                self._start()
            except BrokerUnavailable as error:
                # While no broker listens, the system may give the port to an outgoing connection for a
                # moment, even to that of a client of this broker.
                if (
                    not self._settings["port"]
                    or "cannot listen" not in str(error)
                    or time.monotonic() > deadline
                ):
                    raise
        return self

    def _start(self) -> None:
        self._reap()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the process is reaped
        self._process = subprocess.Popen(
            self._command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr
        )
        try:
            line = self._ready_line(self._process)
        except BaseException:
            self._end(signal.SIGKILL)
            raise
        self._address = line[1]
        self._settings["port"] = int(self._address.rpartition(":")[2])

    def stop(self, timeout: float = 30.0) -> int:
        """Stops the process cleanly and returns its exit code. After `timeout` seconds it is killed."""
        return self._end(signal.SIGTERM, timeout)

    def kill(self) -> None:
        """Ends the process with SIGKILL, as in a crash. `start()` starts it again with its data, on the same
        port.
        """
        self._end(signal.SIGKILL)

    def close(self) -> None:
        """Stops the process and removes a temporary data directory."""
        self._end(signal.SIGTERM)
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def stderr(self) -> str:
        """Returns the last lines that the broker wrote to stderr since its last start."""
        with self._stderr_lock:
            if self._stderr is not None:
                file = self._stderr.fileno()
                # Without seek: the broker shares the position of the file with this process, and writes
                # there.
                shown = os.pread(
                    file, _STDERR_SHOWN_BYTES, max(0, os.fstat(file).st_size - _STDERR_SHOWN_BYTES)
                )
                self._said = shown.decode("utf-8", "replace").strip()
            return self._said

    def __enter__(self) -> LocalBroker:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _command(self) -> list[str]:
        flags = []
        for name, value in self._settings.items():
            flags += [
                f"--{name.replace('_', '-')}",
                str(value).lower() if isinstance(value, bool) else str(value),
            ]
        # The broker stops when its stdin ends. Its stdin is a pipe from this process, which ends with it.
        return [sys.executable, "-m", "mq_broker.console", "broker", "--stop-with-stdin", *flags]

    def _ready_line(self, process: subprocess.Popen[bytes]) -> re.Match[str]:
        assert process.stdout is not None
        deadline = time.monotonic() + self._start_timeout
        said = b""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not said.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise BrokerUnavailable(
                        f"the local broker was not ready within {self._start_timeout} s: {self.stderr()}"
                    )
                read = process.stdout.read1(4096)  # type: ignore[attr-defined]
                if not read:
                    code = process.wait()
                    raise BrokerUnavailable(
                        f"the local broker ended with exit code {code} before it was ready: {self.stderr()}"
                    )
                said += read
        match = _READY.fullmatch(said.decode())
        if match is None:
            raise BrokerUnavailable(f"the local broker printed {said!r} instead of its readiness line")
        return match

    def _end(self, number: int, timeout: float = 30.0) -> int:
        process = self._process
        if process is None:
            return 0
        process.send_signal(number)  # does nothing if the process has ended
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        self._reap()
        return code

    def _reap(self) -> None:
        process, self._process = self._process, None
        self.stderr()
        with self._stderr_lock:
            if self._stderr is not None:
                self._stderr.close()
                self._stderr = None
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()
