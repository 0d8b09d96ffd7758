"""The Fetch stream: reads a range of delivery numbers as credit allows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import grpc

from mq_broker.core.commands import ReleaseView, ResolveFetch, RowsView
from mq_broker.engine.quarantine import set_aside
from mq_broker.rpc.bounds import LiveStreams
from mq_broker.rpc.status import abort
from mq_broker.rpc.stream_consumer import ignore
from mq_wire import envelope, framing
from mq_wire.errors import DataLost, InvalidRequest, JournalDamaged
from mq_wire.limits import RECORDS_ROWS_MAX
from mq_wire.v1.subscribe_pb2 import FetchRequest, OpenFetch

if TYPE_CHECKING:
    from mq_broker.engine.engine import Engine

_BATCH_ROWS: Final = 32_768


class FetchStream:
    """One stream. It uses only the thread of its call: requests with credit are read when the credit is used
    up.
    """

    def __init__(self, engine: Engine, streams: LiveStreams) -> None:
        self._engine = engine
        self._streams = streams
        self._rows = 0
        self._bytes = 0

    def run(self, requests: Iterator[FetchRequest], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Yields the rows of the range, and ends after the last one."""
        views: list[RowsView] = []
        try:
            first = next(requests, None)
            if first is None:
                return
            if not first.HasField("open"):
                raise InvalidRequest("the first message of a Fetch stream must be `open`")
            self._add_credit(first)
            views = list(self._engine.answer(ResolveFetch(first.open)))
            while views:
                try:
                    for message in self._batches(views[0], first.open, requests):
                        yield message
                        self._streams.check_running()
                except (JournalDamaged, DataLost) as error:
                    set_aside(self._engine, views[0], error)
                    self._release(views)
                    # Raises DataLost with the lost rows, or leaves them out if the caller accepts data loss.
                    views = list(self._engine.answer(ResolveFetch(first.open)))
                else:
                    self._release(views, 1)
        except grpc.RpcError:
            return  # the client is gone
        except Exception as error:  # abort gives each its status
            abort(context, error)
        finally:
            self._release(views)

    def _release(self, views: list[RowsView], count: int | None = None) -> None:
        for view in views[:count]:
            self._engine.submit(ReleaseView(view), ignore)
        del views[:count]

    def _batches(
        self, view: RowsView, wanted: OpenFetch, requests: Iterator[FetchRequest]
    ) -> Iterator[bytes]:
        rows_max = min(wanted.batch_rows_max or _BATCH_ROWS, RECORDS_ROWS_MAX)
        for header, records in self._streams.paced(
            view, self._engine.read(view, wanted.columns or envelope.ALL_COLUMNS, rows_max)
        ):
            # Checked after the batch is read, so that a range that just fits into the credit needs no more
            # credit.
            while self._rows <= 0 or self._bytes <= 0:
                more = next(requests, None)
                if more is None:
                    raise InvalidRequest(
                        f"the credit of a Fetch stream ran out at delivery number {header.first_delivery}: "
                        "send more credit"
                    )
                self._add_credit(more)
            message = framing.join(header.SerializeToString(), memoryview(records))
            self._rows -= header.rows
            self._bytes -= len(message)
            yield message
            wanted.first = header.first_delivery + header.rows

    def _add_credit(self, request: FetchRequest) -> None:
        self._rows += request.credit_rows
        self._bytes += request.credit_bytes
