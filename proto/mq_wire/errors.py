"""Every error of pyspark-mq, sorted by what the caller should do.

    MqError
    ├── RetryLater            the same call may succeed later; nothing was stored
    │   ├── BrokerUnavailable     no connection, or it broke before an answer
    │   ├── OutOfOrder            a batch before this one was refused or is missing
    │   ├── StoreFull             the broker's disk is full: consume, acknowledge, or add space
    │   └── Busy                  a bound of the broker is reached: too many streams, requests ...
    ├── FixTheCall            the call is wrong; repeating it does not help (also a ValueError)
    │   ├── InvalidName           destination, producer or consumer name
    │   ├── InvalidOption         option of the Spark source or sink, or setting of the broker
    │   ├── InvalidRecords        records with another schema, nulls, hostile offsets, wrong priorities ...
    │   ├── LimitExceeded         larger, longer or more than the broker takes
    │   ├── InvalidRequest        a request that contradicts itself or the protocol
    │   ├── Unsupported           a feature or version that this broker (or pyspark) does not have
    │   ├── UnknownDestination    there is no such destination, and this call does not create it
    │   ├── DestinationExists     the destination exists with another number of partitions
    │   ├── UnknownProducer       sequence above 0 from a producer that the broker does not know
    │   ├── SequenceReused        a sequence came again with other content
    │   ├── OutOfWindow           a sequence older than everything that the duplicate audit remembers
    │   ├── NotAssigned           acknowledgement of rows that this consumer does not hold
    │   └── SharedRange           one query has two readers of one queue: read once, reuse the DataFrame
    ├── Replaced              a newer producer, run, checkpoint or writer took over: stop, or start anew
    │   ├── ProducerFenced        a newer epoch of this producer name
    │   ├── RunFenced             a newer run of this consumer
    │   ├── IncarnationSuperseded the consumer lives on under another checkpoint, or was released
    │   ├── EpochFenced           a newer writer of this query's batch
    │   └── SessionClosed         the stream that delivered these rows has ended
    ├── StateMismatch         checkpoint and broker disagree: a person must decide
    │   ├── WrongBroker           offsets, or a run, of another broker
    │   ├── DestinationRecreated  offsets of a destination that was deleted and created again
    │   ├── CheckpointTooOld      the checkpoint is older than the queue, or lost its last batches
    │   ├── OffsetsUnknown        numbers that this broker never gave; perhaps it was restored from a backup
    │   ├── DataLost              requested rows are no longer kept
    │   ├── BatchMismatch         a committed batch came again with another number of rows
    │   └── StagedSetUnknown      a commit names staged sets that do not exist or are incomplete
    ├── Undelivered           only in clients: a message was not confirmed
    │   ├── SendTimeout           it was never sent, and will not be sent later
    │   ├── SendOutcomeUnknown    it was sent, and no answer came: it may be stored or not
    │   └── ClientClosed          producer, consumer or connection is closed
    └── BrokerFault           the broker has failed: its operator must look
        ├── StorageFailed         a write or sync failed; the broker stops and recovers from disk
        ├── DataDirectoryInUse    another broker process uses the data directory
        ├── DataDirectoryUnusable the data directory has an unknown version, or was not made by a broker
        ├── JournalDamaged        bytes before acknowledged data are damaged
        └── InternalError         a bug: please report it

`TABLE` has every error that is sent over the wire, with its gRPC status; `code` is its stable code. Errors
that never leave their process have no code.
"""

from __future__ import annotations

from typing import ClassVar, Final


class MqError(Exception):
    """Base class of all errors. `code` is stable, for programs. The text is for people: it names the thing,
    the value and the remedy.
    """

    code: ClassVar[str] = ""


class RetryLater(MqError):
    """The same call may succeed later; nothing was stored or changed."""


class FixTheCall(MqError, ValueError):
    """The call is wrong; repeating it does not help."""


class Replaced(MqError):
    """A newer producer, run, checkpoint or writer took over."""


class StateMismatch(MqError):
    """What the caller remembers does not match what the broker holds."""


class Undelivered(MqError):
    """A message was not confirmed. Only clients raise it; no broker sends it."""


class BrokerFault(MqError):
    """The broker has failed; its operator must look."""


class BrokerUnavailable(RetryLater, ConnectionError):
    """No connection to the broker, or it broke before an answer."""

    code = "BROKER_UNAVAILABLE"


class OutOfOrder(RetryLater):
    """A batch of this producer before this one is missing."""

    code = "OUT_OF_ORDER"


class StoreFull(RetryLater):
    """The broker's disk is full."""

    code = "STORE_FULL"


class Busy(RetryLater):
    """A bound on streams, requests or producers is reached."""

    code = "BUSY"


class InvalidName(FixTheCall):
    """A destination, producer or consumer name that is not allowed."""

    code = "INVALID_NAME"


class InvalidOption(FixTheCall):
    """An option or setting that does not exist, or a value that is not allowed."""


class InvalidRecords(FixTheCall):
    """Records that do not match the envelope."""

    code = "INVALID_RECORDS"


class LimitExceeded(FixTheCall):
    """More or larger than the broker takes."""

    code = "LIMIT_EXCEEDED"


class InvalidRequest(FixTheCall):
    """A request that contradicts itself or the protocol."""

    code = "INVALID_REQUEST"


class Unsupported(FixTheCall):
    """Something that this version does not support."""

    code = "UNSUPPORTED"


class UnknownDestination(FixTheCall):
    """There is no such destination, and this call does not create it."""

    code = "UNKNOWN_DESTINATION"


class DestinationExists(FixTheCall):
    """The destination exists with other properties."""

    code = "DESTINATION_EXISTS"


