"""Ranges of offsets as they travel: acknowledged, released or handed over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from mq_wire.errors import InvalidRequest, NotAssigned
from mq_wire.v1.consume_pb2 import PartitionRanges

#: Most rows that one list of ranges may name: no session holds more. A bitmap of all possible offsets would
#: take all memory of the broker.
_ROWS_HELD_MAX: Final = 1 << 31


def ranges_of(partitions: Sequence[PartitionRanges]) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """Returns for each partition the first offsets of its ranges and the offsets after their last ones, as
    int64 arrays, ascending and without overlap.

    Raises:
        InvalidRequest: a partition or an offset is named twice, half a pair, or an empty or negative range.
        NotAssigned: more offsets than a session can hold.
    """
    result = []
    if len({entry.partition for entry in partitions}) != len(partitions):
        raise InvalidRequest(
            f"a list of {len(partitions)} partitions names one of them twice: name each once"
        )
    for entry in partitions:
        if not entry.ranges or len(entry.ranges) % 16:
            raise InvalidRequest(
                f"ranges of partition {entry.partition} have {len(entry.ranges)} bytes: "
                "give 16 for each pair of int64"
            )
        pairs = np.frombuffer(entry.ranges, "<i8").reshape(-1, 2)
        first, last = pairs[:, 0].astype(np.int64), pairs[:, 1].astype(np.int64)
        if first.size > 1 and (first[1:] < first[:-1]).any():
            order = np.argsort(first, kind="stable")
            first, last = first[order], last[order]
        if int(first[0]) < 0 or (first >= last).any():
            raise InvalidRequest(
                f"ranges of partition {entry.partition} include one that is empty or begins below 0: "
                "give first < last"
            )
        if (first[1:] < last[:-1]).any():
            raise InvalidRequest(f"ranges of partition {entry.partition} overlap: name each offset once")
        if int((last - first).sum(dtype=np.uint64)) > _ROWS_HELD_MAX:
            raise NotAssigned(
                f"ranges of partition {entry.partition} name more than {_ROWS_HELD_MAX} offsets, "
                "more than a consumer can hold: name only rows that were delivered"
            )
        result.append((entry.partition, first, last))
    return result
