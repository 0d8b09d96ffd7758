"""Batches that go to the log at once."""

from __future__ import annotations

from typing import Final

from mq_broker.core.commands import Publish
from mq_broker.core.handlers import staging
from mq_broker.core.handlers.admin import find_or_create
from mq_broker.core.ledger import Ledger
from mq_broker.core.model.audit import is_named
from mq_broker.core.model.destination import Destination, Partition
from mq_broker.core.model.state import State
from mq_wire.errors import InvalidRequest, LimitExceeded, ProducerFenced, UnknownProducer, Unsupported
from mq_wire.store.v1.store_pb2 import Entry, Published, Records
from mq_wire.v1.produce_pb2 import PublishHeader, Receipt

#: Sequences are kept as differences to offsets, in 64 bits with a sign.
SEQUENCE_MAX: Final = 1 << 62
#: Partitions whose duplicates are written down beside a batch: what is reserved for its header has room for
#: these.
_COUNTED_BESIDE: Final = 64


def publish(ledger: Ledger, command: Publish) -> Receipt:
    """Stores one batch, or recognises it. The receipt may leave once the turn is synced.

    Raises:
        FixTheCall, OutOfOrder, ProducerFenced: nothing was stored; the sequences stay free.
    """
    header = command.header
    staged = header.HasField("staged")
    if not staged:
        _check_producer(ledger.state, header)
    _check_header(ledger.state, header)
    destination = find_or_create(ledger, header.destination, create=True)
    partition = destination.partitions[header.partition]
    if staged:
        return staging.stage(ledger, command, destination)
    if header.skip:
        return _skip(ledger, destination, partition, header)
    known = partition.audit.check(
        header.producer_id, header.epoch, header.first_sequence, header.rows, command.records_crc
    )
    if known is not None:
        ledger.state.duplicates[destination.number, header.partition] += known.rows
        ledger.state.totals.duplicates += known.rows
        return _receipt(destination, header, known.base, known.rows, known.time_us)
    base = partition.log.next_offset
    published = Published(
        destination=destination.number,
        partition=header.partition,
        base_offset=base,
        records=Records(rows=header.rows, columns=header.columns, priority_plus_one=header.priority_plus_one),
        producer_id=header.producer_id,
        epoch=header.epoch,
        first_sequence=header.first_sequence,
        records_crc=command.records_crc,
    )
    ledger.record_rows(
        Entry(time_us=ledger.now_us, published=published),
        command.records,
        command.records_crc,
        command.facets,
    )
    ledger.state.totals.published += header.rows
    if ledger.state.duplicates:
        count_duplicates(ledger, _COUNTED_BESIDE)
    return _receipt(destination, header, base, 0, ledger.now_us)


def count_duplicates(ledger: Ledger, partitions: int) -> None:
    """Writes down how many rows were recognised as stored before, of so many partitions at most.

    Beside something else that is written, or with a tick: a retry by itself writes nothing, and its answer
        waits for no disk.
    """
    state = ledger.state
    for number, partition in list(state.duplicates)[:partitions]:
        if number in state.by_number:
            rows = state.duplicates[number, partition]
            ledger.record(duplicates_counted={"destination": number, "partition": partition, "rows": rows})
        del state.duplicates[number, partition]


def _check_header(state: State, header: PublishHeader) -> None:
    """Refuses what would be refused later, before a destination is created for it."""
    if header.schema_id:
        raise Unsupported(
            f"schema {header.schema_id} is not known to this broker: use schema 0, the envelope"
        )
    if not header.rows:
        raise InvalidRequest(
            f"producer {header.producer_id!r} sends 0 rows at sequence {header.first_sequence}: send or "
            f"skip one at least"
        )
    if header.first_sequence + header.rows > SEQUENCE_MAX:
        raise InvalidRequest(
            f"producer {header.producer_id!r} sends sequence {header.first_sequence}, the last is "
            f"{SEQUENCE_MAX - 1}: open a new one"
        )
    destination = state.by_name.get(header.destination)
    partitions = state.settings.default_partitions if destination is None else len(destination.partitions)
    if header.partition >= partitions:
        raise InvalidRequest(
            f"destination {header.destination!r} has partitions 0 to {partitions - 1}, not "
            f"{header.partition}: describe it again"
        )
    if not header.HasField("staged") and is_named(header.producer_id):
        _check_marks(state, header, destination)
    if destination is None and header.first_sequence and not header.HasField("staged"):
        raise UnknownProducer(
            f"producer {header.producer_id!r} sends sequence {header.first_sequence} to "
            f"{header.destination!r}, which does not exist: "
            "it was deleted in the meantime; open a new producer"
        )


def _check_marks(state: State, header: PublishHeader, destination: Destination | None) -> None:
    """Refuses one partition more that a named producer sends to: what it has stored is never forgotten."""
    if state.audits.named < state.settings.producer_marks_max:
        return
    if destination is None or header.producer_id not in destination.partitions[header.partition].audit.named:
        raise LimitExceeded(
            f"partition {header.partition} of {header.destination!r} would be one more than "
            f"producer_marks_max = {state.settings.producer_marks_max} to which named producers have sent "
            f"({header.producer_id!r}): send without a name, or raise the limit"
        )


def _check_producer(state: State, header: PublishHeader) -> None:
    producer, epoch = header.producer_id, header.epoch
    if not producer or len(producer.encode()) > 300:
        raise InvalidRequest(
            f"producer id of {len(producer.encode())} bytes: use a random one of 32, or open a named producer"
        )
    if not is_named(producer):
        if epoch:
            raise InvalidRequest(f"unnamed producer {producer!r} has epoch {epoch}: it must be 0")
        return
    current = state.producers.get(producer)
    if current is None or epoch > current:
        raise UnknownProducer(
            f"producer {producer!r} epoch {epoch} was never opened here: open the producer first"
        )
    if epoch < current:
        raise ProducerFenced(
            f"producer {producer!r} was opened again elsewhere (epoch {current} replaced {epoch}): this "
            f"instance must "
            "stop, or use another name"
        )


def _skip(ledger: Ledger, destination: Destination, partition: Partition, header: PublishHeader) -> Receipt:
    known = partition.audit.check(header.producer_id, header.epoch, header.first_sequence, header.rows, None)
    if known is None:
        ledger.record(
            skipped={
                "destination": destination.number,
                "partition": header.partition,
                "producer_id": header.producer_id,
                "epoch": header.epoch,
                "first_sequence": header.first_sequence,
                "rows": header.rows,
            }
        )
    return _receipt(destination, header, 0, 0, ledger.now_us)


def _receipt(
    destination: Destination, header: PublishHeader, base: int, duplicates: int, time_us: int
) -> Receipt:
    return Receipt(
        partition=header.partition,
        base_offset=max(base, 0),
        rows=header.rows,
        duplicates=duplicates,
        log_id=destination.destination_id,
        append_time_us=time_us,
    )
