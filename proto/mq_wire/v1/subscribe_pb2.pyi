from mq_wire.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HoldRunRequest(_message.Message):
    __slots__ = ("run", "cluster_id")
    RUN_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    run: int
    cluster_id: bytes
    def __init__(self, run: _Optional[int] = ..., cluster_id: _Optional[bytes] = ...) -> None: ...

class RunEvent(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: int
    def __init__(self, run: _Optional[int] = ...) -> None: ...

class JoinQueryRequest(_message.Message):
    __slots__ = ("who", "query_id", "batch_id", "spark_run_id")
    WHO_FIELD_NUMBER: _ClassVar[int]
    QUERY_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    SPARK_RUN_ID_FIELD_NUMBER: _ClassVar[int]
    who: ConsumerRef
    query_id: str
    batch_id: int
    spark_run_id: str
    def __init__(self, who: _Optional[_Union[ConsumerRef, _Mapping]] = ..., query_id: _Optional[str] = ..., batch_id: _Optional[int] = ..., spark_run_id: _Optional[str] = ...) -> None: ...

class JoinQueryResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ConsumerRef(_message.Message):
    __slots__ = ("destination", "cluster_id", "destination_id", "consumer", "incarnation", "run")
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_ID_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    destination: str
    cluster_id: bytes
    destination_id: bytes
    consumer: str
    incarnation: bytes
    run: int
    def __init__(self, destination: _Optional[str] = ..., cluster_id: _Optional[bytes] = ..., destination_id: _Optional[bytes] = ..., consumer: _Optional[str] = ..., incarnation: _Optional[bytes] = ..., run: _Optional[int] = ...) -> None: ...

class PlanRequest(_message.Message):
    __slots__ = ("who", "start", "max_rows", "max_bytes", "min_rows", "bounded", "available_below", "wait_ms", "create", "accept_data_loss")
    WHO_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    MAX_ROWS_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    MIN_ROWS_FIELD_NUMBER: _ClassVar[int]
    BOUNDED_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_BELOW_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    CREATE_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_DATA_LOSS_FIELD_NUMBER: _ClassVar[int]
    who: ConsumerRef
    start: _common_pb2.Positions
    max_rows: int
    max_bytes: int
    min_rows: int
    bounded: bool
    available_below: _common_pb2.Positions
    wait_ms: int
    create: bool
    accept_data_loss: bool
    def __init__(self, who: _Optional[_Union[ConsumerRef, _Mapping]] = ..., start: _Optional[_Union[_common_pb2.Positions, _Mapping]] = ..., max_rows: _Optional[int] = ..., max_bytes: _Optional[int] = ..., min_rows: _Optional[int] = ..., bounded: bool = ..., available_below: _Optional[_Union[_common_pb2.Positions, _Mapping]] = ..., wait_ms: _Optional[int] = ..., create: bool = ..., accept_data_loss: bool = ...) -> None: ...

class PlanResponse(_message.Message):
    __slots__ = ("idle", "cluster_id", "destination_id", "incarnation", "end", "rows", "lag", "data_loss")
    IDLE_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    DATA_LOSS_FIELD_NUMBER: _ClassVar[int]
    idle: bool
    cluster_id: bytes
    destination_id: bytes
    incarnation: bytes
    end: _common_pb2.Positions
    rows: int
    lag: Lag
    data_loss: bool
    def __init__(self, idle: bool = ..., cluster_id: _Optional[bytes] = ..., destination_id: _Optional[bytes] = ..., incarnation: _Optional[bytes] = ..., end: _Optional[_Union[_common_pb2.Positions, _Mapping]] = ..., rows: _Optional[int] = ..., lag: _Optional[_Union[Lag, _Mapping]] = ..., data_loss: bool = ...) -> None: ...

class Lag(_message.Message):
    __slots__ = ("rows", "bytes", "oldest_age_ms", "dead_letters", "duplicates")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    OLDEST_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    rows: int
    bytes: int
    oldest_age_ms: int
    dead_letters: int
    duplicates: int
    def __init__(self, rows: _Optional[int] = ..., bytes: _Optional[int] = ..., oldest_age_ms: _Optional[int] = ..., dead_letters: _Optional[int] = ..., duplicates: _Optional[int] = ...) -> None: ...

class OpenRangeRequest(_message.Message):
    __slots__ = ("who", "start", "end", "accept_data_loss")
    WHO_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_DATA_LOSS_FIELD_NUMBER: _ClassVar[int]
    who: ConsumerRef
    start: _common_pb2.Positions
    end: _common_pb2.Positions
    accept_data_loss: bool
    def __init__(self, who: _Optional[_Union[ConsumerRef, _Mapping]] = ..., start: _Optional[_Union[_common_pb2.Positions, _Mapping]] = ..., end: _Optional[_Union[_common_pb2.Positions, _Mapping]] = ..., accept_data_loss: bool = ...) -> None: ...

class OpenRangeResponse(_message.Message):
    __slots__ = ("parts", "data_loss")
    PARTS_FIELD_NUMBER: _ClassVar[int]
    DATA_LOSS_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedCompositeFieldContainer[RangePart]
    data_loss: bool
    def __init__(self, parts: _Optional[_Iterable[_Union[RangePart, _Mapping]]] = ..., data_loss: bool = ...) -> None: ...

class RangePart(_message.Message):
    __slots__ = ("partition", "first", "last", "rows", "bytes")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    partition: int
    first: int
    last: int
    rows: int
    bytes: int
    def __init__(self, partition: _Optional[int] = ..., first: _Optional[int] = ..., last: _Optional[int] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class AcknowledgeRangeRequest(_message.Message):
    __slots__ = ("who", "end")
    WHO_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    who: ConsumerRef
    end: _common_pb2.Positions
    def __init__(self, who: _Optional[_Union[ConsumerRef, _Mapping]] = ..., end: _Optional[_Union[_common_pb2.Positions, _Mapping]] = ...) -> None: ...

class AcknowledgeRangeResponse(_message.Message):
    __slots__ = ("rows",)
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: int
    def __init__(self, rows: _Optional[int] = ...) -> None: ...

class OpenBrowseRequest(_message.Message):
    __slots__ = ("destination",)
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    destination: str
    def __init__(self, destination: _Optional[str] = ...) -> None: ...

class OpenBrowseResponse(_message.Message):
    __slots__ = ("browse", "destination_id", "parts")
    BROWSE_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_ID_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    browse: bytes
    destination_id: bytes
    parts: _containers.RepeatedCompositeFieldContainer[RangePart]
    def __init__(self, browse: _Optional[bytes] = ..., destination_id: _Optional[bytes] = ..., parts: _Optional[_Iterable[_Union[RangePart, _Mapping]]] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("open", "credit_rows", "credit_bytes")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    CREDIT_ROWS_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    open: OpenFetch
    credit_rows: int
    credit_bytes: int
    def __init__(self, open: _Optional[_Union[OpenFetch, _Mapping]] = ..., credit_rows: _Optional[int] = ..., credit_bytes: _Optional[int] = ...) -> None: ...

class OpenFetch(_message.Message):
    __slots__ = ("who", "browse", "partition", "first", "last", "columns", "batch_rows_max", "query_id", "batch_id", "spark_run_id", "accept_data_loss")
    WHO_FIELD_NUMBER: _ClassVar[int]
    BROWSE_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    BATCH_ROWS_MAX_FIELD_NUMBER: _ClassVar[int]
    QUERY_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    SPARK_RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_DATA_LOSS_FIELD_NUMBER: _ClassVar[int]
    who: ConsumerRef
    browse: bytes
    partition: int
    first: int
    last: int
    columns: int
    batch_rows_max: int
    query_id: str
    batch_id: int
    spark_run_id: str
    accept_data_loss: bool
    def __init__(self, who: _Optional[_Union[ConsumerRef, _Mapping]] = ..., browse: _Optional[bytes] = ..., partition: _Optional[int] = ..., first: _Optional[int] = ..., last: _Optional[int] = ..., columns: _Optional[int] = ..., batch_rows_max: _Optional[int] = ..., query_id: _Optional[str] = ..., batch_id: _Optional[int] = ..., spark_run_id: _Optional[str] = ..., accept_data_loss: bool = ...) -> None: ...

class FetchResponse(_message.Message):
    __slots__ = ("header", "records")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.RowsHeader
    records: bytes
    def __init__(self, header: _Optional[_Union[_common_pb2.RowsHeader, _Mapping]] = ..., records: _Optional[bytes] = ...) -> None: ...

class ListConsumersRequest(_message.Message):
    __slots__ = ("destination",)
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    destination: str
    def __init__(self, destination: _Optional[str] = ...) -> None: ...

class ListConsumersResponse(_message.Message):
    __slots__ = ("consumers",)
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    consumers: _containers.RepeatedCompositeFieldContainer[ConsumerInfo]
    def __init__(self, consumers: _Optional[_Iterable[_Union[ConsumerInfo, _Mapping]]] = ...) -> None: ...

class ConsumerInfo(_message.Message):
    __slots__ = ("destination", "consumer", "incarnation", "run", "connected", "unacknowledged_rows", "read_rows", "oldest_unacknowledged_ms", "pinned_bytes", "next", "query_id", "batch_id", "failed_attempts", "session", "client", "peer")
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    UNACKNOWLEDGED_ROWS_FIELD_NUMBER: _ClassVar[int]
    READ_ROWS_FIELD_NUMBER: _ClassVar[int]
    OLDEST_UNACKNOWLEDGED_MS_FIELD_NUMBER: _ClassVar[int]
    PINNED_BYTES_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    QUERY_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    FAILED_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    destination: str
    consumer: str
    incarnation: bytes
    run: int
    connected: bool
    unacknowledged_rows: int
    read_rows: int
    oldest_unacknowledged_ms: int
    pinned_bytes: int
    next: _common_pb2.Positions
    query_id: str
    batch_id: int
    failed_attempts: int
    session: int
    client: str
    peer: str
    def __init__(self, destination: _Optional[str] = ..., consumer: _Optional[str] = ..., incarnation: _Optional[bytes] = ..., run: _Optional[int] = ..., connected: bool = ..., unacknowledged_rows: _Optional[int] = ..., read_rows: _Optional[int] = ..., oldest_unacknowledged_ms: _Optional[int] = ..., pinned_bytes: _Optional[int] = ..., next: _Optional[_Union[_common_pb2.Positions, _Mapping]] = ..., query_id: _Optional[str] = ..., batch_id: _Optional[int] = ..., failed_attempts: _Optional[int] = ..., session: _Optional[int] = ..., client: _Optional[str] = ..., peer: _Optional[str] = ...) -> None: ...

class ReleaseConsumerRequest(_message.Message):
    __slots__ = ("destination", "consumer", "incarnation", "session")
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    destination: str
    consumer: str
    incarnation: bytes
    session: int
    def __init__(self, destination: _Optional[str] = ..., consumer: _Optional[str] = ..., incarnation: _Optional[bytes] = ..., session: _Optional[int] = ...) -> None: ...

class ReleaseConsumerResponse(_message.Message):
    __slots__ = ("returned_rows", "acknowledged_rows")
    RETURNED_ROWS_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_ROWS_FIELD_NUMBER: _ClassVar[int]
    returned_rows: int
    acknowledged_rows: int
    def __init__(self, returned_rows: _Optional[int] = ..., acknowledged_rows: _Optional[int] = ...) -> None: ...
