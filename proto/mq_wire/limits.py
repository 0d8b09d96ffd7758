"""Bounds that both sides know, and the relations between them."""

from __future__ import annotations

from typing import Final

#: One record batch on the wire and on disk, as Arrow IPC.
RECORDS_BYTES_MAX: Final = 4 << 20
#: One message: value, key, names and values of its headers and its other texts together. The rest of a record
#: batch is what Arrow adds: offsets, paddings and metadata of one row with all of its columns and headers
#: take less than 16 KiB.
MESSAGE_BYTES_MAX: Final = RECORDS_BYTES_MAX - (32 << 10)
#: Its value alone: what was received can be sent again with a key and headers added.
VALUE_BYTES_MAX: Final = MESSAGE_BYTES_MAX - (32 << 10)
#: Rows of one record batch.
RECORDS_ROWS_MAX: Final = 1 << 17
#: What may stand beside the records in one gRPC message: headers, run lengths, offsets of RECORDS_ROWS_MAX
#: rows.
HEADER_BYTES_MAX: Final = 4 << 20
#: gRPC's own limit, set on both sides.
RPC_BYTES_MAX: Final = RECORDS_BYTES_MAX + HEADER_BYTES_MAX + (64 << 10)
#: One request without records or long lists; a boundary of PARTITIONS_MAX partitions takes 20 KiB.
REQUEST_BYTES_MAX: Final = 1 << 20
NAME_BYTES_MAX: Final = 255
#: Ids of queries, runs and transactions, which others choose.
ID_BYTES_MAX: Final = 512
#: Header of one published batch.
PUBLISH_HEADER_BYTES_MAX: Final = 1900
PARTITIONS_MAX: Final = 1024
PRIORITIES: Final = 10
PRIORITY_DEFAULT: Final = 4
HEADERS_PER_ROW_MAX: Final = 1000
TOKEN_BYTES: Final = 16
PROTOCOL_VERSION: Final = 1
DEFAULT_PORT: Final = 7654
DEFAULT_ADDRESS: Final = f"mq://127.0.0.1:{DEFAULT_PORT}"
#: Prefix of header keys that belong to the broker.
RESERVED_HEADER_PREFIX: Final = "mq."

# Offsets of a whole batch (8 bytes a row) must fit beside it.
assert RECORDS_ROWS_MAX * 8 + (1 << 20) < HEADER_BYTES_MAX
# Rows of one batch must be countable in Arrow's 32-bit offsets many times over.
assert RECORDS_BYTES_MAX < 2**31 // 64
#: Batches that the duplicate audit remembers per producer and partition; a client keeps fewer than that
#: unanswered.
AUDIT_RANGES: Final = 256
