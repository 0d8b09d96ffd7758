"""The one place where protobuf is read by hand: whatever comes in, it is read as protobuf reads it, or
refused.
"""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq_wire import framing
from mq_wire.errors import InvalidRequest
from mq_wire.limits import RPC_BYTES_MAX
from mq_wire.v1.produce_pb2 import PublishHeader, PublishRequest
from spark_tests.hostile.mutation import Field, fields_of, message_of

_FIELDS: st.SearchStrategy[list[Field]] = st.lists(
    st.one_of(
        st.tuples(st.integers(1, 2**29 - 1), st.just(0), st.integers(0, 2**64 - 1)),
        st.tuples(st.integers(1, 4), st.just(2), st.binary(max_size=300)),
        st.tuples(st.integers(3, 4), st.just(1), st.binary(min_size=8, max_size=8)),
        st.tuples(st.integers(3, 4), st.just(5), st.binary(min_size=4, max_size=4)),
    ),
    max_size=8,
)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(message: bytes) -> None:
    try:
        header, records = framing.split(message)
    except InvalidRequest:
        return
    assert bytes(header) in message
    assert bytes(records) in message


@given(_FIELDS, st.binary(max_size=50))
def test_what_protobuf_reads_is_read_alike(fields: list[Field], records: bytes) -> None:
    """The last one of a field counts; headers, which protobuf would merge, come once."""
    header = PublishHeader(destination="orders", rows=3).SerializeToString()
    others = [field for field in fields if field[0] > 2]
    message = message_of([*others, (1, 2, header), *others, (2, 2, b"first"), (2, 2, records)])
    known = PublishRequest.FromString(message)
    found_header, found_records = framing.split(message)
    assert PublishHeader.FromString(bytes(found_header)) == known.header
    assert bytes(found_records) == known.records


@given(_FIELDS)
def test_fields_are_those_of_the_message(fields: list[Field]) -> None:
    message = message_of(fields)
    assert fields_of(message) == fields
    assert [(number, bytes(value)) for number, value in framing.fields(message)] == [
        (number, value if kind == 2 and isinstance(value, bytes) else b"") for number, kind, value in fields
    ]


@given(st.binary(max_size=60))
def test_fields_of_any_bytes_end_or_are_refused(message: bytes) -> None:
    try:
        count = len(list(framing.fields(message)))
    except InvalidRequest:
        return
    assert count <= len(message)


@pytest.mark.parametrize("field", [b"\x18\x00", b"\x1a\x00", b"\x1d" + bytes(4), b"\x0a\x00", b"\x12\x00"])
def test_millions_of_fields_take_no_time(field: bytes) -> None:
    message = field * (RPC_BYTES_MAX // len(field))
    began = time.process_time()
    with pytest.raises(InvalidRequest, match="64 fields"):
        framing.split(message)
    assert time.process_time() - began < 0.1
