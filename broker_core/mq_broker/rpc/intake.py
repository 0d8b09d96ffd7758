"""Turns the bytes of a publish request into a validated command. It runs on the thread of the stream, so
streams validate in parallel.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from google.protobuf.message import DecodeError

from mq_broker.core.commands import Publish
from mq_broker.core.model.facets import DEFAULT, facets_of
from mq_wire import envelope, framing, one_row
from mq_wire.checksum import crc32
from mq_wire.errors import InvalidRecords, InvalidRequest, LimitExceeded, Unsupported, WrongBroker
from mq_wire.limits import PRIORITIES, PUBLISH_HEADER_BYTES_MAX, RECORDS_BYTES_MAX
from mq_wire.v1.produce_pb2 import PublishHeader

_NOTHING: Final = pa.py_buffer(b"")


def parse(message: bytes) -> tuple[PublishHeader, memoryview]:
    """Returns header and records of a `PublishRequest`; the records are a view of `message`.

    Raises:
        InvalidRequest, LimitExceeded: the bytes are no such message. The rest of the stream cannot be trusted
            either.
    """
    header, records = framing.split(message)
    if len(header) > PUBLISH_HEADER_BYTES_MAX:
        raise LimitExceeded(
            f"the header of a PublishRequest has {len(header)} bytes, the limit is "
            f"{PUBLISH_HEADER_BYTES_MAX}: choose shorter names and ids"
        )
    try:
        return PublishHeader.FromString(bytes(header)), records
    except DecodeError as error:
        raise InvalidRequest(f"the header of a PublishRequest cannot be read: {error}") from None


def check_broker(header: PublishHeader, cluster_id: bytes) -> None:
    """Refuses a request that is for another broker than the one of this `cluster_id`.

    Raises:
        WrongBroker: it is.
    """
    if header.cluster_id not in (b"", cluster_id):
        raise WrongBroker(
            f"producer {header.producer_id!r} began with broker {header.cluster_id.hex()}: "
            "make a new producer for this broker"
        )


def command(header: PublishHeader, records: memoryview) -> Publish:
    """Returns the command for one request, with its records fully validated. Their size is checked first.

    Raises:
        LimitExceeded, InvalidRecords, InvalidRequest, Unsupported: the request is wrong; nothing was changed.
    """
    if header.skip:
        if len(records):
            raise InvalidRequest(
                f"a skip of {header.rows} sequences has {len(records)} bytes of records: "
                "send it without records"
            )
        return Publish(header, _NOTHING, 0, DEFAULT)
    _check_header(header)
    if len(records) > RECORDS_BYTES_MAX:
        raise LimitExceeded(
            f"a record batch of {len(records)} bytes is over the limit of {RECORDS_BYTES_MAX}: "
            "send smaller batches"
        )
    crc = crc32(records)
    if header.has_crc32 and crc != header.crc32:
        raise InvalidRecords(
            f"the records have checksum {crc:#010x}, their header says {header.crc32:#010x}: send them again"
        )
    buffer = pa.py_buffer(records)
    if header.rows == 1 and one_row.is_one_row(records, header.columns):
        return Publish(header, buffer, crc, facets_of(header, None))
    batch = envelope.decode(buffer, header.columns, header.rows)
    return Publish(header, buffer, crc, facets_of(header, batch))


def _check_header(header: PublishHeader) -> None:
    if header.schema_id:
        raise Unsupported(
            f"this broker does not know schema {header.schema_id}: the only schema is 0, the envelope"
        )
    if header.columns & envelope.NOT_YET:
        names = [name for name, bit in envelope.BIT.items() if header.columns & envelope.NOT_YET & bit]
        raise Unsupported(f"this broker does not support the columns {', '.join(names)} yet: leave them out")
    if header.priority_plus_one > PRIORITIES:
        raise InvalidRecords(f"priority {header.priority_plus_one - 1} is outside 0 to {PRIORITIES - 1}")
    if header.priority_plus_one and header.columns & envelope.PRIORITY:
        raise InvalidRequest(
            f"a batch has priority {header.priority_plus_one - 1} for all rows and a column of priorities: "
            "send one of them"
        )
