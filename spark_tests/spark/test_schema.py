"""Schemas: a user's pick of the source's columns, and DataFrames on their way into the sink."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from mq_wire.errors import InvalidRecords, Unsupported
from pyspark_mq.spark.schema import (
    SINK_COLUMNS,
    SOURCE_COLUMNS,
    check_sink_schema,
    check_source_schema,
    source_ddl,
)


def struct(**columns: DataType) -> StructType:
    return StructType([StructField(name, data_type) for name, data_type in columns.items()])


def test_headers_only_when_asked_for() -> None:
    assert "headers" not in source_ddl(False)
    assert (
        "timestamp timestamp, headers array<struct<key: string, value: binary>>, priority int"
        in source_ddl(True)
    )
    assert source_ddl(True).startswith("key binary, value binary, queue string, partition int, offset long")


def test_the_default_schema_is_that_of_existing_checkpoints() -> None:
    assert [column.split()[0] for column in source_ddl(False).split(", ")] == [
        "key",
        "value",
        "queue",
        "partition",
        "offset",
        "timestamp",
        "priority",
        "delivery_count",
        "message_id",
        "producer",
        "sequence",
        "expires_at",
        "delivery",
    ]


def test_whatever_the_sink_sends_the_source_can_select() -> None:
    assert SINK_COLUMNS.keys() <= SOURCE_COLUMNS.keys()
    for name in SINK_COLUMNS:
        assert SOURCE_COLUMNS[name] in SINK_COLUMNS[name]


def test_any_subset_in_any_order() -> None:
    check_source_schema(struct(offset=LongType(), value=BinaryType(), expires_at=TimestampType()))


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (struct(value=StringType()), "column value is string, and must be binary"),
        (struct(vale=BinaryType()), r"vale does not exist \(did you mean value\?\)"),
        (struct(offset=IntegerType()), "column offset is int, and must be long"),
        (
            StructType([StructField("value", BinaryType()), StructField("value", BinaryType())]),
            "value is there twice",
        ),
        (StructType([]), "no columns"),
        (StructType([StructField("key", BinaryType(), nullable=False)]), "key is NOT NULL"),
    ],
)
def test_other_source_schemas_are_refused(schema: StructType, text: str) -> None:
    with pytest.raises(InvalidRecords, match=text):
        check_source_schema(schema)


def test_all_mistakes_in_one_error() -> None:
    with pytest.raises(InvalidRecords, match=r"(?s)value is string.*nothing does not exist"):
        check_source_schema(struct(value=StringType(), nothing=StringType()))


def test_rows_of_our_source_can_be_written_as_they_are() -> None:
    types = {
        "binary": BinaryType(),
        "string": StringType(),
        "int": IntegerType(),
        "long": LongType(),
        "timestamp": TimestampType(),
    }
    schema = struct(**{name: types[ddl] for name, ddl in SOURCE_COLUMNS.items() if ddl in types})
    check_sink_schema(schema, "orders", route_by_columns=False)
    check_sink_schema(schema, "", route_by_columns=True)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (struct(key=BinaryType()), "value is missing"),
        (struct(value=IntegerType()), "column value is int, and must be binary or string"),
        (struct(value=BinaryType(), priority=StringType()), "priority is string"),
        (struct(value=BinaryType(), headers=StringType()), "headers is string"),
        (struct(value=BinaryType(), keys=BinaryType()), r"keys is unknown \(did you mean key\?\)"),
        (struct(value=BinaryType(), queue=IntegerType()), None),
        (struct(VALUE=BinaryType(), Key=BinaryType()), None),
        (struct(VALUE=BinaryType(), value=BinaryType()), r"\['value'\] are there twice"),
    ],
)
def test_sink_schemas(schema: StructType, text: str | None) -> None:
    if text is None:
        check_sink_schema(schema, "orders", route_by_columns=False)
    else:
        with pytest.raises(InvalidRecords, match=text):
            check_sink_schema(schema, "orders", route_by_columns=False)


def test_routing_columns_count_only_with_the_option() -> None:
    with pytest.raises(InvalidRecords, match="queue is int"):
        check_sink_schema(struct(value=BinaryType(), queue=IntegerType()), "", route_by_columns=True)
    with pytest.raises(InvalidRecords, match="neither option queue nor a column queue"):
        check_sink_schema(struct(value=BinaryType()), "", route_by_columns=True)


@pytest.mark.parametrize("name", ["expires_at", "deliver_at", "group_id", "persistent"])
def test_columns_of_later_versions_are_refused_by_name(name: str) -> None:
    with pytest.raises(Unsupported, match=f"column {name}"):
        check_sink_schema(
            struct(**{"value": BinaryType(), name: BooleanType()}), "orders", route_by_columns=False
        )
