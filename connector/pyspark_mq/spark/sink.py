"""The sinks: tasks stage rows durably and invisibly, the driver makes them visible in one step.

    task:    write()   rows -> a staged set under a fresh random token -> commit message (token, rows, whose
        batch it is)
    driver:  commit()  the tokens of exactly the tasks that Spark chose -> one turn of the broker -> visible,
        with offsets

A token is random because nothing that Spark hands a task names one write() call: after a driver restart
attempts begin at 0 again.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from mq_wire.errors import BrokerUnavailable, DataLost, MqError, StagedSetUnknown, StorageFailed, Unsupported
from pyspark_mq.spark.options import SinkOptions
from pyspark_mq.spark.staged_rows import StagedRows

if TYPE_CHECKING:
    import pyarrow as pa

#: How long the driver goes on trying to commit while the broker is away.
COMMIT_RETRY_S: Final = 60.0
#: Discarding and forgetting are courtesies: sets that nobody commits, and markers that nobody asks for, end
#: by themselves.
COURTESY_RETRY_S: Final = 2.0


class MqStreamWriter(DataSourceStreamArrowWriter):
    """Exactly-once sink of one streaming query. Spark makes a new one for each micro-batch, and another that
    only commits.
    """

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = _without_transaction(options)
        self._schema = schema
        self._planned_on = ""
        self._epoch = 0

    def __getstate__(self) -> dict[str, Any]:
        """Takes the batch's epoch when Spark pickles the writer for its tasks: the one that only commits is
        never pickled.
        """
        if not self._epoch:
            import socket

            from mq_wire.v1 import produce_pb2

            self._epoch = _first_call(self._options, "TakeEpoch", produce_pb2.TakeEpochRequest()).epoch
            self._planned_on = socket.gethostname()
        return self.__dict__

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stages the rows of one task."""
        from pyspark_mq.spark.reader import Work
        from pyspark_mq.spark.staging import stage

        work = Work.of_this_task()
        if not work.query_id or work.batch_id < 0:
            raise Unsupported(
                "Spark does not say for which query and batch this task writes, and exactly once needs "
                "both: please report it"
            )
        return stage(
            iterator,
            self._options,
            self._planned_on,
            epoch=self._epoch,
            query_id=work.query_id,
            batch_id=work.batch_id,
            run_id=work.run_id,
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Makes the batch visible; the same batch again is a no-op, even where the first answer was lost."""
        if messages and not any(messages):
            # Spark only logs this, as "Ignoring error", and the query stays active: nothing that it asks of a
            # sink before tells it apart.
            raise Unsupported(
                f"nothing was written in epoch {batchId}: with trigger(continuous=...) Spark never calls "
                f"the tasks of a Python sink, and "
                "the query goes on without writing. Stop it and use trigger(processingTime=...) or "
                "trigger(availableNow=True)"
            )
        staged = _all_of(messages)
        if not staged:
            # Spark runs at least one task, also for an empty batch.
            raise StagedSetUnknown(
                f"batch {batchId} comes to commit without a word from any task: restart the query"
            )
        first = staged[0]
        commit_staged(
            self._options, staged, owner=f"query:{first.query_id}", version=batchId, run_id=first.run_id
        )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Throws away what the tasks have staged, as far as they told."""
        discard_staged(self._options, messages)


class MqBatchWriter(DataSourceArrowWriter):
    """Batch sink: one transaction a write, idempotent with txnAppId and txnVersion."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        import socket

        self._options = options
        self._schema = schema
        self._planned_on = socket.gethostname()

    def reach_broker(self) -> MqBatchWriter:
        """Asks for the broker before any task waits for one that is absent.

        Raises:
            BrokerUnavailable: nobody answers.
        """
        from mq_wire.limits import PROTOCOL_VERSION
        from mq_wire.v1 import admin_pb2
        from pyspark_mq.client.connection import Connection

        client = Connection.shared(self._options.broker).client
        _first_call(self._options, "Hello", admin_pb2.HelloRequest(client=client, protocol=PROTOCOL_VERSION))
        return self

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stages the rows of one task. Never under a query: two writes inside one foreachBatch carry the same
        query and batch.
        """
        from pyspark_mq.spark.reader import Work
        from pyspark_mq.spark.staging import stage

        return stage(iterator, self._options, self._planned_on, within=Work.of_this_task().query_id)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Makes all rows visible at once."""
        options, staged = self._options, _all_of(messages)
        if options.txn_app_id:
            commit_staged(options, staged, owner=f"app:{options.txn_app_id}", version=options.txn_version)
        elif any(message.rows for message in staged):
            # A marker of its own makes the commit safe to repeat when its answer is lost; nobody asks for it
            # again.
            owner = f"write:{uuid.uuid4()}"
            try:
                commit_staged(options, staged, owner=owner, version=0)
            except (BrokerUnavailable, StorageFailed) as error:
                raise type(error)(
                    f"{error}. Whether the rows of this write became visible is not known: look into the "
                    f"queue before writing them again. "
                    "With txnAppId and txnVersion a write can be repeated safely"
                ) from None
            # The rows are visible: whatever happens now, the write has succeeded, and one that seemed to fail
            # would be repeated.
            with suppress(MqError):
                forget_marker(options, owner)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Throws away what the tasks have staged, as far as they told."""
        discard_staged(self._options, messages)


def commit_staged(
    options: SinkOptions, staged: Sequence[StagedRows], *, owner: str, version: int, run_id: str = ""
) -> None:
    """Commits exactly these sets, in one step, once.

    Args:
        owner: who commits which `version` of what: the same once more is a no-op.

    Raises:
        BatchMismatch, CheckpointTooOld, StagedSetUnknown: see `mq_wire.errors`.
    """
    from mq_wire.v1 import produce_pb2
    from pyspark_mq.client.connection import Connection

    sets = [message for message in staged if message.rows]
    request = produce_pb2.CommitStagedRequest(
        tokens=[produce_pb2.StagedToken(token=message.token, rows=message.rows) for message in sets],
        target=options.queue,
        owner=owner,
        version=version,
        run_id=run_id,
        rows=sum(message.rows for message in sets),
        query_id=next((message.query_id for message in staged if message.query_id), ""),
        keep_mismatch=options.batch_mismatch == "keep",
    )
    Connection.shared(options.broker).call("CommitStaged", request, retry_timeout=COMMIT_RETRY_S)


def forget_marker(options: SinkOptions, owner: str) -> None:
    """Removes the marker of an owner that commits no more."""
    from mq_wire.v1 import produce_pb2
    from pyspark_mq.client.connection import Connection

    request = produce_pb2.ForgetMarkerRequest(owner=owner, target=options.queue)
    Connection.shared(options.broker).call(
        "ForgetMarker", request, timeout=COURTESY_RETRY_S, retry_timeout=COURTESY_RETRY_S
    )


def discard_staged(options: SinkOptions, messages: Iterable[WriterCommitMessage | None]) -> None:
    """Throws away the sets of an aborted write. A set that was committed after all is sealed, and the broker
    leaves it alone.
    """
    from mq_wire.v1 import produce_pb2
    from pyspark_mq.client.connection import Connection

    tokens = [message.token for message in messages if isinstance(message, StagedRows) and message.rows]
    if tokens:
        request = produce_pb2.DiscardStagedRequest(tokens=tokens)
        Connection.shared(options.broker).call("DiscardStaged", request, retry_timeout=COURTESY_RETRY_S)


def _first_call(options: SinkOptions, method: str, request: Any) -> Any:
    """The driver's first call of a write: where the broker is absent, it fails as fast as a read, before
    tasks wait.
    """
    from pyspark_mq.client.connection import Connection
    from pyspark_mq.client.run import patience_s

    connection = Connection.shared(options.broker)
    return connection.call(method, request, retry_timeout=patience_s(connection))


def _all_of(messages: Sequence[WriterCommitMessage | None]) -> list[StagedRows]:
    staged = [message for message in messages if isinstance(message, StagedRows)]
    if len(staged) < len(messages):
        silent = len(messages) - len(staged)
        raise DataLost(
            f"{silent} of {len(messages)} tasks sent no commit message: nothing is committed, run the "
            f"write again"
        )
    return staged


def _without_transaction(options: SinkOptions) -> SinkOptions:
    if options.txn_app_id:
        raise Unsupported(
            f"option txnAppId is {options.txn_app_id!r}: it is for batch writes, such as in foreachBatch; "
            "a streaming write is idempotent without it"
        )
    return options
