from mq_wire.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OpenProducerRequest(_message.Message):
    __slots__ = ("name", "destination")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    name: str
    destination: str
    def __init__(self, name: _Optional[str] = ..., destination: _Optional[str] = ...) -> None: ...

class OpenProducerResponse(_message.Message):
    __slots__ = ("producer_id", "epoch", "marks")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MARKS_FIELD_NUMBER: _ClassVar[int]
    producer_id: str
    epoch: int
    marks: _containers.RepeatedCompositeFieldContainer[ProducerMark]
    def __init__(self, producer_id: _Optional[str] = ..., epoch: _Optional[int] = ..., marks: _Optional[_Iterable[_Union[ProducerMark, _Mapping]]] = ...) -> None: ...

class ProducerMark(_message.Message):
    __slots__ = ("partition", "rows", "last_offset")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    partition: int
    rows: int
    last_offset: int
    def __init__(self, partition: _Optional[int] = ..., rows: _Optional[int] = ..., last_offset: _Optional[int] = ...) -> None: ...

class PublishRequest(_message.Message):
    __slots__ = ("header", "records")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    header: PublishHeader
    records: bytes
    def __init__(self, header: _Optional[_Union[PublishHeader, _Mapping]] = ..., records: _Optional[bytes] = ...) -> None: ...

class PublishHeader(_message.Message):
    __slots__ = ("request_id", "destination", "partition", "producer_id", "epoch", "first_sequence", "rows", "columns", "schema_id", "priority_plus_one", "crc32", "has_crc32", "skip", "staged", "cluster_id", "awaited")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_ID_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_PLUS_ONE_FIELD_NUMBER: _ClassVar[int]
    CRC32_FIELD_NUMBER: _ClassVar[int]
    HAS_CRC32_FIELD_NUMBER: _ClassVar[int]
    SKIP_FIELD_NUMBER: _ClassVar[int]
    STAGED_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    AWAITED_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    destination: str
    partition: int
    producer_id: str
    epoch: int
    first_sequence: int
    rows: int
    columns: int
    schema_id: int
    priority_plus_one: int
    crc32: int
    has_crc32: bool
    skip: bool
    staged: StagedSet
    cluster_id: bytes
    awaited: bool
    def __init__(self, request_id: _Optional[int] = ..., destination: _Optional[str] = ..., partition: _Optional[int] = ..., producer_id: _Optional[str] = ..., epoch: _Optional[int] = ..., first_sequence: _Optional[int] = ..., rows: _Optional[int] = ..., columns: _Optional[int] = ..., schema_id: _Optional[int] = ..., priority_plus_one: _Optional[int] = ..., crc32: _Optional[int] = ..., has_crc32: bool = ..., skip: bool = ..., staged: _Optional[_Union[StagedSet, _Mapping]] = ..., cluster_id: _Optional[bytes] = ..., awaited: bool = ...) -> None: ...

class StagedSet(_message.Message):
    __slots__ = ("token", "epoch", "query_id", "batch_id", "run_id", "target")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    QUERY_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    token: bytes
    epoch: int
    query_id: str
    batch_id: int
    run_id: str
    target: str
    def __init__(self, token: _Optional[bytes] = ..., epoch: _Optional[int] = ..., query_id: _Optional[str] = ..., batch_id: _Optional[int] = ..., run_id: _Optional[str] = ..., target: _Optional[str] = ...) -> None: ...

