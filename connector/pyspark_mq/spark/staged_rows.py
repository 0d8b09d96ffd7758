"""What a task of a write tells the driver."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage


@dataclass(frozen=True)
class StagedRows(WriterCommitMessage):
    """What one write() call has staged.

    Attributes:
        token: name of the set, 16 random bytes; there is no such set where rows is 0.
        query_id: the streaming query that the write works for, also inside of foreachBatch; empty where Spark
            does not tell.
        run_id: Spark's run of that query, for the broker's records.
    """

    token: bytes
    rows: int
    query_id: str = ""
    batch_id: int = -1
    run_id: str = ""
