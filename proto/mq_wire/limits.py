"""Limits that clients and broker share, and the relations between them."""

from __future__ import annotations

from typing import Final

#: Size of one record batch as an Arrow IPC message, on the wire and on disk.
RECORDS_BYTES_MAX: Final = 4 << 20
#: Size of one message: value, key, names and values of its headers, and its other texts together. The rest of
#: a record batch is for what Arrow adds: offsets, padding and metadata of one row with all columns and
#: headers take less than 16 KiB.
MESSAGE_BYTES_MAX: Final = RECORDS_BYTES_MAX - (32 << 10)
#: Size of the value of one message. The difference leaves room to add a key and headers to a received
#: message.
VALUE_BYTES_MAX: Final = MESSAGE_BYTES_MAX - (32 << 10)
#: Rows of one record batch.
RECORDS_ROWS_MAX: Final = 1 << 17
#: Size of everything beside the records in one gRPC message: header, run lengths, offsets of RECORDS_ROWS_MAX
#: rows.
HEADER_BYTES_MAX: Final = 4 << 20
#: Size of one gRPC message; clients and broker set this limit in gRPC.
RPC_BYTES_MAX: Final = RECORDS_BYTES_MAX + HEADER_BYTES_MAX + (64 << 10)
#: Size of one request without records or long lists. Positions in PARTITIONS_MAX partitions take 20 KiB.
REQUEST_BYTES_MAX: Final = 1 << 20
NAME_BYTES_MAX: Final = 255
#: Size of ids that clients choose: of queries, runs and transactions.
ID_BYTES_MAX: Final = 512
#: Size of the header of one published batch.
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

# The offsets of a full batch (8 bytes a row) must fit into the header.
assert RECORDS_ROWS_MAX * 8 + (1 << 20) < HEADER_BYTES_MAX
# Arrow's offsets have 32 bits: 64 full batches together must stay below their limit.
assert RECORDS_BYTES_MAX < 2**31 // 64
#: Batches that the duplicate audit remembers for each producer and partition. Clients have fewer unanswered.
AUDIT_RANGES: Final = 256
