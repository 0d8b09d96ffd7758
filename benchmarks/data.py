"""Rows to measure with: random values of one size, made without a loop."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

VALUE_BYTES = 100


def values(rows: int, seed: int = 1) -> pa.Array:
    """Returns `rows` random binary values of VALUE_BYTES bytes."""
    content = np.random.default_rng(seed).bytes(rows * VALUE_BYTES)
    offsets = np.arange(0, (rows + 1) * VALUE_BYTES, VALUE_BYTES, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(content)])


def batch(rows: int, seed: int = 1) -> pa.RecordBatch:
    """Returns a record batch of values only."""
    return pa.RecordBatch.from_arrays([values(rows, seed)], ["value"])


def prioritised(rows: int, seed: int = 1) -> pa.RecordBatch:
    """Returns a record batch of values with random priorities, 0 to 9."""
    priority = pa.array(np.random.default_rng(seed + 1).integers(0, 10, rows, dtype=np.int8))
    return pa.RecordBatch.from_arrays([values(rows, seed), priority], ["value", "priority"])
