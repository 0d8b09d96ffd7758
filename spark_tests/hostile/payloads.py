"""Arrow messages that are valid, and none of ours: other types, nested, encoded, compressed, huge by
claim.
"""

from __future__ import annotations

import functools
import io
from typing import Any, Final

import pyarrow as pa

from mq_wire import envelope, framing
from mq_wire.v1.produce_pb2 import PublishHeader

ROWS: Final = 12


def _compressed(batch: pa.RecordBatch, codec: str) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(batch)
    return bytes(list(pa.ipc.MessageReader.open_stream(sink.getvalue()))[-1].serialize().to_pybytes())


def _nested(depth: int) -> pa.Array:
    kind: Any = pa.int8()
    for _ in range(depth):
        kind = pa.list_(kind)
    return pa.nulls(ROWS, kind)


def _columns() -> dict[str, Any]:
    texts = [f"t{number}" for number in range(ROWS)]
    values = [b"v%d" % number for number in range(ROWS)]
    return {
        "null": pa.nulls(ROWS),
        "bool": pa.array([True] * ROWS),
        "int64": pa.array(range(ROWS), pa.int64()),
        "double": pa.array([float("nan"), float("inf"), -float("inf"), -0.0] * 3),
        "large binary": pa.array(values, pa.large_binary()),
        "binary view": pa.array(values, pa.binary_view()),
        "string view": pa.array([text * 20 for text in texts], pa.string_view()),
        "fixed": pa.array([b"12345678"] * ROWS, pa.binary(8)),
        "dictionary": pa.array(texts).dictionary_encode(),
        "run-end": pa.RunEndEncodedArray.from_arrays(pa.array([ROWS], pa.int32()), pa.array([b"v"])),
        "map": pa.array([[(text, b"v")] for text in texts], pa.map_(pa.string(), pa.binary())),
        "list view": pa.array([[value] for value in values], pa.list_view(pa.binary())),
        "fixed list": pa.array([[1, 2]] * ROWS, pa.list_(pa.int8(), 2)),
        "struct": pa.array([{"key": text, "value": b""} for text in texts]),
        "dense union": pa.UnionArray.from_dense(
            pa.array([0] * ROWS, pa.int8()),
            pa.array(range(ROWS), pa.int32()),
            [pa.array(values), pa.array(range(ROWS))],
        ),
        "deep": _nested(60),
        "uuid": pa.array([b"0123456789abcdef"] * ROWS, pa.uuid()),
        "decimal": pa.array([1] * ROWS, pa.decimal256(70, 2)),
        "values without offsets": pa.array([b""] * ROWS),
        "headers with null names": pa.array(
            [[{"key": None, "value": b"x"}, None]] * ROWS,
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        ),
        "times beyond every calendar": pa.array([2**63 - 1, -(2**63)] * 6, envelope.TIMESTAMP_TYPE),
    }


@functools.cache
def foreign_records() -> dict[str, bytes]:
    """Returns IPC messages by what they are."""
    found: dict[str, bytes] = {}
    values = pa.array([b"v%d" % number for number in range(ROWS)])
    for name, column in _columns().items():
        for label, batch in (
            (name, pa.record_batch([column], names=["value"])),
            (f"value and {name}", pa.record_batch([values, column], names=["value", "x"])),
        ):
            found[label] = batch.serialize().to_pybytes()
    good = pa.record_batch([values], names=["value"])
    for codec in ("zstd", "lz4"):
        found[codec] = _compressed(
            pa.record_batch([pa.array([bytes(10_000)] * ROWS)], names=["value"]), codec
        )
    found["no columns"] = (
        pa.RecordBatch.from_struct_array(pa.array([{}] * ROWS, pa.struct([]))).serialize().to_pybytes()
    )
    found["2,000 columns"] = pa.record_batch([values] * 2000, names=["value"] * 2000).serialize().to_pybytes()
    found["schema"] = good.schema.serialize().to_pybytes()
    found["a million million rows"] = (
        pa.record_batch([pa.nulls(2**31 - 1)], names=["value"]).serialize().to_pybytes()
    )
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    with pa.ipc.new_stream(
        sink, pa.schema([("value", pa.dictionary(pa.int32(), pa.string()))]), options=options
    ) as writer:
        for words in (["a", "b"], ["a", "b", "c"]):
            writer.write_batch(pa.record_batch([pa.array(words).dictionary_encode()], names=["value"]))
    for number, message in enumerate(pa.ipc.MessageReader.open_stream(sink.getvalue())):
        found[f"dictionary stream {number}"] = message.serialize().to_pybytes()
    old = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4, use_legacy_format=True)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, good.schema, options=old) as writer:
        writer.write_batch(good)
    found["legacy stream"] = sink.getvalue()
    return found


def foreign_publishes(destination: str) -> list[bytes]:
    """Returns PublishRequests that carry them, under headers that fit as well as they can."""
    others = envelope.HEADERS, envelope.BIT["created_at"], envelope.PRIORITY, envelope.BIT["message_id"]
    masks = [envelope.VALUE, *(envelope.VALUE | other for other in others)]
    return [
        framing.join(
            PublishHeader(destination=destination, rows=ROWS, columns=mask).SerializeToString(), records
        )
        for records in foreign_records().values()
        for mask in (masks if len(records) < 20_000 else masks[:1])
    ]
