"""Compares the results of the demo with its input."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json


@dataclass(frozen=True)
class Outcome:
    """Counts of all results, and a summary by priority."""

    rows_in: int
    rows_out: int
    lost: int
    duplicates: int
    batches: int
    redelivered: int
    summary: pa.Table


def compare(rows_in: int, batches: list[pa.RecordBatch]) -> Outcome:
    """Counts results by the flights' ids, 0 to `rows_in` - 1, and by priority.

    Rows of one batch of the query have the same `batch_time`.
    """
    table = pa.Table.from_batches(batches)
    lines = b"\n".join(table["value"].to_pylist())
    rows = pyarrow.json.read_json(io.BytesIO(lines))
    times_seen, counts = np.unique(rows["id"].to_numpy(), return_counts=True)
    batch_times = sorted(pc.unique(rows["batch_time"]).to_pylist())
    batch_number = pc.add(pc.index_in(rows["batch_time"], pa.array(batch_times, pa.int64())), 1)
    columns = {"priority": table["priority"], "batch": batch_number, "made_up": rows["made_up"]}
    grouped = (
        pa.table(columns)
        .group_by("priority")
        .aggregate([("batch", "count"), ("batch", "mean"), ("made_up", "mean")])
    )
    summary = grouped.rename_columns(
        {"batch_count": "rows", "batch_mean": "batch_mean", "made_up_mean": "made_up_mean"}
    )
    return Outcome(
        rows_in=rows_in,
        rows_out=rows.num_rows,
        lost=rows_in - int(np.count_nonzero((times_seen >= 0) & (times_seen < rows_in))),
        duplicates=int((counts - 1).sum()),
        batches=len(batch_times),
        redelivered=pc.sum(pc.greater(rows["delivery_count"], 1)).as_py() or 0,
        summary=summary.sort_by([("priority", "descending")]),
    )
