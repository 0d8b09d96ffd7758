"""proto/PROTOCOL.md says what the code does: its tables are compared with the code's own."""

from __future__ import annotations

import re

import pyarrow as pa

from mq_broker.config import BrokerConfig
from mq_wire import envelope, limits
from mq_wire.errors import TABLE, FixTheCall, MqError, Replaced, RetryLater, StateMismatch
from mq_wire.v1 import broker_pb2
from pyspark_mq.client.partitioner import murmur2, partitions_of
from spark_tests.support.tree import PROJECT

TEXT = (PROJECT / "proto" / "PROTOCOL.md").read_text(encoding="utf-8")
DO: dict[type[MqError], str] = {
    RetryLater: "retry",
    FixTheCall: "fix the call",
    Replaced: "stop",
    StateMismatch: "ask a human",
}


def todo(error: type[MqError]) -> str:
    return next((word for kind, word in DO.items() if issubclass(error, kind)), "ask the operator")


def test_errors() -> None:
    documented = re.findall(r"^\| `([A-Z_]+)` \| `([A-Z_]+)` \| ([a-z ]+) \|", TEXT, re.MULTILINE)
    assert documented == [(error.code, status, todo(error)) for error, status in TABLE.items()]


def test_presence_mask() -> None:
    documented = re.findall(r"^\| (\d+) \| `([a-z_]+)` \| .* \| (yes|no) \|$", TEXT, re.MULTILINE)
    assert documented == [
        (str(bit), field.name, "yes" if field.nullable else "no")
        for bit, field in enumerate(envelope.COLUMNS)
    ]


def test_partitioner_vectors() -> None:
    vectors = re.findall(r"^\| (\(empty\)|`[^`]+`) \| (-?\d+) \| (\d) \| (\d) \|$", TEXT, re.MULTILINE)
    assert len(vectors) == 7
    keys = pa.array(
        [b"" if key == "(empty)" else key.strip("`").encode() for key, *_ in vectors], pa.binary()
    )
    assert murmur2(keys).view("int32").tolist() == [int(signed) for _, signed, _, _ in vectors]
    assert partitions_of(keys, 4).tolist() == [int(partition) for _, _, partition, _ in vectors]
    assert partitions_of(keys, 10).tolist() == [int(partition) for _, _, _, partition in vectors]


def test_limits() -> None:
    for name in (
        "RPC_BYTES_MAX",
        "RECORDS_BYTES_MAX",
        "RECORDS_ROWS_MAX",
        "HEADERS_PER_ROW_MAX",
        "AUDIT_RANGES",
    ):
        assert f"{getattr(limits, name):,}" in TEXT, name


def test_the_table_of_limits_says_what_the_settings_are() -> None:
    documented = re.findall(r"^\| [^|]+ \| `([a-z_]+)` \| ([\d,]+) \| [^|]+ \|$", TEXT, re.MULTILINE)
    assert len(documented) >= 18
    defaults = BrokerConfig()
    assert {name: int(value.replace(",", "")) for name, value in documented} == {
        name: getattr(defaults, name) for name, _ in documented
    }


def test_every_code_in_the_table_of_limits_is_an_error() -> None:
    table = TEXT[TEXT.index("| limit | setting |") : TEXT.index("## What may change")]
    codes = set(re.findall(r"`([A-Z_]+)`", table))
    assert codes - {"RESOURCE_EXHAUSTED", "UNIMPLEMENTED"} <= {error.code for error in TABLE}


def test_every_call_is_described() -> None:
    methods = [method.name for method in broker_pb2.DESCRIPTOR.services_by_name["Broker"].methods]
    assert [name for name in methods if f"`{name}" not in TEXT] == []
