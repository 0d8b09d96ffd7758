"""Keys land where Kafka's default partitioner puts them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_mq.client.partitioner import murmur2, murmur2_of, partitions_of

# org.apache.kafka.common.utils.UtilsTest.testMurmur2
KAFKA_VECTORS = [
    (b"21", -973932308),
    (b"foobar", -790332482),
    (b"a-little-bit-long-string", -985981536),
    (b"a-little-bit-longer-string", -1486304829),
    (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    (b"abc", 479470107),
]


@pytest.mark.parametrize(("key", "expected"), KAFKA_VECTORS)
def test_kafka_vectors(key: bytes, expected: int) -> None:
    assert int(np.uint32(murmur2_of(key)).astype(np.int32)) == expected


def test_vectors_hashed_together_and_from_a_slice() -> None:
    keys = pa.array([b"other", *(key for key, _ in 5 * KAFKA_VECTORS)], pa.binary()).slice(1)
    assert murmur2(keys).astype(np.int32).tolist() == [expected for _, expected in 5 * KAFKA_VECTORS]


@given(st.lists(st.binary(max_size=40), max_size=80))
def test_whole_arrays_hash_as_single_keys_do(keys: list[bytes]) -> None:
    assert murmur2(pa.array(keys, pa.binary())).tolist() == [murmur2_of(key) for key in keys]


@given(st.lists(st.binary(max_size=12), min_size=1, max_size=80), st.integers(1, 1024))
def test_partition_is_the_positive_hash_modulo(keys: list[bytes], partitions: int) -> None:
    expected = [(murmur2_of(key) & 0x7FFFFFFF) % partitions for key in keys]
    assert partitions_of(pa.array(keys, pa.binary()), partitions).tolist() == expected
