from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Entry(_message.Message):
    __slots__ = ("time_us", "destination_created", "destination_deleted", "producer_opened", "published", "skipped", "staged", "staged_committed", "staged_discarded", "acknowledged", "returned", "epoch_taken", "consumer_minted", "planned", "plans_returned", "plans_acknowledged", "range_opened", "range_read", "consumer_ended", "marker_forgotten", "moved", "quarantined", "query_joined", "plans_forgotten", "duplicates_counted")
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_CREATED_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_DELETED_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_OPENED_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    STAGED_FIELD_NUMBER: _ClassVar[int]
    STAGED_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    STAGED_DISCARDED_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    RETURNED_FIELD_NUMBER: _ClassVar[int]
    EPOCH_TAKEN_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_MINTED_FIELD_NUMBER: _ClassVar[int]
    PLANNED_FIELD_NUMBER: _ClassVar[int]
    PLANS_RETURNED_FIELD_NUMBER: _ClassVar[int]
    PLANS_ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    RANGE_OPENED_FIELD_NUMBER: _ClassVar[int]
    RANGE_READ_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_ENDED_FIELD_NUMBER: _ClassVar[int]
    MARKER_FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    QUERY_JOINED_FIELD_NUMBER: _ClassVar[int]
    PLANS_FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_COUNTED_FIELD_NUMBER: _ClassVar[int]
    time_us: int
    destination_created: DestinationCreated
    destination_deleted: DestinationDeleted
    producer_opened: ProducerOpened
    published: Published
    skipped: Skipped
    staged: Staged
    staged_committed: StagedCommitted
    staged_discarded: StagedDiscarded
    acknowledged: Acknowledged
    returned: Returned
    epoch_taken: EpochTaken
    consumer_minted: ConsumerMinted
    planned: Planned
    plans_returned: PlansReturned
    plans_acknowledged: PlansAcknowledged
    range_opened: RangeOpened
    range_read: RangeRead
    consumer_ended: ConsumerEnded
    marker_forgotten: MarkerForgotten
    moved: Moved
    quarantined: Quarantined
    query_joined: QueryJoined
    plans_forgotten: PlansForgotten
    duplicates_counted: DuplicatesCounted
    def __init__(self, time_us: _Optional[int] = ..., destination_created: _Optional[_Union[DestinationCreated, _Mapping]] = ..., destination_deleted: _Optional[_Union[DestinationDeleted, _Mapping]] = ..., producer_opened: _Optional[_Union[ProducerOpened, _Mapping]] = ..., published: _Optional[_Union[Published, _Mapping]] = ..., skipped: _Optional[_Union[Skipped, _Mapping]] = ..., staged: _Optional[_Union[Staged, _Mapping]] = ..., staged_committed: _Optional[_Union[StagedCommitted, _Mapping]] = ..., staged_discarded: _Optional[_Union[StagedDiscarded, _Mapping]] = ..., acknowledged: _Optional[_Union[Acknowledged, _Mapping]] = ..., returned: _Optional[_Union[Returned, _Mapping]] = ..., epoch_taken: _Optional[_Union[EpochTaken, _Mapping]] = ..., consumer_minted: _Optional[_Union[ConsumerMinted, _Mapping]] = ..., planned: _Optional[_Union[Planned, _Mapping]] = ..., plans_returned: _Optional[_Union[PlansReturned, _Mapping]] = ..., plans_acknowledged: _Optional[_Union[PlansAcknowledged, _Mapping]] = ..., range_opened: _Optional[_Union[RangeOpened, _Mapping]] = ..., range_read: _Optional[_Union[RangeRead, _Mapping]] = ..., consumer_ended: _Optional[_Union[ConsumerEnded, _Mapping]] = ..., marker_forgotten: _Optional[_Union[MarkerForgotten, _Mapping]] = ..., moved: _Optional[_Union[Moved, _Mapping]] = ..., quarantined: _Optional[_Union[Quarantined, _Mapping]] = ..., query_joined: _Optional[_Union[QueryJoined, _Mapping]] = ..., plans_forgotten: _Optional[_Union[PlansForgotten, _Mapping]] = ..., duplicates_counted: _Optional[_Union[DuplicatesCounted, _Mapping]] = ...) -> None: ...