class UnknownProducer(FixTheCall):
    """A sequence above 0 from a producer that the broker does not know."""

    code = "UNKNOWN_PRODUCER"


class SequenceReused(FixTheCall):
    """A sequence came again with other content."""

    code = "SEQUENCE_REUSED"


class OutOfWindow(FixTheCall):
    """A sequence older than all that the duplicate audit remembers: whether it was stored is not known."""

    code = "OUT_OF_WINDOW"


class NotAssigned(FixTheCall):
    """Acknowledgement of rows that this consumer does not hold."""

    code = "NOT_ASSIGNED"


class SharedRange(FixTheCall):
    """Two readers of one queue in one query, or a checkpoint that lost its first batch."""

    code = "SHARED_RANGE"


class ProducerFenced(Replaced):
    """A newer epoch of this producer name is in use."""

    code = "PRODUCER_FENCED"


class RunFenced(Replaced):
    """A newer run of this consumer is in use."""

    code = "RUN_FENCED"


class IncarnationSuperseded(Replaced):
    """The consumer lives on under another checkpoint, or was released."""

    code = "INCARNATION_SUPERSEDED"


class EpochFenced(Replaced):
    """A newer writer of this query is in use."""

    code = "EPOCH_FENCED"


class SessionClosed(Replaced):
    """The stream that delivered these rows has ended; other consumers may have them now."""

    code = "SESSION_CLOSED"


class WrongBroker(StateMismatch):
    """Offsets, or a run, of another broker."""

    code = "WRONG_BROKER"


class DestinationRecreated(StateMismatch):
    """Offsets of a destination that was deleted and created again."""

    code = "DESTINATION_RECREATED"


class CheckpointTooOld(StateMismatch):
    """The checkpoint is older than the queue, or lost its last batches."""

    code = "CHECKPOINT_TOO_OLD"


class OffsetsUnknown(StateMismatch):
    """Numbers that this broker never gave."""

    code = "OFFSETS_UNKNOWN"


class DataLost(StateMismatch):
    """Requested rows are no longer kept."""

    code = "DATA_LOST"


class BatchMismatch(StateMismatch):
    """A committed batch came again with another number of rows, or from another query."""

    code = "BATCH_MISMATCH"


class StagedSetUnknown(StateMismatch):
    """A commit names staged sets that do not exist or are incomplete."""

    code = "STAGED_SET_UNKNOWN"


class SendTimeout(Undelivered, TimeoutError):
    """The message was not sent within the time allowed, and will not be sent later."""


class SendOutcomeUnknown(Undelivered, TimeoutError):
    """The message was sent and no answer came within the time allowed: it may be stored or not."""


class ClientClosed(Undelivered):
    """The producer, consumer or connection is closed."""


class StorageFailed(BrokerFault):
    """A write or sync failed. The broker stops answering, exits and recovers from disk at its next start."""

    code = "STORAGE_FAILED"


class DataDirectoryInUse(BrokerFault):
    """Another broker process uses the data directory."""


class DataDirectoryUnusable(BrokerFault):
    """The data directory has an unknown version, or was not made by a broker."""


class JournalDamaged(BrokerFault):
    """Bytes before acknowledged data are damaged."""

    code = "JOURNAL_DAMAGED"


class InternalError(BrokerFault):
    """A bug in the broker."""

    code = "INTERNAL"


#: Error class -> name of its gRPC status. Every error that is sent over the wire is here.
TABLE: Final[dict[type[MqError], str]] = {
    BrokerUnavailable: "UNAVAILABLE",
    OutOfOrder: "ABORTED",
    StoreFull: "RESOURCE_EXHAUSTED",
    Busy: "RESOURCE_EXHAUSTED",
    InvalidName: "INVALID_ARGUMENT",
    InvalidRecords: "INVALID_ARGUMENT",
    LimitExceeded: "INVALID_ARGUMENT",
    InvalidRequest: "INVALID_ARGUMENT",
    Unsupported: "UNIMPLEMENTED",
    UnknownDestination: "NOT_FOUND",
    DestinationExists: "ALREADY_EXISTS",
    UnknownProducer: "FAILED_PRECONDITION",
    SequenceReused: "INVALID_ARGUMENT",
    OutOfWindow: "OUT_OF_RANGE",
    NotAssigned: "FAILED_PRECONDITION",
    SharedRange: "FAILED_PRECONDITION",
    ProducerFenced: "ABORTED",
    RunFenced: "ABORTED",
    IncarnationSuperseded: "ABORTED",
    EpochFenced: "ABORTED",
    SessionClosed: "ABORTED",
    WrongBroker: "FAILED_PRECONDITION",
    DestinationRecreated: "FAILED_PRECONDITION",
    CheckpointTooOld: "FAILED_PRECONDITION",
    OffsetsUnknown: "FAILED_PRECONDITION",
    DataLost: "DATA_LOSS",
    BatchMismatch: "FAILED_PRECONDITION",
    StagedSetUnknown: "FAILED_PRECONDITION",
    StorageFailed: "INTERNAL",
    JournalDamaged: "DATA_LOSS",
    InternalError: "INTERNAL",
}

#: Name of the trailing metadata entry that carries `code` beside a gRPC status.
CODE_METADATA_KEY: Final = "mq-error-code"

_BY_CODE: Final[dict[str, type[MqError]]] = {error.code: error for error in TABLE}


def from_code(code: str, message: str) -> MqError:
    """Returns the error with this code. An unknown code, from a newer broker, becomes an `InternalError` that
    names it.
    """
    error = _BY_CODE.get(code)
    if error is None:
        return InternalError(
            f"{message} (error code {code!r} is not known to this client: update pyspark-mq)"
        )
    return error(message)
