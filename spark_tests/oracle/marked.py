"""Values that say who sent them, so that whoever reads one knows what it must be.

A value is VALUE_WORDS little-endian 64-bit words: the message id, its priority, and words that follow from
both by arithmetic. A reader compares all of them at once in NumPy; one flipped bit anywhere shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pyspark_mq import Message

Ids = NDArray[np.int64]

VALUE_WORDS: Final = 48
VALUE_BYTES: Final = VALUE_WORDS * 8
#: An id is the number of the producer and its counter.
_COUNTER_BITS: Final = 40
_STIR: Final = np.uint64(0x9E3779B97F4A7C15)
_EMPTY: Final = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows as they were read: one entry of each array a row. `damaged` counts those whose bytes are not what
    was sent.
    """

    ids: Ids
    partitions: NDArray[np.int64]
    offsets: NDArray[np.int64]
    priorities: NDArray[np.int64]
    damaged: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, which: Any) -> Rows:
        """Some of the rows: a slice, a mask, or indexes."""
        return Rows(self.ids[which], self.partitions[which], self.offsets[which], self.priorities[which])

    @classmethod
    def joined(cls, parts: list[Rows]) -> Rows:
        """All rows of `parts`, in their order."""
        ids, partitions, offsets, priorities = (
            np.concatenate([_EMPTY, *(getattr(part, name) for part in parts)])
            for name in ("ids", "partitions", "offsets", "priorities")
        )
        return cls(ids, partitions, offsets, priorities, sum(part.damaged for part in parts))


def ids_of(producer: int, counters: Any) -> Ids:
    """Returns the ids of messages by their counters, an array or a range."""
    return (producer << _COUNTER_BITS) | np.asarray(counters, np.int64)


def producers_of(ids: Ids) -> NDArray[np.int64]:
    return ids >> _COUNTER_BITS


def name_of(message_id: int) -> str:
    """Returns an id as people read it: `3:1042` is what producer 3 sent as its message 1042."""
    return f"{message_id >> _COUNTER_BITS}:{message_id & ((1 << _COUNTER_BITS) - 1)}"


def values_of(ids: Ids, priorities: NDArray[np.int64]) -> pa.Array:
    """Returns the values of messages as an Arrow array."""
    words = words_of(ids, priorities)
    ends = np.arange(0, (len(ids) + 1) * VALUE_BYTES, VALUE_BYTES, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), len(ids), [None, pa.py_buffer(ends), pa.py_buffer(words)])


def rows_of(batch: pa.RecordBatch) -> Rows:
    """Returns what a delivered batch with the columns value, partition, offset and priority says, checked
    against itself.
    """
    values, count = batch.column("value"), batch.num_rows
    ends = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + count + 1]
    assert (np.diff(ends) == VALUE_BYTES).all(), "values of another length than any that was sent"
    content = np.frombuffer(values.buffers()[2], np.uint8)[ends[0] : ends[-1]]
    partitions, offsets, priorities = (
        batch.column(name).to_numpy() for name in ("partition", "offset", "priority")
    )
    return checked_rows(content, partitions, offsets, priorities)


def rows_of_messages(messages: list[Message]) -> Rows:
    """Returns what delivered messages say, checked against themselves."""
    assert all(len(message.value) == VALUE_BYTES for message in messages), (
        "values of another length than any that was sent"
    )
    content = np.frombuffer(b"".join(message.value for message in messages), np.uint8)
    places = [(message.partition, message.offset, message.priority) for message in messages]
    partitions, offsets, priorities = np.array(places, np.int64).reshape(-1, 3).T
    return checked_rows(content, partitions, offsets, priorities)


def checked_rows(
    content: NDArray[np.uint8], partitions: Any, offsets: Any, delivered: Any, words: int = VALUE_WORDS
) -> Rows:
    """Returns the rows whose values, one behind the other, are `content`; `delivered` are the priorities that
    the broker says.
    """
    found = content.view(np.uint64).reshape(-1, words)
    ids, priorities = found[:, 0].astype(np.int64), found[:, 1].astype(np.int64)
    damaged = (found != words_of(ids, priorities, words)).any(axis=1) | (delivered != priorities)
    return Rows(ids, partitions.astype(np.int64), offsets.astype(np.int64), priorities, int(damaged.sum()))


def words_of(ids: Ids, priorities: NDArray[np.int64], words: int = VALUE_WORDS) -> NDArray[np.uint64]:
    """Returns the values of messages, `words` words each: id, priority, and what follows from both."""
    values = np.empty((len(ids), words), np.uint64)
    values[:, 0], values[:, 1] = ids, priorities
    for at in range(2, words):
        values[:, at] = (values[:, at - 1] ^ values[:, 0] ^ np.uint64(at)) * _STIR
    return values
