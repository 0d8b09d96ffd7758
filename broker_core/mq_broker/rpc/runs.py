"""The HoldRun stream: a run lives as long as one of its streams is open."""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import grpc

from mq_broker.core.commands import CloseRun, HoldRun
from mq_broker.rpc.bounds import LiveStreams
from mq_broker.rpc.status import abort
from mq_wire.errors import InvalidRequest
from mq_wire.v1.subscribe_pb2 import HoldRunRequest, RunEvent

if TYPE_CHECKING:
    from mq_broker.engine.engine import Engine


class RunStreams:
    """All streams that hold runs.

    After a broken connection a process holds its run again, often before the broker notices that the old
    stream has ended. So a run is closed when the last of its streams ends.
    """

    def __init__(self, engine: Engine, streams: LiveStreams) -> None:
        self._engine = engine
        self._streams = streams
        self._holders: Counter[int] = Counter()
        self._lock = threading.Lock()

    def hold(self, requests: Iterator[HoldRunRequest], context: grpc.ServicerContext) -> Iterator[RunEvent]:
        """Yields the run's number, then holds the run until the client leaves or the broker stops."""
        try:
            request = next(requests, None)
            if request is None:
                raise InvalidRequest("a call of HoldRun without a request: send one")
            run = self._enter(HoldRun(request.run, request.cluster_id))
        except grpc.RpcError:
            return  # the client left before its first request
        except Exception as error:  # abort gives each its status
            abort(context, error)
        ended: queue.SimpleQueue[None] = queue.SimpleQueue()
        try:
            with self._streams.told_to_stop(lambda: ended.put(None)):
                if not context.add_callback(lambda: ended.put(None)):
                    return
                yield RunEvent(run=run)
                ended.get()
                self._streams.check_running()
        except Exception as error:  # abort gives each its status
            abort(context, error)
        finally:
            self._leave(run)

    def _enter(self, command: HoldRun) -> int:
        # Under the lock: otherwise the end of the old stream could close the run after it was held again.
        with self._lock:
            held: int = self._engine.call(command)
            self._holders[held] += 1
            return held

    def _leave(self, run: int) -> None:
        with self._lock:
            self._holders[run] -= 1
            if not self._holders[run]:
                del self._holders[run]
                # A broker that stops ends no run. The run's process holds it again after the restart, or it
                # ends when the grace time is over.
                if not self._streams.stopping:
                    self._engine.call(CloseRun(run))
