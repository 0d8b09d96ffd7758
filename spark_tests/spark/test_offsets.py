"""Offsets v1: what is written is read back, forever, and nothing else is taken for them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq_wire.errors import InvalidRequest, Unsupported
from pyspark_mq.client.boundary import Boundary
from pyspark_mq.spark.offsets import from_json, to_json

ids = st.binary(min_size=16, max_size=16)
offsets = st.builds(
    Boundary,
    destination=st.text(max_size=20),
    consumer=st.text(max_size=20),
    cluster_id=ids,
    destination_id=ids,
    incarnation=st.binary(min_size=1, max_size=16),
    positions=st.dictionaries(st.integers(0, 2**32 - 1), st.integers(1, 2**64 - 1), max_size=20),
)

GOLDEN = (
    '{"cluster": "00010203-0405-0607-0809-0a0b0c0d0e0f", "destination": "orders.eu", '
    '"destination_id": "10111213-1415-1617-1819-1a1b1c1d1e1f", "incarnation": "a1b2", "next": {"0": 123, '
    '"10": 7, "2": 5}, '
    '"subscription": "billing", "v": 1}'
)


@given(offsets)
def test_read_back_after_json(value: Boundary) -> None:
    assert from_json(json.loads(json.dumps(to_json(value)))) == value


@given(offsets)
def test_keys_are_sorted_at_every_level(value: Boundary) -> None:
    assert json.dumps(to_json(value)) == json.dumps(to_json(value), sort_keys=True)


@given(offsets, st.randoms(use_true_random=False))
def test_equal_offsets_are_equal_text(value: Boundary, rng: object) -> None:
    items = list(value.positions.items())
    rng.shuffle(items)  # type: ignore[attr-defined]
    with_zeros = dict(items) | {2**32 + 1: 0}
    shuffled = Boundary(
        value.destination,
        value.consumer,
        value.cluster_id,
        value.destination_id,
        value.incarnation,
        with_zeros,
    )
    assert json.dumps(to_json(shuffled)) == json.dumps(to_json(value))


def test_version_1_is_readable_for_ever() -> None:
    read = from_json(json.loads(GOLDEN))
    assert read == Boundary(
        "orders.eu", "billing", bytes(range(16)), bytes(range(16, 32)), b"\xa1\xb2", {0: 123, 2: 5, 10: 7}
    )
    assert json.dumps(to_json(read)) == GOLDEN


def test_initial_offsets_are_a_constant() -> None:
    assert to_json(Boundary()) == {"v": 1}
    assert from_json({"v": 1}).initial


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"v": 2}, Unsupported, "version 2"),
        ({"v": 0}, InvalidRequest, "no offsets of format mq"),
        ({"v": True}, InvalidRequest, "no offsets of format mq"),
        ({"v": "1"}, InvalidRequest, "no offsets of format mq"),
        ({"cluster": "x"}, InvalidRequest, "cluster = 'x', not a uuid"),
        ({"destination": 5}, InvalidRequest, "destination = 5, not text"),
        ({"destination_id": None}, InvalidRequest, "destination_id = None"),
        ({"incarnation": "xyz"}, InvalidRequest, "hexadecimal"),
        ({"incarnation": ""}, InvalidRequest, "hexadecimal"),
        ({"next": [1]}, InvalidRequest, "next"),
        ({"next": {"a": 1}}, InvalidRequest, "partition numbers"),
        ({"next": {"0": -1}}, InvalidRequest, "whole numbers"),
        ({"next": {"0": 1.5}}, InvalidRequest, "whole numbers"),
        ({"next": {"0": 2**64}}, InvalidRequest, "whole numbers"),
        ({"more": 1}, InvalidRequest, "unknown entries more"),
    ],
)
def test_what_is_not_offsets_is_refused(change: dict[str, object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        from_json(json.loads(GOLDEN) | change)


@pytest.mark.parametrize(
    "key", ["cluster", "destination", "destination_id", "incarnation", "next", "subscription"]
)
def test_missing_entries_are_named(key: str) -> None:
    value = json.loads(GOLDEN)
    del value[key]
    with pytest.raises(InvalidRequest, match=f"lack {key}"):
        from_json(value)


@pytest.mark.parametrize("value", [None, [], "text", {}, {"0": 5}])
def test_foreign_checkpoints_are_refused(value: object) -> None:
    with pytest.raises(InvalidRequest, match="no offsets of format mq"):
        from_json(value)
