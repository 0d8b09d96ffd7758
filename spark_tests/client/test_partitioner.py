"""Keys land where Kafka's default partitioner puts them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_mq.partitioner import murmur2, partitions_of

# org.apache.kafka.common.utils.UtilsTest.testMurmur2
KAFKA_VECTORS = [
    (b"21", -973932308),
    (b"foobar", -790332482),
    (b"a-little-bit-long-string", -985981536),
    (b"a-little-bit-longer-string", -1486304829),
    (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    (b"abc", 479470107),
]


def murmur2_by_row(key: bytes) -> int:
    """The obvious rendering of Kafka's Java."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(key)
    for at in range(0, len(key) - len(key) % 4, 4):
        k = int.from_bytes(key[at : at + 4], "little") * m & mask
        k ^= k >> 24
        h = h * m & mask ^ (k * m & mask)
    tail = key[len(key) - len(key) % 4 :]
    if tail:
        h = (h ^ int.from_bytes(tail, "little")) * m & mask
    h ^= h >> 13
    h = h * m & mask
    return h ^ h >> 15


@pytest.mark.parametrize(("key", "expected"), KAFKA_VECTORS)
def test_kafka_vectors(key: bytes, expected: int) -> None:
    assert int(murmur2(pa.array([key], pa.binary()))[0].astype(np.int32)) == expected


def test_vectors_hashed_together_and_from_a_slice() -> None:
    keys = pa.array([b"other", *(key for key, _ in KAFKA_VECTORS)], pa.binary()).slice(1)
    assert murmur2(keys).astype(np.int32).tolist() == [expected for _, expected in KAFKA_VECTORS]


@given(st.lists(st.binary(max_size=40), max_size=50))
def test_equals_the_row_by_row_rendering(keys: list[bytes]) -> None:
    assert murmur2(pa.array(keys, pa.binary())).tolist() == [murmur2_by_row(key) for key in keys]


@given(st.lists(st.binary(max_size=12), min_size=1, max_size=50), st.integers(1, 1024))
def test_partition_is_the_positive_hash_modulo(keys: list[bytes], partitions: int) -> None:
    expected = [(murmur2_by_row(key) & 0x7FFFFFFF) % partitions for key in keys]
    assert partitions_of(pa.array(keys, pa.binary()), partitions).tolist() == expected
