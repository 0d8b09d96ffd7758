from mq_wire.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Verb(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACCEPT: _ClassVar[Verb]
    RELEASE: _ClassVar[Verb]
ACCEPT: Verb
RELEASE: Verb

class ConsumeRequest(_message.Message):
    __slots__ = ("open", "credit", "acknowledge", "ask", "consumer", "handed_over", "settle", "drain", "close")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGE_FIELD_NUMBER: _ClassVar[int]
    ASK_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    HANDED_OVER_FIELD_NUMBER: _ClassVar[int]
    SETTLE_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    open: OpenConsumer
    credit: Credit
    acknowledge: AcknowledgeRows
    ask: Ask
    consumer: int
    handed_over: HandedOver
    settle: SettleRows
    drain: Drain
    close: bool
    def __init__(self, open: _Optional[_Union[OpenConsumer, _Mapping]] = ..., credit: _Optional[_Union[Credit, _Mapping]] = ..., acknowledge: _Optional[_Union[AcknowledgeRows, _Mapping]] = ..., ask: _Optional[_Union[Ask, _Mapping]] = ..., consumer: _Optional[int] = ..., handed_over: _Optional[_Union[HandedOver, _Mapping]] = ..., settle: _Optional[_Union[SettleRows, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ..., close: bool = ...) -> None: ...

class OpenConsumer(_message.Message):
    __slots__ = ("destination", "credit", "batch_rows_max", "create", "client")
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    BATCH_ROWS_MAX_FIELD_NUMBER: _ClassVar[int]
    CREATE_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    destination: str
    credit: Credit
    batch_rows_max: int
    create: bool
    client: str
    def __init__(self, destination: _Optional[str] = ..., credit: _Optional[_Union[Credit, _Mapping]] = ..., batch_rows_max: _Optional[int] = ..., create: bool = ..., client: _Optional[str] = ...) -> None: ...

class Ask(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    def __init__(self, request_id: _Optional[int] = ...) -> None: ...

class Credit(_message.Message):
    __slots__ = ("rows", "bytes")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    rows: int
    bytes: int
    def __init__(self, rows: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class AcknowledgeRows(_message.Message):
    __slots__ = ("request_id", "partitions")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionRanges]
    def __init__(self, request_id: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[PartitionRanges, _Mapping]]] = ...) -> None: ...

class HandedOver(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionRanges]
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionRanges, _Mapping]]] = ...) -> None: ...

class SettleRows(_message.Message):
    __slots__ = ("request_id", "verb", "partitions", "uncounted")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    VERB_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    UNCOUNTED_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    verb: Verb
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionRanges]
    uncounted: bool
    def __init__(self, request_id: _Optional[int] = ..., verb: _Optional[_Union[Verb, str]] = ..., partitions: _Optional[_Iterable[_Union[PartitionRanges, _Mapping]]] = ..., uncounted: bool = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    def __init__(self, request_id: _Optional[int] = ...) -> None: ...

class PartitionRanges(_message.Message):
    __slots__ = ("partition", "ranges")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    partition: int
    ranges: bytes
    def __init__(self, partition: _Optional[int] = ..., ranges: _Optional[bytes] = ...) -> None: ...

class ConsumeResponse(_message.Message):
    __slots__ = ("header", "records")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    header: ConsumeHeader
    records: bytes
    def __init__(self, header: _Optional[_Union[ConsumeHeader, _Mapping]] = ..., records: _Optional[bytes] = ...) -> None: ...

class ConsumeHeader(_message.Message):
    __slots__ = ("opened", "delivery", "acknowledged", "error", "asked", "consumer", "drained", "closed")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    opened: ConsumerOpened
    delivery: _common_pb2.RowsHeader
    acknowledged: Acknowledged
    error: _common_pb2.Error
    asked: Asked
    consumer: int
    drained: Drained
    closed: bool
    def __init__(self, opened: _Optional[_Union[ConsumerOpened, _Mapping]] = ..., delivery: _Optional[_Union[_common_pb2.RowsHeader, _Mapping]] = ..., acknowledged: _Optional[_Union[Acknowledged, _Mapping]] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., asked: _Optional[_Union[Asked, _Mapping]] = ..., consumer: _Optional[int] = ..., drained: _Optional[_Union[Drained, _Mapping]] = ..., closed: bool = ...) -> None: ...

class ConsumerOpened(_message.Message):
    __slots__ = ("session", "destination_id")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_ID_FIELD_NUMBER: _ClassVar[int]
    session: int
    destination_id: bytes
    def __init__(self, session: _Optional[int] = ..., destination_id: _Optional[bytes] = ...) -> None: ...

class Asked(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    def __init__(self, request_id: _Optional[int] = ...) -> None: ...

class Drained(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    def __init__(self, request_id: _Optional[int] = ...) -> None: ...

class Acknowledged(_message.Message):
    __slots__ = ("request_id", "rows")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    rows: int
    def __init__(self, request_id: _Optional[int] = ..., rows: _Optional[int] = ...) -> None: ...
