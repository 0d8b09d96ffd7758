"""Keys to partitions: murmur2, exactly as Kafka's default partitioner, so that both sides of a migration put
a key in the same place.

Source of the rule: org.apache.kafka.common.utils.Utils.murmur2 and BuiltInPartitioner.partitionForKey
(`toPositive(murmur2(key)) % n`). Keys are hashed a whole Arrow array at a time: rows of equal key length are
stacked into one matrix and hashed by columns of four bytes.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_SEED: Final = 0x9747B28C
_M: Final = np.uint32(0x5BD1E995)
_R: Final = np.uint32(24)
#: Bytes of keys stacked at once: bounds the memory that hashing takes beside the keys.
_STACK_BYTES: Final = 1 << 22
_MASK: Final = 0xFFFFFFFF
#: So many keys are faster one by one: a single message with a key must not pay for arrays.
_FEW: Final = 16


def murmur2_of(key: bytes) -> int:
    """Returns Kafka's murmur2 of one key."""
    whole = len(key) & ~3
    h = _SEED ^ len(key)
    for at in range(0, whole, 4):
        k = int.from_bytes(key[at : at + 4], "little") * 0x5BD1E995 & _MASK
        k = (k ^ k >> 24) * 0x5BD1E995 & _MASK
        h = (h * 0x5BD1E995 & _MASK) ^ k
    if whole < len(key):
        h = (h ^ int.from_bytes(key[whole:], "little")) * 0x5BD1E995 & _MASK
    h = (h ^ h >> 13) * 0x5BD1E995 & _MASK
    return h ^ h >> 15


def murmur2(keys: pa.Array) -> NDArray[np.uint32]:
    """Returns Kafka's murmur2 of each key. `keys` is a binary array without nulls."""
    count = len(keys)
    if count <= _FEW:
        return np.fromiter((murmur2_of(key) for key in keys.to_pylist()), np.uint32, count)
    hashes = np.empty(count, np.uint32)
    _, offsets_buffer, data_buffer = keys.buffers()
    ends = np.frombuffer(offsets_buffer, np.int32, count=keys.offset + count + 1)[keys.offset :]
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.empty(0, np.uint8)
    starts, lengths = ends[:-1].astype(np.int64), np.diff(ends)
    if lengths.min() == lengths.max():
        groups = [(int(lengths[0]), np.arange(count))]
    else:
        order = np.argsort(lengths, kind="stable")
        cuts = np.flatnonzero(np.diff(lengths[order])) + 1
        groups = [(int(lengths[rows[0]]), rows) for rows in np.split(order, cuts)]
    for length, rows in groups:
        step = max(1, _STACK_BYTES // max(1, length))
        for at in range(0, len(rows), step):
            some = rows[at : at + step]
            hashes[some] = _hash_stack(data, starts[some], length)
    return hashes


def partition_of(key: bytes, partitions: int) -> int:
    """Returns the partition, 0 to `partitions` - 1, of one key."""
    return (murmur2_of(key) & 0x7FFFFFFF) % partitions


def partitions_of(keys: pa.Array, partitions: int) -> NDArray[np.int32]:
    """Returns the partition, 0 to `partitions` - 1, of each key. `keys` is a binary array without nulls."""
    return ((murmur2(keys) & np.uint32(0x7FFFFFFF)) % np.uint32(partitions)).astype(np.int32)


def _hash_stack(data: NDArray[np.uint8], starts: NDArray[np.int64], length: int) -> NDArray[np.uint32]:
    """Hashes keys of one length."""
    hashes = np.full(len(starts), _SEED ^ length, np.uint32)
    if length:
        bytes_of = data[starts[:, None] + np.arange(length)]
        words = length // 4
        if words:
            for k in np.ascontiguousarray(bytes_of[:, : 4 * words]).view("<u4").T:
                k = k * _M
                k ^= k >> _R
                k *= _M
                hashes *= _M
                hashes ^= k
        tail = bytes_of[:, 4 * words :]
        if tail.shape[1]:
            for i in range(tail.shape[1]):
                hashes ^= tail[:, i].astype(np.uint32) << np.uint32(8 * i)
            hashes *= _M
    hashes ^= hashes >> np.uint32(13)
    hashes *= _M
    hashes ^= hashes >> np.uint32(15)
    return hashes
