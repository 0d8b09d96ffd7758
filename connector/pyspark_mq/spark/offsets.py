"""Offsets v1: what Spark writes into its checkpoint. JSON, keys sorted, for ever readable.

    {"cluster": uuid, "destination": name, "destination_id": uuid, "incarnation": hex, "next": {"0": 123,
    ...},
     "subscription": name, "v": 1}

`next` holds delivery numbers by partition, `subscription` the durable consumer name (empty without one).
Before anything was planned it is `{"v": 1}`. Spark compares offsets as text, so equal offsets must be equal
text: keys are sorted and partitions at 0 left out.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Final

from mq_wire.errors import InvalidRequest, Unsupported
from pyspark_mq.client.boundary import Boundary

VERSION: Final = 1
_KEYS: Final = ("cluster", "destination", "destination_id", "incarnation", "next", "subscription", "v")
_POSITION_MAX: Final = 2**64 - 1


def to_json(boundary: Boundary) -> dict[str, Any]:
    """Returns the object that Spark turns into text, in the order of its keys."""
    if boundary.initial:
        return {"v": VERSION}
    positions = {
        str(partition): boundary.positions[partition]
        for partition in sorted(boundary.positions)
        if boundary.positions[partition]
    }
    return {
        "cluster": str(uuid.UUID(bytes=boundary.cluster_id)),
        "destination": boundary.destination,
        "destination_id": str(uuid.UUID(bytes=boundary.destination_id)),
        "incarnation": boundary.incarnation.hex(),
        "next": dict(sorted(positions.items())),
        "subscription": boundary.consumer,
        "v": VERSION,
    }


def from_json(value: object) -> Boundary:
    """Returns the boundary in `value`.

    Raises:
        Unsupported: written by a newer version.
        InvalidRequest: not offsets of format mq, or damaged.
    """
    version = value.get("v") if isinstance(value, Mapping) else None
    if not isinstance(value, Mapping) or type(version) is not int or version < 1:
        raise InvalidRequest(
            f"the checkpoint holds {_shown(value)}, which are no offsets of format mq: start with "
            f"another checkpoint"
        )
    if version > VERSION:
        raise Unsupported(
            f"the checkpoint holds offsets of version {version}, this pyspark-mq reads up to "
            f"{VERSION}: update it"
        )
    if set(value) == {"v"}:
        return Boundary()
    missing, extra = set(_KEYS) - set(value), set(value) - set(_KEYS)
    if missing or extra:
        what = (
            f"lack {', '.join(sorted(missing))}"
            if missing
            else f"have unknown entries {', '.join(sorted(extra))}"
        )
        raise InvalidRequest(
            f"the checkpoint's offsets {_shown(value)} {what}: restore the checkpoint or start with another"
        )
    return Boundary(
        destination=_text(value, "destination"),
        consumer=_text(value, "subscription"),
        cluster_id=_uuid(value, "cluster"),
        destination_id=_uuid(value, "destination_id"),
        incarnation=_hex(value, "incarnation"),
        positions=_positions(value),
    )


def _text(value: Mapping[str, Any], key: str) -> str:
    text = value[key]
    if not isinstance(text, str):
        raise _damaged(value, key, "text")
    return text


def _uuid(value: Mapping[str, Any], key: str) -> bytes:
    try:
        return uuid.UUID(_text(value, key)).bytes
    except ValueError:
        raise _damaged(value, key, "a uuid") from None


def _hex(value: Mapping[str, Any], key: str) -> bytes:
    try:
        decoded = bytes.fromhex(_text(value, key))
    except ValueError:
        decoded = b""
    if not decoded:
        raise _damaged(value, key, "hexadecimal digits")
    return decoded


def _positions(value: Mapping[str, Any]) -> dict[int, int]:
    positions = value["next"]
    if not isinstance(positions, Mapping):
        raise _damaged(value, "next", "an object of partition: number")
    for partition, number in positions.items():
        if not (
            isinstance(partition, str)
            and partition.isascii()
            and partition.isdigit()
            and len(partition) <= 10
        ):
            raise _damaged(value, "next", "an object whose keys are partition numbers")
        if type(number) is not int or not 0 <= number <= _POSITION_MAX:
            raise _damaged(value, "next", "an object of whole numbers, 0 or more")
    return {int(partition): number for partition, number in positions.items()}


def _damaged(value: Mapping[str, Any], key: str, wanted: str) -> InvalidRequest:
    return InvalidRequest(
        f"the checkpoint's offsets have {key} = {_shown(value[key])}, not {wanted}: restore the checkpoint "
        f"or start with another"
    )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "..."
