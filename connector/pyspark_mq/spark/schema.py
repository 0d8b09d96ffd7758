"""Columns of the Spark source, and what the sink takes for which envelope column.

Spark checks neither the schema that a user gives a source nor the one of the DataFrame that goes into a sink,
so both are checked here, when the query starts.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from mq_wire.errors import InvalidRecords, Unsupported

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_HEADERS_DDL: Final = "array<struct<key: string, value: binary>>"

#: Columns of the source in the order of the schema that a user gets without asking: a checkpoint lives with
#: it, so it stays.
_DEFAULT_COLUMNS: Final[dict[str, str]] = {
    "key": "binary",
    "value": "binary",
    "queue": "string",
    "partition": "int",
    "offset": "long",
    "timestamp": "timestamp",
    "headers": _HEADERS_DDL,
    "priority": "int",
    "delivery_count": "int",
    "message_id": "string",
    "producer": "string",
    "sequence": "long",
    "expires_at": "timestamp",
    "delivery": "binary",
}
#: Every column of the source with its type. Those behind the default ones come when a schema names them.
SOURCE_COLUMNS: Final[dict[str, str]] = _DEFAULT_COLUMNS | {
    "correlation_id": "string",
    "reply_to": "string",
    "type": "string",
    "trace_context": "string",
    "created_at": "timestamp",
}
#: Columns that have a value in every row; a user's schema may call them NOT NULL.
_NEVER_NULL: Final = frozenset(
    {"value", "queue", "partition", "offset", "timestamp", "priority", "delivery_count"}
)

_BYTES: Final = ("binary", "string")
_INTEGERS: Final = ("int", "smallint", "tinyint", "bigint")
#: Columns that the sink writes, with the Spark types that it takes for them.
SINK_COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "value": _BYTES,
    "key": _BYTES,
    "headers": (_HEADERS_DDL,),
    "priority": _INTEGERS,
    "message_id": ("string",),
    "correlation_id": ("string",),
    "reply_to": ("string",),
    "type": ("string",),
    "trace_context": ("string",),
    "created_at": ("timestamp",),
}
#: Columns that say where a row goes, with routeByColumns=true.
ROUTING_COLUMNS: Final[dict[str, tuple[str, ...]]] = {"queue": ("string",), "partition": _INTEGERS}
_NOT_YET: Final = ("expires_at", "deliver_at", "group_id", "persistent")
#: What a row from our source brings along and the sink gives anew.
_FROM_SOURCE_ONLY: Final = frozenset(
    {"queue", "partition", "offset", "timestamp", "delivery_count", "producer", "sequence", "delivery"}
)


def source_ddl(include_headers: bool) -> str:
    """Returns the source's schema, where the user gives none, as DDL text (a planner process has no session
    that could parse it).
    """
    return ", ".join(
        f"{name} {ddl}" for name, ddl in _DEFAULT_COLUMNS.items() if include_headers or name != "headers"
    )


def check_source_schema(schema: StructType) -> None:
    """Checks the columns that a user picked with `.schema(...)`: any of SOURCE_COLUMNS in any order, with
    exactly these types.

    Raises:
        InvalidRecords: another column, another type, a column twice, none at all, or NOT NULL where nulls
            occur.
    """
    problems = []
    seen: set[str] = set()
    for field in schema.fields:
        if field.name not in SOURCE_COLUMNS:
            problems.append(f"column {field.name} does not exist{_suggestion(field.name, SOURCE_COLUMNS)}")
        elif not _is(field.dataType, SOURCE_COLUMNS[field.name]):
            problems.append(
                f"column {field.name} is {field.dataType.simpleString()}, and must be "
                f"{SOURCE_COLUMNS[field.name]}"
            )
        elif not field.nullable and field.name not in _NEVER_NULL:
            problems.append(f"column {field.name} is NOT NULL, but a message may have none")
        if field.name in seen:
            problems.append(f"column {field.name} is there twice")
        seen.add(field.name)
    if not schema.fields:
        problems.append("it has no columns")
    if problems:
        known = ", ".join(f"{name} {ddl}" for name, ddl in SOURCE_COLUMNS.items())
        raise InvalidRecords(
            f"the schema given to format mq does not fit: {'; '.join(problems)}. Pick from: {known}"
        )


def check_sink_schema(schema: StructType, queue: str, route_by_columns: bool) -> None:
    """Checks the columns of a DataFrame that is to be written. Their names are in any case, as everywhere in
    Spark.

    Raises:
        InvalidRecords: value is missing, or a column has another type, is unknown or is there twice.
        Unsupported: a column of a later version.
    """
    problems = []
    names = [field.name.lower() for field in schema.fields]
    fields = dict(zip(names, schema.fields, strict=True))
    if len(fields) < len(names):
        problems.append(
            f"columns {sorted({name for name in names if names.count(name) > 1})} are there twice"
        )
    if "value" not in fields:
        problems.append("column value is missing: it is the message, string or binary")
    for name in fields.keys() & set(_NOT_YET):
        # From our own source this column is there and empty; a null column asks for nothing.
        if name != "expires_at" or not fields.keys() & {"delivery", "delivery_count", "offset"}:
            raise Unsupported(f"column {name} is not in this version: drop it before writing to format mq")
    for name, field in fields.items():
        wanted = SINK_COLUMNS.get(name) or (ROUTING_COLUMNS.get(name) if route_by_columns else None)
        if wanted is not None:
            if not any(_is(field.dataType, ddl) for ddl in wanted):
                problems.append(
                    f"column {name} is {field.dataType.simpleString()}, and must be {' or '.join(wanted)}"
                )
        elif name not in _FROM_SOURCE_ONLY and name not in _NOT_YET:
            problems.append(f"column {name} is unknown{_suggestion(name, [*SINK_COLUMNS, *ROUTING_COLUMNS])}")
    if not queue and "queue" not in fields:
        problems.append("there is neither option queue nor a column queue to route by")
    if problems:
        raise InvalidRecords(
            f"these columns cannot be written to format mq: {'; '.join(problems)}. It takes "
            f"{', '.join(SINK_COLUMNS)}"
            " (queue and partition with option routeByColumns=true)"
        )


def _is(actual: DataType, ddl: str) -> bool:
    """Whether a Spark type is the one that `ddl` names; nullability inside of headers does not count,
    collations do not either.
    """
    name = actual.simpleString()
    if ddl.startswith("array<"):
        return name == "array<struct<key:string,value:binary>>"
    return name == {"long": "bigint"}.get(ddl, ddl)


def _suggestion(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name.lower(), list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""
