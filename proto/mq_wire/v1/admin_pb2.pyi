from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HelloRequest(_message.Message):
    __slots__ = ("client", "protocol", "features")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    client: str
    protocol: int
    features: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, client: _Optional[str] = ..., protocol: _Optional[int] = ..., features: _Optional[_Iterable[str]] = ...) -> None: ...

class HelloResponse(_message.Message):
    __slots__ = ("cluster_id", "version", "protocol", "features", "limits")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: bytes
    version: str
    protocol: int
    features: _containers.RepeatedScalarFieldContainer[str]
    limits: Limits
    def __init__(self, cluster_id: _Optional[bytes] = ..., version: _Optional[str] = ..., protocol: _Optional[int] = ..., features: _Optional[_Iterable[str]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("records_bytes_max", "records_rows_max", "name_bytes_max")
    RECORDS_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    RECORDS_ROWS_MAX_FIELD_NUMBER: _ClassVar[int]
    NAME_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    records_bytes_max: int
    records_rows_max: int
    name_bytes_max: int
    def __init__(self, records_bytes_max: _Optional[int] = ..., records_rows_max: _Optional[int] = ..., name_bytes_max: _Optional[int] = ...) -> None: ...

class DescribeDestinationRequest(_message.Message):
    __slots__ = ("name", "create")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CREATE_FIELD_NUMBER: _ClassVar[int]
    name: str
    create: bool
    def __init__(self, name: _Optional[str] = ..., create: bool = ...) -> None: ...

class CreateDestinationRequest(_message.Message):
    __slots__ = ("name", "partitions")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    partitions: int
    def __init__(self, name: _Optional[str] = ..., partitions: _Optional[int] = ...) -> None: ...

class DeleteDestinationRequest(_message.Message):
    __slots__ = ("name", "destination_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    destination_id: bytes
    def __init__(self, name: _Optional[str] = ..., destination_id: _Optional[bytes] = ...) -> None: ...

class DeleteDestinationResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Destination(_message.Message):
    __slots__ = ("name", "destination_id", "partitions", "created")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    name: str
    destination_id: bytes
    partitions: _containers.RepeatedCompositeFieldContainer[Partition]
    created: bool
    def __init__(self, name: _Optional[str] = ..., destination_id: _Optional[bytes] = ..., partitions: _Optional[_Iterable[_Union[Partition, _Mapping]]] = ..., created: bool = ...) -> None: ...

class Partition(_message.Message):
    __slots__ = ("partition", "end_offset", "address")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    partition: int
    end_offset: int
    address: str
    def __init__(self, partition: _Optional[int] = ..., end_offset: _Optional[int] = ..., address: _Optional[str] = ...) -> None: ...

class ListDestinationsRequest(_message.Message):
    __slots__ = ("prefix",)
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    def __init__(self, prefix: _Optional[str] = ...) -> None: ...

class ListDestinationsResponse(_message.Message):
    __slots__ = ("destinations",)
    DESTINATIONS_FIELD_NUMBER: _ClassVar[int]
    destinations: _containers.RepeatedCompositeFieldContainer[DestinationStats]
    def __init__(self, destinations: _Optional[_Iterable[_Union[DestinationStats, _Mapping]]] = ...) -> None: ...

class StatsRequest(_message.Message):
    __slots__ = ("destination",)
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    destination: str
    def __init__(self, destination: _Optional[str] = ...) -> None: ...

class StatsResponse(_message.Message):
    __slots__ = ("broker", "destination")
    BROKER_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    broker: BrokerStats
    destination: DestinationStats
    def __init__(self, broker: _Optional[_Union[BrokerStats, _Mapping]] = ..., destination: _Optional[_Union[DestinationStats, _Mapping]] = ...) -> None: ...

class BrokerStats(_message.Message):
    __slots__ = ("turns", "journal_bytes", "segments", "published_rows", "delivered_rows", "acknowledged_rows", "duplicate_rows", "destinations", "sessions", "runs", "staged_rows", "uptime_ms", "rss_anon_bytes")
    TURNS_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_ROWS_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_ROWS_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_ROWS_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_ROWS_FIELD_NUMBER: _ClassVar[int]
    DESTINATIONS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    STAGED_ROWS_FIELD_NUMBER: _ClassVar[int]
    UPTIME_MS_FIELD_NUMBER: _ClassVar[int]
    RSS_ANON_BYTES_FIELD_NUMBER: _ClassVar[int]
    turns: int
    journal_bytes: int
    segments: int
    published_rows: int
    delivered_rows: int
    acknowledged_rows: int
    duplicate_rows: int
    destinations: int
    sessions: int
    runs: int
    staged_rows: int
    uptime_ms: int
    rss_anon_bytes: int
    def __init__(self, turns: _Optional[int] = ..., journal_bytes: _Optional[int] = ..., segments: _Optional[int] = ..., published_rows: _Optional[int] = ..., delivered_rows: _Optional[int] = ..., acknowledged_rows: _Optional[int] = ..., duplicate_rows: _Optional[int] = ..., destinations: _Optional[int] = ..., sessions: _Optional[int] = ..., runs: _Optional[int] = ..., staged_rows: _Optional[int] = ..., uptime_ms: _Optional[int] = ..., rss_anon_bytes: _Optional[int] = ...) -> None: ...

class DestinationStats(_message.Message):
    __slots__ = ("name", "destination_id", "partitions", "depth_rows", "ready_rows", "assigned_rows", "ready_bytes", "ready_by_priority", "oldest_age_ms", "duplicate_rows", "enqueued_rows", "dead_letters", "staged_rows", "consumers", "quarantined_rows")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    DEPTH_ROWS_FIELD_NUMBER: _ClassVar[int]
    READY_ROWS_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_ROWS_FIELD_NUMBER: _ClassVar[int]
    READY_BYTES_FIELD_NUMBER: _ClassVar[int]
    READY_BY_PRIORITY_FIELD_NUMBER: _ClassVar[int]
    OLDEST_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_ROWS_FIELD_NUMBER: _ClassVar[int]
    ENQUEUED_ROWS_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    STAGED_ROWS_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_ROWS_FIELD_NUMBER: _ClassVar[int]
    name: str
    destination_id: bytes
    partitions: int
    depth_rows: int
    ready_rows: int
    assigned_rows: int
    ready_bytes: int
    ready_by_priority: _containers.RepeatedScalarFieldContainer[int]
    oldest_age_ms: int
    duplicate_rows: int
    enqueued_rows: int
    dead_letters: int
    staged_rows: int
    consumers: int
    quarantined_rows: int
    def __init__(self, name: _Optional[str] = ..., destination_id: _Optional[bytes] = ..., partitions: _Optional[int] = ..., depth_rows: _Optional[int] = ..., ready_rows: _Optional[int] = ..., assigned_rows: _Optional[int] = ..., ready_bytes: _Optional[int] = ..., ready_by_priority: _Optional[_Iterable[int]] = ..., oldest_age_ms: _Optional[int] = ..., duplicate_rows: _Optional[int] = ..., enqueued_rows: _Optional[int] = ..., dead_letters: _Optional[int] = ..., staged_rows: _Optional[int] = ..., consumers: _Optional[int] = ..., quarantined_rows: _Optional[int] = ...) -> None: ...