class PublishResponse(_message.Message):
    __slots__ = ("request_id", "receipt", "error")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    receipt: Receipt
    error: _common_pb2.Error
    def __init__(self, request_id: _Optional[int] = ..., receipt: _Optional[_Union[Receipt, _Mapping]] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("partition", "base_offset", "rows", "duplicates", "log_id", "append_time_us")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    APPEND_TIME_US_FIELD_NUMBER: _ClassVar[int]
    partition: int
    base_offset: int
    rows: int
    duplicates: int
    log_id: bytes
    append_time_us: int
    def __init__(self, partition: _Optional[int] = ..., base_offset: _Optional[int] = ..., rows: _Optional[int] = ..., duplicates: _Optional[int] = ..., log_id: _Optional[bytes] = ..., append_time_us: _Optional[int] = ...) -> None: ...

class TakeEpochRequest(_message.Message):
    __slots__ = ("query_id", "target")
    QUERY_ID_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    query_id: str
    target: str
    def __init__(self, query_id: _Optional[str] = ..., target: _Optional[str] = ...) -> None: ...

class TakeEpochResponse(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class StagedToken(_message.Message):
    __slots__ = ("token", "rows")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    token: bytes
    rows: int
    def __init__(self, token: _Optional[bytes] = ..., rows: _Optional[int] = ...) -> None: ...

class CommitStagedRequest(_message.Message):
    __slots__ = ("tokens", "target", "owner", "version", "run_id", "rows", "keep_mismatch", "query_id")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    KEEP_MISMATCH_FIELD_NUMBER: _ClassVar[int]
    QUERY_ID_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[StagedToken]
    target: str
    owner: str
    version: int
    run_id: str
    rows: int
    keep_mismatch: bool
    query_id: str
    def __init__(self, tokens: _Optional[_Iterable[_Union[StagedToken, _Mapping]]] = ..., target: _Optional[str] = ..., owner: _Optional[str] = ..., version: _Optional[int] = ..., run_id: _Optional[str] = ..., rows: _Optional[int] = ..., keep_mismatch: bool = ..., query_id: _Optional[str] = ...) -> None: ...

class CommitStagedResponse(_message.Message):
    __slots__ = ("already_committed", "rows")
    ALREADY_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    already_committed: bool
    rows: int
    def __init__(self, already_committed: bool = ..., rows: _Optional[int] = ...) -> None: ...

class DiscardStagedRequest(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, tokens: _Optional[_Iterable[bytes]] = ...) -> None: ...

class DiscardStagedResponse(_message.Message):
    __slots__ = ("rows",)
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: int
    def __init__(self, rows: _Optional[int] = ...) -> None: ...

class ForgetMarkerRequest(_message.Message):
    __slots__ = ("owner", "target")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    owner: str
    target: str
    def __init__(self, owner: _Optional[str] = ..., target: _Optional[str] = ...) -> None: ...

class ForgetMarkerResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListStagedRequest(_message.Message):
    __slots__ = ("after", "query_id")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    QUERY_ID_FIELD_NUMBER: _ClassVar[int]
    after: bytes
    query_id: str
    def __init__(self, after: _Optional[bytes] = ..., query_id: _Optional[str] = ...) -> None: ...

class ListStagedResponse(_message.Message):
    __slots__ = ("sets", "more")
    SETS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    sets: _containers.RepeatedCompositeFieldContainer[StagedInfo]
    more: bool
    def __init__(self, sets: _Optional[_Iterable[_Union[StagedInfo, _Mapping]]] = ..., more: bool = ...) -> None: ...

class StagedInfo(_message.Message):
    __slots__ = ("token", "query_id", "batch_id", "run_id", "epoch", "target", "destinations", "rows", "bytes", "age_ms")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    QUERY_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    DESTINATIONS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    token: bytes
    query_id: str
    batch_id: int
    run_id: str
    epoch: int
    target: str
    destinations: _containers.RepeatedScalarFieldContainer[str]
    rows: int
    bytes: int
    age_ms: int
    def __init__(self, token: _Optional[bytes] = ..., query_id: _Optional[str] = ..., batch_id: _Optional[int] = ..., run_id: _Optional[str] = ..., epoch: _Optional[int] = ..., target: _Optional[str] = ..., destinations: _Optional[_Iterable[str]] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ..., age_ms: _Optional[int] = ...) -> None: ...

class ListMarkersRequest(_message.Message):
    __slots__ = ("after_owner", "after_target", "prefix")
    AFTER_OWNER_FIELD_NUMBER: _ClassVar[int]
    AFTER_TARGET_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    after_owner: str
    after_target: str
    prefix: str
    def __init__(self, after_owner: _Optional[str] = ..., after_target: _Optional[str] = ..., prefix: _Optional[str] = ...) -> None: ...

class ListMarkersResponse(_message.Message):
    __slots__ = ("markers", "more")
    MARKERS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    markers: _containers.RepeatedCompositeFieldContainer[MarkerInfo]
    more: bool
    def __init__(self, markers: _Optional[_Iterable[_Union[MarkerInfo, _Mapping]]] = ..., more: bool = ...) -> None: ...

class MarkerInfo(_message.Message):
    __slots__ = ("owner", "target", "version", "rows", "run_id", "query_id", "time_us")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    QUERY_ID_FIELD_NUMBER: _ClassVar[int]
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    owner: str
    target: str
    version: int
    rows: int
    run_id: str
    query_id: str
    time_us: int
    def __init__(self, owner: _Optional[str] = ..., target: _Optional[str] = ..., version: _Optional[int] = ..., rows: _Optional[int] = ..., run_id: _Optional[str] = ..., query_id: _Optional[str] = ..., time_us: _Optional[int] = ...) -> None: ...
