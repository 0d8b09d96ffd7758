"""What a write task does: stream its rows through a windowed producer into a staged set of its own."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from mq_wire.errors import MqError
from mq_wire.limits import TOKEN_BYTES
from mq_wire.v1.produce_pb2 import DiscardStagedRequest, StagedSet
from pyspark_mq.client.connection import Connection
from pyspark_mq.client.producer import Producer
from pyspark_mq.spark.options import SinkOptions
from pyspark_mq.spark.outgoing import gathered, routed
from pyspark_mq.spark.reader import check_reachable
from pyspark_mq.spark.staged_rows import StagedRows

if TYPE_CHECKING:
    import pyarrow as pa

#: Large batches cost less each row, in the broker and on the wire; at least two fit into the window.
BATCH_BYTES: Final = 2 << 20
#: A task that fails waits no longer than this for each of: the answers to what it sent, and to throwing it
#: away.
DISCARD_S: Final = 1.0


def stage(
    batches: Iterator[pa.RecordBatch],
    options: SinkOptions,
    planned_on: str,
    *,
    epoch: int = 0,
    query_id: str = "",
    batch_id: int = 0,
    run_id: str = "",
    within: str = "",
) -> StagedRows:
    """Stages all rows under a fresh random token; they are durable when it returns, and thrown away when it
    does not.

    Args:
        epoch, query_id, batch_id, run_id: whose batch the set is; nobody's for batch writes.
        within: the query inside of whose foreachBatch a batch write runs, for its commit to name.

    Raises:
        SendTimeout, SendOutcomeUnknown: no receipt within sendTimeoutMs; the set is never committed, so
            nothing can come twice.
        InvalidRecords: a row that cannot be a message.
        EpochFenced: a newer attempt at this batch is under way.
    """
    check_reachable(options.broker, planned_on)
    token = secrets.token_bytes(TOKEN_BYTES)
    # The target is what the commit will name: two sinks under one query id (a copied checkpoint) leave each
    # other's sets alone.
    staged = StagedSet(
        token=token, epoch=epoch, query_id=query_id, batch_id=batch_id, run_id=run_id, target=options.queue
    )
    producers: dict[str, Producer] = {}
    rows = 0
    try:
        for batch in gathered(batches, options.linger_ms):
            for queue, records in routed(batch, options):
                producer = producers.get(queue)
                if producer is None:
                    producer = producers[queue] = _producer(options, queue, staged)
                producer.send_batch(records)
                rows += records.num_rows
        for producer in producers.values():
            producer.close()
    except BaseException:
        _give_up(list(producers.values()), options, token)
        raise
    return StagedRows(token=token, rows=rows, query_id=query_id or within, batch_id=batch_id, run_id=run_id)


def _give_up(producers: list[Producer], options: SinkOptions, token: bytes) -> None:
    """Throws away what was staged, as far as the broker answers in time; the error that ended this task is
    the one to tell.

    Nobody commits it, but until it expires it takes room: with a task that is tried again and again, all that
        the broker has.
    """
    deadline = time.monotonic() + DISCARD_S
    for producer in producers:
        # What is still on its way would open the set again behind the discard.
        with suppress(MqError):
            producer.close(timeout=max(deadline - time.monotonic(), 0.0))
    if producers:
        connection = Connection.shared(options.broker)
        with suppress(MqError):
            connection.hello(timeout=DISCARD_S)
            connection.call(
                "DiscardStaged", DiscardStagedRequest(tokens=[token]), timeout=DISCARD_S, retry_timeout=None
            )


def _producer(options: SinkOptions, queue: str, staged: StagedSet) -> Producer:
    return Producer(
        queue=queue,
        window_bytes=options.window_bytes,
        batch_bytes=BATCH_BYTES,
        send_timeout=options.send_timeout_ms / 1000,
        connect_timeout=options.send_timeout_ms / 1000,
        staged=staged,
        connection=Connection.shared(options.broker),
    )
