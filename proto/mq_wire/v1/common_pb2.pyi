from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Error(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class Positions(_message.Message):
    __slots__ = ("next",)
    class NextEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    NEXT_FIELD_NUMBER: _ClassVar[int]
    next: _containers.ScalarMap[int, int]
    def __init__(self, next: _Optional[_Mapping[int, int]] = ...) -> None: ...

class RowsHeader(_message.Message):
    __slots__ = ("partition", "rows", "columns", "log_id", "base_offset", "offsets", "first_delivery", "run_rows", "append_time_us", "priority", "delivery_count", "producer", "sequence_shift", "producers", "credit_bytes")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    FIRST_DELIVERY_FIELD_NUMBER: _ClassVar[int]
    RUN_ROWS_FIELD_NUMBER: _ClassVar[int]
    APPEND_TIME_US_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_COUNT_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_SHIFT_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    partition: int
    rows: int
    columns: int
    log_id: bytes
    base_offset: int
    offsets: bytes
    first_delivery: int
    run_rows: _containers.RepeatedScalarFieldContainer[int]
    append_time_us: _containers.RepeatedScalarFieldContainer[int]
    priority: _containers.RepeatedScalarFieldContainer[int]
    delivery_count: _containers.RepeatedScalarFieldContainer[int]
    producer: _containers.RepeatedScalarFieldContainer[int]
    sequence_shift: _containers.RepeatedScalarFieldContainer[int]
    producers: _containers.RepeatedScalarFieldContainer[str]
    credit_bytes: int
    def __init__(self, partition: _Optional[int] = ..., rows: _Optional[int] = ..., columns: _Optional[int] = ..., log_id: _Optional[bytes] = ..., base_offset: _Optional[int] = ..., offsets: _Optional[bytes] = ..., first_delivery: _Optional[int] = ..., run_rows: _Optional[_Iterable[int]] = ..., append_time_us: _Optional[_Iterable[int]] = ..., priority: _Optional[_Iterable[int]] = ..., delivery_count: _Optional[_Iterable[int]] = ..., producer: _Optional[_Iterable[int]] = ..., sequence_shift: _Optional[_Iterable[int]] = ..., producers: _Optional[_Iterable[str]] = ..., credit_bytes: _Optional[int] = ...) -> None: ...
