"""The broker process: starts the parts of a broker, prints when it is ready, and stops them.

It ends only if it is told to, if it cannot start, if its storage fails, or if one of its threads ends by an
error.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Final

from mq_broker import memory
from mq_broker.config import BrokerConfig
from mq_broker.core.commands import Settings
from mq_broker.engine.housekeeping import SnapshotSettings
from mq_broker.engine.opening import open_engine
from mq_broker.journal.directory import DataDirectory
from mq_broker.journal.lock import DirectoryWatch
from mq_broker.journal.settings import JournalSettings
from mq_broker.log import LAST_LINES_S, LogOutput, say
from mq_broker.outlet import within, write_while
from mq_broker.rpc.address import bracketed, check_address
from mq_broker.rpc.connections import FILES_KEPT, connections_that_fit
from mq_broker.rpc.server import Server
from mq_broker.rpc.thread_limits import tightest
from mq_broker.rpc.threads import Shares

#: Signals that stop a broker cleanly, and signals that are ignored, with the event that is logged for them.
_STOPPED_BY: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
_IGNORED: Final[dict[int, str]] = {
    signal.SIGHUP: "hangup",
    signal.SIGUSR1: "signal_ignored",
    signal.SIGUSR2: "signal_ignored",
    signal.SIGALRM: "signal_ignored",
    signal.SIGVTALRM: "signal_ignored",
    signal.SIGPROF: "signal_ignored",
    signal.SIGXCPU: "signal_ignored",
}
#: Exit code after a failed write or sync. Nothing was answered afterwards; the next start finds out what is
#: on the disk.
EXIT_STORAGE_FAILED: Final = 70
#: Exit code after a thread of the broker ended by an unexpected error: the rest of the broker might never
#: serve again.
EXIT_THREAD_FAILED: Final = 71
#: Bytes that stay free on the disk, in addition to the estimated size of snapshots.
_SPARE_BYTES: Final = 4 << 20


class BrokerProcess:
    """Runs one broker in this process."""

    def __init__(self, config: BrokerConfig, version: str) -> None:
        self._config = config
        self._version = version
        self._told, self._tell = os.pipe()
        os.set_blocking(self._tell, False)
        self._ready = False

    def run(self, *, stop_with_stdin: bool = False) -> int:
        """Serves until SIGTERM, SIGINT or SIGQUIT, or with `stop_with_stdin` until stdin ends. Returns 0.

        Raises:
            MqError: it could not start.
        """
        memory.keep_little()
        self._listen_for_signals()
        if stop_with_stdin:
            threading.Thread(target=self._watch_stdin, name="mq-stdin", daemon=True).start()
        config = self._config
        settings = _core_settings(config), _journal_settings(config), _snapshot_settings(config)
        connections = _connections_and_checks(config)
        log = LogOutput(config.log_format, config.log_level)
        threading.excepthook = lambda ended: _end(log, ended)
        with log, DataDirectory.open(config.data_dir) as directory, contextlib.ExitStack() as watching:
            self._warn(connections, directory)
            engine = open_engine(directory, *settings, on_failure=lambda error: _die(log, error))
            engine.start()
            try:
                watching.enter_context(
                    DirectoryWatch(
                        lambda: directory.check(lambda: engine.file_in_hand), lambda error: _die(log, error)
                    )
                )
                server = Server(engine, config, directory.identity.cluster.bytes, self._version)
            except BaseException:
                engine.stop()
                raise
            try:
                port = server.start()
                self._ready = True
                _say_ready(
                    f"mq broker ready at mq://{bracketed(config.host)}:{port} "
                    f"(pid {os.getpid()}, data {directory.path})"
                )
                say(
                    logging.INFO,
                    "ready",
                    "the broker is ready",
                    port=port,
                    pid=os.getpid(),
                    data=directory.path,
                    version=self._version,
                )
                while event := _IGNORED.get(came := os.read(self._told, 1)[0]):
                    name = signal.Signals(came).name
                    say(
                        logging.WARNING,
                        event,
                        f"{name} is ignored: settings are read only at the start; SIGTERM stops the broker",
                    )
                say(logging.INFO, "stopping", "the broker was told to stop")
            finally:
                _ignore_more_signals()
                is_closed = server.stop()
                engine.stop()
        if not is_closed:
            os._exit(0)  # all parts of the broker have ended, but the interpreter would wait for gRPC
        return 0

    def _warn(self, connections: int, directory: DataDirectory) -> None:
        if connections < self._config.connections_max:
            say(
                logging.WARNING,
                "few_connections",
                f"only {connections} connections are possible, not {self._config.connections_max} "
                f"(connections_max): this process may have {connections + FILES_KEPT} files open: "
                "raise the limit (ulimit -n, LimitNOFILE=)",
            )
        if not directory.identity.created:
            say(
                logging.WARNING,
                "data_directory_made",
                f"a new, empty data directory was made at {directory.path}",
            )

    def _listen_for_signals(self) -> None:
        # The system's signal handler writes the byte at once. A Python handler runs only when the main thread
        # runs again, which may be never if the signal arrives just before that thread goes to sleep.
        signal.set_wakeup_fd(self._tell, warn_on_full_buffer=False)
        for number in _STOPPED_BY:
            signal.signal(number, self._on_signal)
        for ignored in _IGNORED:
            signal.signal(ignored, lambda number, frame: None)  # its byte is written nevertheless

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._ready:
            _ignore_more_signals()
            raise SystemExit(0)  # recovery may be interrupted at any moment

    def _watch_stdin(self) -> None:
        # Without sys.stdin: a daemon thread that holds the lock of its buffer is an error when the
        # interpreter ends.
        while os.read(0, 4096):
            pass
        os.write(self._tell, b"\0")


def _connections_and_checks(config: BrokerConfig) -> int:
    """Returns the number of connections that the system allows. Refuses what cannot be served, before a data
    directory is made and a thread is started.
    """
    check_address(config.host, config.port)
    Shares.of(config, tightest())
    return connections_that_fit(config.connections_max)


def _ignore_more_signals() -> None:
    """From now on, signals that stop a broker do nothing: it is stopping.

    The interpreter, when it ends, gives signals with a Python handler back to the system, whose own handler
    would kill the process. It leaves ignored signals alone.
    """
    for number in _STOPPED_BY:
        signal.signal(number, signal.SIG_IGN)


def _say_ready(line: str) -> None:
    """Writes the readiness line to stdout. A stdout that is not read does not keep the broker from
    serving.
    """
    try:
        if sys.stdout is not None:
            write_while(sys.stdout, f"{line}\n", within(LAST_LINES_S))
    except (OSError, ValueError) as error:
        say(
            logging.WARNING,
            "stdout_failed",
            f"the readiness line could not be written to stdout: {error}",
        )


def _die(log: LogOutput, error: BaseException) -> None:
    """Ends the process at once. After a failed sync it is not known what is on the disk, so no call may be
    answered.
    """
    message = (
        "the broker ends, because its storage failed or a turn was interrupted: "
        f"{type(error).__name__}: {error}"
    )
    log.say_last(logging.CRITICAL, "storage_failed", message)
    os._exit(EXIT_STORAGE_FAILED)


def _end(log: LogOutput, ended: threading.ExceptHookArgs) -> None:
    """Ends the process after one of its threads has ended by an error. gRPC's serving thread ends if it
    cannot hand over a call.
    """
    name = ended.thread.name if ended.thread is not None else "a thread"
    log.say_last(
        logging.CRITICAL,
        "thread_failed",
        f"the broker ends, because its thread {name} failed: {ended.exc_type.__name__}: {ended.exc_value}; "
        "start it again, and report this",
    )
    os._exit(EXIT_THREAD_FAILED)


def _core_settings(config: BrokerConfig) -> Settings:
    return Settings(
        auto_create=config.auto_create_destinations,
        default_partitions=config.default_partitions,
        destinations_max=config.destinations_max,
        partitions_total_max=config.partitions_total_max,
        named_producers_max=config.named_producers_max,
        markers_max=config.markers_max,
        staged_sets_max=config.staged_sets_max,
        staged_batches_max=config.staged_batches_max,
        commit_sets_max=config.commit_sets_max,
        browses_max=config.browses_max,
        browse_bytes_max=config.browse_bytes_max,
        staged_ttl_us=config.staged_ttl_s * 1_000_000,
        browse_ttl_us=config.browse_ttl_s * 1_000_000,
        run_grace_us=config.run_grace_s * 1_000_000,
        kept_range_ttl_us=config.kept_range_ttl_s * 1_000_000,
        consumers_max=config.consumers_max,
        queries_max=config.queries_max,
        query_ends_max=config.query_ends_max,
        producer_marks_max=config.producer_marks_max,
        anonymous_producers_max=config.anonymous_producers_max,
        anonymous_producers_total_max=config.anonymous_producers_total_max,
        # Session numbers do not repeat after a restart: an operator must not end another session of the same
        # number.
        first_session=int(time.time()) % 1_000_000 * 1000 + 1,
    )


def _journal_settings(config: BrokerConfig) -> JournalSettings:
    return JournalSettings(
        segment_bytes=config.segment_bytes, pool_segments=config.pool_segments, spare_bytes=_SPARE_BYTES
    )


def _snapshot_settings(config: BrokerConfig) -> SnapshotSettings:
    return SnapshotSettings(bytes=config.snapshot_bytes, interval_us=config.snapshot_interval_s * 1_000_000)