class DestinationCreated(_message.Message):
    __slots__ = ("destination", "name", "destination_id", "partitions")
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    destination: int
    name: str
    destination_id: bytes
    partitions: int
    def __init__(self, destination: _Optional[int] = ..., name: _Optional[str] = ..., destination_id: _Optional[bytes] = ..., partitions: _Optional[int] = ...) -> None: ...

class DestinationDeleted(_message.Message):
    __slots__ = ("destination",)
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    destination: int
    def __init__(self, destination: _Optional[int] = ...) -> None: ...

class ProducerOpened(_message.Message):
    __slots__ = ("producer_id", "epoch")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    producer_id: str
    epoch: int
    def __init__(self, producer_id: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class Records(_message.Message):
    __slots__ = ("rows", "columns", "schema_id", "priority_plus_one")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_ID_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_PLUS_ONE_FIELD_NUMBER: _ClassVar[int]
    rows: int
    columns: int
    schema_id: int
    priority_plus_one: int
    def __init__(self, rows: _Optional[int] = ..., columns: _Optional[int] = ..., schema_id: _Optional[int] = ..., priority_plus_one: _Optional[int] = ...) -> None: ...

class Published(_message.Message):
    __slots__ = ("destination", "partition", "base_offset", "records", "producer_id", "epoch", "first_sequence", "records_crc")
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    RECORDS_CRC_FIELD_NUMBER: _ClassVar[int]
    destination: int
    partition: int
    base_offset: int
    records: Records
    producer_id: str
    epoch: int
    first_sequence: int
    records_crc: int
    def __init__(self, destination: _Optional[int] = ..., partition: _Optional[int] = ..., base_offset: _Optional[int] = ..., records: _Optional[_Union[Records, _Mapping]] = ..., producer_id: _Optional[str] = ..., epoch: _Optional[int] = ..., first_sequence: _Optional[int] = ..., records_crc: _Optional[int] = ...) -> None: ...

class Skipped(_message.Message):
    __slots__ = ("destination", "partition", "producer_id", "epoch", "first_sequence", "rows")
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    destination: int
    partition: int
    producer_id: str
    epoch: int
    first_sequence: int
    rows: int
    def __init__(self, destination: _Optional[int] = ..., partition: _Optional[int] = ..., producer_id: _Optional[str] = ..., epoch: _Optional[int] = ..., first_sequence: _Optional[int] = ..., rows: _Optional[int] = ...) -> None: ...

class Staged(_message.Message):
    __slots__ = ("token", "destination", "partition", "records", "first_sequence", "records_crc", "epoch", "query_id", "batch_id", "run_id", "moved", "target")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    RECORDS_CRC_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    QUERY_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    token: bytes
    destination: int
    partition: int
    records: Records
    first_sequence: int
    records_crc: int
    epoch: int
    query_id: str
    batch_id: int
    run_id: str
    moved: bool
    target: str
    def __init__(self, token: _Optional[bytes] = ..., destination: _Optional[int] = ..., partition: _Optional[int] = ..., records: _Optional[_Union[Records, _Mapping]] = ..., first_sequence: _Optional[int] = ..., records_crc: _Optional[int] = ..., epoch: _Optional[int] = ..., query_id: _Optional[str] = ..., batch_id: _Optional[int] = ..., run_id: _Optional[str] = ..., moved: bool = ..., target: _Optional[str] = ...) -> None: ...

class StagedCommitted(_message.Message):
    __slots__ = ("tokens", "owner", "target", "version", "run_id", "rows", "ranges", "query_id")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    QUERY_ID_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[bytes]
    owner: str
    target: str
    version: int
    run_id: str
    rows: int
    ranges: _containers.RepeatedCompositeFieldContainer[StagedRange]
    query_id: str
    def __init__(self, tokens: _Optional[_Iterable[bytes]] = ..., owner: _Optional[str] = ..., target: _Optional[str] = ..., version: _Optional[int] = ..., run_id: _Optional[str] = ..., rows: _Optional[int] = ..., ranges: _Optional[_Iterable[_Union[StagedRange, _Mapping]]] = ..., query_id: _Optional[str] = ...) -> None: ...

class StagedRange(_message.Message):
    __slots__ = ("set", "destination", "partition", "base", "rows")
    SET_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    set: int
    destination: int
    partition: int
    base: int
    rows: int
    def __init__(self, set: _Optional[int] = ..., destination: _Optional[int] = ..., partition: _Optional[int] = ..., base: _Optional[int] = ..., rows: _Optional[int] = ...) -> None: ...

class StagedDiscarded(_message.Message):
    __slots__ = ("tokens", "query_id", "epochs_below", "target", "older", "batches_through")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUERY_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_BELOW_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    OLDER_FIELD_NUMBER: _ClassVar[int]
    BATCHES_THROUGH_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[bytes]
    query_id: str
    epochs_below: int
    target: str
    older: bool
    batches_through: int
    def __init__(self, tokens: _Optional[_Iterable[bytes]] = ..., query_id: _Optional[str] = ..., epochs_below: _Optional[int] = ..., target: _Optional[str] = ..., older: bool = ..., batches_through: _Optional[int] = ...) -> None: ...

class Rows(_message.Message):
    __slots__ = ("partition", "offsets")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    partition: int
    offsets: bytes
    def __init__(self, partition: _Optional[int] = ..., offsets: _Optional[bytes] = ...) -> None: ...

class Acknowledged(_message.Message):
    __slots__ = ("destination", "rows", "subscription")
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    destination: int
    rows: _containers.RepeatedCompositeFieldContainer[Rows]
    subscription: int
    def __init__(self, destination: _Optional[int] = ..., rows: _Optional[_Iterable[_Union[Rows, _Mapping]]] = ..., subscription: _Optional[int] = ...) -> None: ...

class Returned(_message.Message):
    __slots__ = ("destination", "rows", "subscription", "failed")
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    destination: int
    rows: _containers.RepeatedCompositeFieldContainer[Rows]
    subscription: int
    failed: _containers.RepeatedCompositeFieldContainer[Rows]
    def __init__(self, destination: _Optional[int] = ..., rows: _Optional[_Iterable[_Union[Rows, _Mapping]]] = ..., subscription: _Optional[int] = ..., failed: _Optional[_Iterable[_Union[Rows, _Mapping]]] = ...) -> None: ...

class EpochTaken(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class ConsumerMinted(_message.Message):
    __slots__ = ("destination", "consumer", "incarnation", "run", "subscription")
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    destination: int
    consumer: str
    incarnation: bytes
    run: int
    subscription: int
    def __init__(self, destination: _Optional[int] = ..., consumer: _Optional[str] = ..., incarnation: _Optional[bytes] = ..., run: _Optional[int] = ..., subscription: _Optional[int] = ...) -> None: ...

class LaneRows(_message.Message):
    __slots__ = ("priority", "offsets", "subscription")
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    priority: int
    offsets: bytes
    subscription: int
    def __init__(self, priority: _Optional[int] = ..., offsets: _Optional[bytes] = ..., subscription: _Optional[int] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("partition", "first", "lanes")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    partition: int
    first: int
    lanes: _containers.RepeatedCompositeFieldContainer[LaneRows]
    def __init__(self, partition: _Optional[int] = ..., first: _Optional[int] = ..., lanes: _Optional[_Iterable[_Union[LaneRows, _Mapping]]] = ...) -> None: ...

class Planned(_message.Message):
    __slots__ = ("destination", "incarnation", "plan", "run", "assignments", "subscription")
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    destination: int
    incarnation: bytes
    plan: int
    run: int
    assignments: _containers.RepeatedCompositeFieldContainer[Assignment]
    subscription: int
    def __init__(self, destination: _Optional[int] = ..., incarnation: _Optional[bytes] = ..., plan: _Optional[int] = ..., run: _Optional[int] = ..., assignments: _Optional[_Iterable[_Union[Assignment, _Mapping]]] = ..., subscription: _Optional[int] = ...) -> None: ...

class PlansReturned(_message.Message):
    __slots__ = ("destination", "incarnation", "plans", "subscription")
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PLANS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    destination: int
    incarnation: bytes
    plans: _containers.RepeatedScalarFieldContainer[int]
    subscription: int
    def __init__(self, destination: _Optional[int] = ..., incarnation: _Optional[bytes] = ..., plans: _Optional[_Iterable[int]] = ..., subscription: _Optional[int] = ...) -> None: ...

class PlansAcknowledged(_message.Message):
    __slots__ = ("destination", "incarnation", "through", "subscription")
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    THROUGH_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    destination: int
    incarnation: bytes
    through: int
    subscription: int
    def __init__(self, destination: _Optional[int] = ..., incarnation: _Optional[bytes] = ..., through: _Optional[int] = ..., subscription: _Optional[int] = ...) -> None: ...

class RangeOpened(_message.Message):
    __slots__ = ("destination", "incarnation", "run", "plans", "failed", "subscription")
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    PLANS_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    destination: int
    incarnation: bytes
    run: int
    plans: _containers.RepeatedScalarFieldContainer[int]
    failed: _containers.RepeatedScalarFieldContainer[int]
    subscription: int
    def __init__(self, destination: _Optional[int] = ..., incarnation: _Optional[bytes] = ..., run: _Optional[int] = ..., plans: _Optional[_Iterable[int]] = ..., failed: _Optional[_Iterable[int]] = ..., subscription: _Optional[int] = ...) -> None: ...

class RangeRead(_message.Message):
    __slots__ = ("destination", "incarnation", "run", "plans", "query_id", "batch_id", "subscription")
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    PLANS_FIELD_NUMBER: _ClassVar[int]
    QUERY_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    destination: int
    incarnation: bytes
    run: int
    plans: _containers.RepeatedScalarFieldContainer[int]
    query_id: str
    batch_id: int
    subscription: int
    def __init__(self, destination: _Optional[int] = ..., incarnation: _Optional[bytes] = ..., run: _Optional[int] = ..., plans: _Optional[_Iterable[int]] = ..., query_id: _Optional[str] = ..., batch_id: _Optional[int] = ..., subscription: _Optional[int] = ...) -> None: ...

class QueryJoined(_message.Message):
    __slots__ = ("destination", "query_id", "spark_run_id", "run", "incarnation", "subscription")
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    QUERY_ID_FIELD_NUMBER: _ClassVar[int]
    SPARK_RUN_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    destination: int
    query_id: str
    spark_run_id: str
    run: int
    incarnation: bytes
    subscription: int
    def __init__(self, destination: _Optional[int] = ..., query_id: _Optional[str] = ..., spark_run_id: _Optional[str] = ..., run: _Optional[int] = ..., incarnation: _Optional[bytes] = ..., subscription: _Optional[int] = ...) -> None: ...

class PlansForgotten(_message.Message):
    __slots__ = ("destination", "incarnation", "through", "subscription")
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    THROUGH_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    destination: int
    incarnation: bytes
    through: int
    subscription: int
    def __init__(self, destination: _Optional[int] = ..., incarnation: _Optional[bytes] = ..., through: _Optional[int] = ..., subscription: _Optional[int] = ...) -> None: ...

class DuplicatesCounted(_message.Message):
    __slots__ = ("destination", "partition", "rows")
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    destination: int
    partition: int
    rows: int
    def __init__(self, destination: _Optional[int] = ..., partition: _Optional[int] = ..., rows: _Optional[int] = ...) -> None: ...

class ConsumerEnded(_message.Message):
    __slots__ = ("destination", "incarnation", "successor", "acknowledged", "returned", "shared", "subscription")
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SUCCESSOR_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    RETURNED_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    destination: int
    incarnation: bytes
    successor: bytes
    acknowledged: _containers.RepeatedScalarFieldContainer[int]
    returned: _containers.RepeatedScalarFieldContainer[int]
    shared: bool
    subscription: int
    def __init__(self, destination: _Optional[int] = ..., incarnation: _Optional[bytes] = ..., successor: _Optional[bytes] = ..., acknowledged: _Optional[_Iterable[int]] = ..., returned: _Optional[_Iterable[int]] = ..., shared: bool = ..., subscription: _Optional[int] = ...) -> None: ...

class MarkerForgotten(_message.Message):
    __slots__ = ("owner", "target")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    owner: str
    target: str
    def __init__(self, owner: _Optional[str] = ..., target: _Optional[str] = ...) -> None: ...

class Moved(_message.Message):
    __slots__ = ("destination", "partition", "offsets", "records", "append_time_us", "producer_id", "sequence_shift")
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    APPEND_TIME_US_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_SHIFT_FIELD_NUMBER: _ClassVar[int]
    destination: int
    partition: int
    offsets: bytes
    records: Records
    append_time_us: int
    producer_id: str
    sequence_shift: int
    def __init__(self, destination: _Optional[int] = ..., partition: _Optional[int] = ..., offsets: _Optional[bytes] = ..., records: _Optional[_Union[Records, _Mapping]] = ..., append_time_us: _Optional[int] = ..., producer_id: _Optional[str] = ..., sequence_shift: _Optional[int] = ...) -> None: ...

class Quarantined(_message.Message):
    __slots__ = ("destination", "rows")
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    destination: int
    rows: _containers.RepeatedCompositeFieldContainer[Rows]
    def __init__(self, destination: _Optional[int] = ..., rows: _Optional[_Iterable[_Union[Rows, _Mapping]]] = ...) -> None: ...

class BrokerPart(_message.Message):
    __slots__ = ("epoch", "next_destination", "destinations", "producers", "markers", "query_epochs", "fenced_batches", "plans_cut")
    class QueryEpochsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NEXT_DESTINATION_FIELD_NUMBER: _ClassVar[int]
    DESTINATIONS_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    MARKERS_FIELD_NUMBER: _ClassVar[int]
    QUERY_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    FENCED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    PLANS_CUT_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    next_destination: int
    destinations: _containers.RepeatedCompositeFieldContainer[DestinationPart]
    producers: _containers.RepeatedCompositeFieldContainer[ProducerOpened]
    markers: _containers.RepeatedCompositeFieldContainer[MarkerPart]
    query_epochs: _containers.ScalarMap[str, int]
    fenced_batches: _containers.RepeatedCompositeFieldContainer[QueryBatch]
    plans_cut: int
    def __init__(self, epoch: _Optional[int] = ..., next_destination: _Optional[int] = ..., destinations: _Optional[_Iterable[_Union[DestinationPart, _Mapping]]] = ..., producers: _Optional[_Iterable[_Union[ProducerOpened, _Mapping]]] = ..., markers: _Optional[_Iterable[_Union[MarkerPart, _Mapping]]] = ..., query_epochs: _Optional[_Mapping[str, int]] = ..., fenced_batches: _Optional[_Iterable[_Union[QueryBatch, _Mapping]]] = ..., plans_cut: _Optional[int] = ...) -> None: ...

class QueriesPart(_message.Message):
    __slots__ = ("queries",)
    QUERIES_FIELD_NUMBER: _ClassVar[int]
    queries: _containers.RepeatedCompositeFieldContainer[QueryPart]
    def __init__(self, queries: _Optional[_Iterable[_Union[QueryPart, _Mapping]]] = ...) -> None: ...

class QueryPart(_message.Message):
    __slots__ = ("query_id", "reads", "readers", "epochs", "fenced_through")
    QUERY_ID_FIELD_NUMBER: _ClassVar[int]
    READS_FIELD_NUMBER: _ClassVar[int]
    READERS_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    FENCED_THROUGH_FIELD_NUMBER: _ClassVar[int]
    query_id: str
    reads: _containers.RepeatedCompositeFieldContainer[BatchRead]
    readers: _containers.RepeatedCompositeFieldContainer[QueryReader]
    epochs: _containers.RepeatedCompositeFieldContainer[TargetEpoch]
    fenced_through: int
    def __init__(self, query_id: _Optional[str] = ..., reads: _Optional[_Iterable[_Union[BatchRead, _Mapping]]] = ..., readers: _Optional[_Iterable[_Union[QueryReader, _Mapping]]] = ..., epochs: _Optional[_Iterable[_Union[TargetEpoch, _Mapping]]] = ..., fenced_through: _Optional[int] = ...) -> None: ...

class BatchRead(_message.Message):
    __slots__ = ("batch_id", "plans_cut")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    PLANS_CUT_FIELD_NUMBER: _ClassVar[int]
    batch_id: int
    plans_cut: int
    def __init__(self, batch_id: _Optional[int] = ..., plans_cut: _Optional[int] = ...) -> None: ...

class QueryReader(_message.Message):
    __slots__ = ("destination", "spark_run_id", "run", "incarnation")
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    SPARK_RUN_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    destination: int
    spark_run_id: str
    run: int
    incarnation: bytes
    def __init__(self, destination: _Optional[int] = ..., spark_run_id: _Optional[str] = ..., run: _Optional[int] = ..., incarnation: _Optional[bytes] = ...) -> None: ...

class TargetEpoch(_message.Message):
    __slots__ = ("target", "epoch")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    target: str
    epoch: int
    def __init__(self, target: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class MarkersPart(_message.Message):
    __slots__ = ("markers",)
    MARKERS_FIELD_NUMBER: _ClassVar[int]
    markers: _containers.RepeatedCompositeFieldContainer[MarkerPart]
    def __init__(self, markers: _Optional[_Iterable[_Union[MarkerPart, _Mapping]]] = ...) -> None: ...

class QueryBatch(_message.Message):
    __slots__ = ("query_id", "batch_id")
    QUERY_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    query_id: str
    batch_id: int
    def __init__(self, query_id: _Optional[str] = ..., batch_id: _Optional[int] = ...) -> None: ...

class DestinationPart(_message.Message):
    __slots__ = ("created",)
    CREATED_FIELD_NUMBER: _ClassVar[int]
    created: DestinationCreated
    def __init__(self, created: _Optional[_Union[DestinationCreated, _Mapping]] = ...) -> None: ...

class MarkerPart(_message.Message):
    __slots__ = ("owner", "target", "version", "run_id", "rows", "query_id", "time_us")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    QUERY_ID_FIELD_NUMBER: _ClassVar[int]
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    owner: str
    target: str
    version: int
    run_id: str
    rows: int
    query_id: str
    time_us: int
    def __init__(self, owner: _Optional[str] = ..., target: _Optional[str] = ..., version: _Optional[int] = ..., run_id: _Optional[str] = ..., rows: _Optional[int] = ..., query_id: _Optional[str] = ..., time_us: _Optional[int] = ...) -> None: ...

class LogPart(_message.Message):
    __slots__ = ("next_offset", "duplicates", "producers", "audits", "quarantined", "audit_tables")
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    AUDITS_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    AUDIT_TABLES_FIELD_NUMBER: _ClassVar[int]
    next_offset: int
    duplicates: int
    producers: _containers.RepeatedScalarFieldContainer[str]
    audits: _containers.RepeatedCompositeFieldContainer[AuditPart]
    quarantined: bytes
    audit_tables: _containers.RepeatedCompositeFieldContainer[AuditTable]
    def __init__(self, next_offset: _Optional[int] = ..., duplicates: _Optional[int] = ..., producers: _Optional[_Iterable[str]] = ..., audits: _Optional[_Iterable[_Union[AuditPart, _Mapping]]] = ..., quarantined: _Optional[bytes] = ..., audit_tables: _Optional[_Iterable[_Union[AuditTable, _Mapping]]] = ...) -> None: ...

class AuditTable(_message.Message):
    __slots__ = ("producer_ids", "epochs", "next_sequences", "rows", "last_offsets", "used", "ranges", "range_first", "range_rows", "range_crc", "range_base", "range_time_us")
    PRODUCER_IDS_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    NEXT_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIRST_FIELD_NUMBER: _ClassVar[int]
    RANGE_ROWS_FIELD_NUMBER: _ClassVar[int]
    RANGE_CRC_FIELD_NUMBER: _ClassVar[int]
    RANGE_BASE_FIELD_NUMBER: _ClassVar[int]
    RANGE_TIME_US_FIELD_NUMBER: _ClassVar[int]
    producer_ids: _containers.RepeatedScalarFieldContainer[str]
    epochs: _containers.RepeatedScalarFieldContainer[int]
    next_sequences: _containers.RepeatedScalarFieldContainer[int]
    rows: _containers.RepeatedScalarFieldContainer[int]
    last_offsets: _containers.RepeatedScalarFieldContainer[int]
    used: _containers.RepeatedScalarFieldContainer[int]
    ranges: _containers.RepeatedScalarFieldContainer[int]
    range_first: _containers.RepeatedScalarFieldContainer[int]
    range_rows: _containers.RepeatedScalarFieldContainer[int]
    range_crc: _containers.RepeatedScalarFieldContainer[int]
    range_base: _containers.RepeatedScalarFieldContainer[int]
    range_time_us: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, producer_ids: _Optional[_Iterable[str]] = ..., epochs: _Optional[_Iterable[int]] = ..., next_sequences: _Optional[_Iterable[int]] = ..., rows: _Optional[_Iterable[int]] = ..., last_offsets: _Optional[_Iterable[int]] = ..., used: _Optional[_Iterable[int]] = ..., ranges: _Optional[_Iterable[int]] = ..., range_first: _Optional[_Iterable[int]] = ..., range_rows: _Optional[_Iterable[int]] = ..., range_crc: _Optional[_Iterable[int]] = ..., range_base: _Optional[_Iterable[int]] = ..., range_time_us: _Optional[_Iterable[int]] = ...) -> None: ...

class AuditPart(_message.Message):
    __slots__ = ("producer_id", "epoch", "next_sequence", "rows", "last_offset", "range_first", "range_rows", "range_crc", "range_base", "range_time_us")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NEXT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIRST_FIELD_NUMBER: _ClassVar[int]
    RANGE_ROWS_FIELD_NUMBER: _ClassVar[int]
    RANGE_CRC_FIELD_NUMBER: _ClassVar[int]
    RANGE_BASE_FIELD_NUMBER: _ClassVar[int]
    RANGE_TIME_US_FIELD_NUMBER: _ClassVar[int]
    producer_id: str
    epoch: int
    next_sequence: int
    rows: int
    last_offset: int
    range_first: _containers.RepeatedScalarFieldContainer[int]
    range_rows: _containers.RepeatedScalarFieldContainer[int]
    range_crc: _containers.RepeatedScalarFieldContainer[int]
    range_base: _containers.RepeatedScalarFieldContainer[int]
    range_time_us: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, producer_id: _Optional[str] = ..., epoch: _Optional[int] = ..., next_sequence: _Optional[int] = ..., rows: _Optional[int] = ..., last_offset: _Optional[int] = ..., range_first: _Optional[_Iterable[int]] = ..., range_rows: _Optional[_Iterable[int]] = ..., range_crc: _Optional[_Iterable[int]] = ..., range_base: _Optional[_Iterable[int]] = ..., range_time_us: _Optional[_Iterable[int]] = ...) -> None: ...

class RowsPart(_message.Message):
    __slots__ = ("ready", "attempts", "frames", "sparse", "count_bits", "frame_bytes")
    READY_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    SPARSE_FIELD_NUMBER: _ClassVar[int]
    COUNT_BITS_FIELD_NUMBER: _ClassVar[int]
    FRAME_BYTES_FIELD_NUMBER: _ClassVar[int]
    ready: _containers.RepeatedCompositeFieldContainer[LaneRows]
    attempts: _containers.RepeatedScalarFieldContainer[bytes]
    frames: bytes
    sparse: _containers.RepeatedCompositeFieldContainer[SparseFrame]
    count_bits: _containers.RepeatedCompositeFieldContainer[CountBit]
    frame_bytes: int
    def __init__(self, ready: _Optional[_Iterable[_Union[LaneRows, _Mapping]]] = ..., attempts: _Optional[_Iterable[bytes]] = ..., frames: _Optional[bytes] = ..., sparse: _Optional[_Iterable[_Union[SparseFrame, _Mapping]]] = ..., count_bits: _Optional[_Iterable[_Union[CountBit, _Mapping]]] = ..., frame_bytes: _Optional[int] = ...) -> None: ...

class CountBit(_message.Message):
    __slots__ = ("bit", "offsets", "subscription", "failed")
    BIT_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    bit: int
    offsets: bytes
    subscription: int
    failed: bool
    def __init__(self, bit: _Optional[int] = ..., offsets: _Optional[bytes] = ..., subscription: _Optional[int] = ..., failed: bool = ...) -> None: ...

class SparseFrame(_message.Message):
    __slots__ = ("base", "offsets")
    BASE_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    base: int
    offsets: bytes
    def __init__(self, base: _Optional[int] = ..., offsets: _Optional[bytes] = ...) -> None: ...

class ConsumersPart(_message.Message):
    __slots__ = ("consumers", "ended")
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    consumers: _containers.RepeatedCompositeFieldContainer[ConsumerPart]
    ended: _containers.RepeatedCompositeFieldContainer[EndedPart]
    def __init__(self, consumers: _Optional[_Iterable[_Union[ConsumerPart, _Mapping]]] = ..., ended: _Optional[_Iterable[_Union[EndedPart, _Mapping]]] = ...) -> None: ...

class EndedPart(_message.Message):
    __slots__ = ("incarnation", "successor", "consumer", "shared", "subscription")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SUCCESSOR_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    incarnation: bytes
    successor: bytes
    consumer: str
    shared: bool
    subscription: int
    def __init__(self, incarnation: _Optional[bytes] = ..., successor: _Optional[bytes] = ..., consumer: _Optional[str] = ..., shared: bool = ..., subscription: _Optional[int] = ...) -> None: ...

class ConsumerPart(_message.Message):
    __slots__ = ("consumer", "incarnation", "run", "minted_by_run", "next_plan", "plans", "next", "floor", "minted_time_us", "acknowledged_plan", "subscription")
    class NextEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    class FloorEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    MINTED_BY_RUN_FIELD_NUMBER: _ClassVar[int]
    NEXT_PLAN_FIELD_NUMBER: _ClassVar[int]
    PLANS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    MINTED_TIME_US_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_PLAN_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    consumer: str
    incarnation: bytes
    run: int
    minted_by_run: int
    next_plan: int
    plans: _containers.RepeatedCompositeFieldContainer[PlanPart]
    next: _containers.ScalarMap[int, int]
    floor: _containers.ScalarMap[int, int]
    minted_time_us: int
    acknowledged_plan: int
    subscription: int
    def __init__(self, consumer: _Optional[str] = ..., incarnation: _Optional[bytes] = ..., run: _Optional[int] = ..., minted_by_run: _Optional[int] = ..., next_plan: _Optional[int] = ..., plans: _Optional[_Iterable[_Union[PlanPart, _Mapping]]] = ..., next: _Optional[_Mapping[int, int]] = ..., floor: _Optional[_Mapping[int, int]] = ..., minted_time_us: _Optional[int] = ..., acknowledged_plan: _Optional[int] = ..., subscription: _Optional[int] = ...) -> None: ...

class PlanPart(_message.Message):
    __slots__ = ("planned", "time_us", "returned", "acknowledged", "opened_by_run", "read_by_run", "failed_attempts", "batches", "serial", "committed", "forgotten", "counts", "emptied")
    class CountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    PLANNED_FIELD_NUMBER: _ClassVar[int]
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    RETURNED_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    OPENED_BY_RUN_FIELD_NUMBER: _ClassVar[int]
    READ_BY_RUN_FIELD_NUMBER: _ClassVar[int]
    FAILED_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    EMPTIED_FIELD_NUMBER: _ClassVar[int]
    planned: Planned
    time_us: int
    returned: bool
    acknowledged: bool
    opened_by_run: int
    read_by_run: int
    failed_attempts: int
    batches: _containers.RepeatedCompositeFieldContainer[QueryBatch]
    serial: int
    committed: bool
    forgotten: bool
    counts: _containers.ScalarMap[int, int]
    emptied: bool
    def __init__(self, planned: _Optional[_Union[Planned, _Mapping]] = ..., time_us: _Optional[int] = ..., returned: bool = ..., acknowledged: bool = ..., opened_by_run: _Optional[int] = ..., read_by_run: _Optional[int] = ..., failed_attempts: _Optional[int] = ..., batches: _Optional[_Iterable[_Union[QueryBatch, _Mapping]]] = ..., serial: _Optional[int] = ..., committed: bool = ..., forgotten: bool = ..., counts: _Optional[_Mapping[int, int]] = ..., emptied: bool = ...) -> None: ...

class StagedPart(_message.Message):
    __slots__ = ("token", "epoch", "query_id", "batch_id", "run_id", "last_time_us", "frames", "target")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    QUERY_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_TIME_US_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    token: bytes
    epoch: int
    query_id: str
    batch_id: int
    run_id: str
    last_time_us: int
    frames: _containers.RepeatedCompositeFieldContainer[StagedFrame]
    target: str
    def __init__(self, token: _Optional[bytes] = ..., epoch: _Optional[int] = ..., query_id: _Optional[str] = ..., batch_id: _Optional[int] = ..., run_id: _Optional[str] = ..., last_time_us: _Optional[int] = ..., frames: _Optional[_Iterable[_Union[StagedFrame, _Mapping]]] = ..., target: _Optional[str] = ...) -> None: ...

class StagedFrame(_message.Message):
    __slots__ = ("staged", "segment", "position", "size", "crc", "priorities", "priority")
    STAGED_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    CRC_FIELD_NUMBER: _ClassVar[int]
    PRIORITIES_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    staged: Staged
    segment: int
    position: int
    size: int
    crc: int
    priorities: bytes
    priority: int
    def __init__(self, staged: _Optional[_Union[Staged, _Mapping]] = ..., segment: _Optional[int] = ..., position: _Optional[int] = ..., size: _Optional[int] = ..., crc: _Optional[int] = ..., priorities: _Optional[bytes] = ..., priority: _Optional[int] = ...) -> None: ...
