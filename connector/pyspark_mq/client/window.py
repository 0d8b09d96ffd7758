"""What a producer has sent and not had answered: batches, their sequences, and what to do with each answer.

Free of threads, sockets and clocks: time is an argument. Rules (PROTOCOL.md):

- Sequences count rows, per partition, without gaps, and are given when a batch leaves for the first time, so
  what never left takes none.
- Answers come in the order of the requests. When a batch is refused, those of its partition behind it come
  back OUT_OF_ORDER; the partition is *held* until all answers are in, then everything goes again in order,
  under the same sequences.
- A batch that is refused for good fails, and a `skip` of its sequences goes in its place, so that those
  behind it can follow.
- When the stream breaks, everything without an answer goes again. A batch the broker had stored is then
  answered as a duplicate.
- The broker forgets unnamed producers that were idle while many others came. Their partition goes on under a
  new identity, unless an answer was lost before: then nobody can tell any more what is stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from mq_wire import errors
from mq_wire.errors import (
    BrokerUnavailable,
    InternalError,
    MqError,
    OutOfOrder,
    OutOfWindow,
    Replaced,
    RetryLater,
    SendOutcomeUnknown,
    SendTimeout,
    SequenceReused,
    StorageFailed,
    UnknownProducer,
    WrongBroker,
)
from mq_wire.v1.produce_pb2 import PublishHeader, PublishResponse, StagedSet
from pyspark_mq.client.lane import Lane, or_skip, skip_of
from pyspark_mq.client.sending import NO_SEQUENCE, OutgoingBatch


class Window:
    """The unanswered batches of one producer and destination.

    Attributes:
        bytes: sum of `size` over what was added and has no outcome yet.
        batches: how many those are.
        rows_stored: rows that the broker has confirmed.
        is_named: whether its rows are counted over many producers of one name: then nothing may follow what
            has failed.
        trouble: why the broker took no stream, where it said so, since one answered; for what is too old.
    """

    def __init__(
        self,
        destination: str,
        producer_id: str,
        epoch: int,
        staged: StagedSet | None = None,
        *,
        is_named: bool = False,
    ) -> None:
        self._destination, self._producer_id, self._epoch, self._staged = (
            destination,
            producer_id,
            epoch,
            staged,
        )
        self.is_named = is_named
        self._is_unnamed = not is_named and staged is None
        self._lanes: dict[int, Lane] = {}
        self._ready: deque[OutgoingBatch] = deque()
        self._on_wire: deque[OutgoingBatch] = deque()
        self._request_id = 0
        self.bytes = 0
        self.batches = 0
        self.rows_stored = 0
        self.trouble: MqError | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing is unanswered, skips included."""
        return not (self._on_wire or self._ready or any(lane.waiting for lane in self._lanes.values()))

    @property
    def rows_unanswered(self) -> int:
        """Rows that have no outcome yet."""
        every = (self._on_wire, self._ready, *(lane.waiting for lane in self._lanes.values()))
        return sum(
            batch.rows for batches in every for batch in batches if not batch.is_skip and batch.error is None
        )

    @property
    def on_wire(self) -> int:
        """Requests on the present stream without an answer."""
        return len(self._on_wire)

    @property
    def has_unsent(self) -> bool:
        """Whether anything waits to be put on the stream, now or once its partition is no longer held."""
        return bool(self._ready) or any(lane.waiting or lane.held for lane in self._lanes.values())

    def add(self, batch: OutgoingBatch, deadline: float) -> None:
        """Takes a batch to be sent; its order within its partition is the order of the calls."""
        batch.deadline = deadline
        self.bytes += batch.size
        self.batches += 1
        self._ready.append(batch)

    # -- towards the broker --------------------------------------------------------------------------------

    def next_batch(self, now: float) -> OutgoingBatch | None:
        """Returns the next batch to put on the stream, or None where there is nothing that may go."""
        self._release_held(now)
        for _ in range(len(self._ready)):
            batch = self._ready.popleft()
            lane = self._lanes.get(batch.partition)
            if lane is None:
                lane = self._lanes[batch.partition] = Lane(self._producer_id)
            if not lane.admits(batch):
                continue
            self._request_id += 1
            batch.request_id = self._request_id
            batch.uncertain = True
            self._on_wire.append(batch)
            return batch
        return None

    def header(self, batch: OutgoingBatch, cluster_id: bytes = b"", *, awaited: bool = False) -> bytes:
        """Returns the serialised PublishHeader of a batch that `next_batch` gave, for the broker `cluster_id`
        alone where that is given; `awaited` where nothing else is sent before its answer.
        """
        header = PublishHeader(
            request_id=batch.request_id,
            destination=self._destination,
            partition=batch.partition,
            producer_id=self._lanes[batch.partition].producer_id,
            epoch=self._epoch,
            first_sequence=batch.sequence,
            rows=batch.rows,
            columns=batch.columns,
            priority_plus_one=batch.priority_plus_one,
            crc32=batch.crc32,
            has_crc32=not batch.is_skip,
            skip=batch.is_skip,
            cluster_id=cluster_id,
            awaited=awaited,
        )
        if self._staged is not None:
            header.staged.CopyFrom(self._staged)
        return header.SerializeToString()

    def _release_held(self, now: float) -> None:
        for lane in self._lanes.values():
            if lane.held or lane.full:
                self._ready.extendleft(reversed(lane.released(now)))

    def wake_at(self) -> float:
        """Returns when something may have to be done next: a held partition, or a deadline; infinity where
        nothing waits.
        """
        times = [lane.until for lane in self._lanes.values() if lane.held and not lane.unanswered]
        for batches in (self._on_wire, self._ready, *(lane.waiting for lane in self._lanes.values())):
            oldest = next((batch for batch in batches if not batch.is_skip and batch.error is None), None)
            if oldest is not None:
                times.append(oldest.deadline)
        return min(times, default=float("inf"))

    # -- from the broker -----------------------------------------------------------------------------------

    def answer(self, response: PublishResponse, now: float) -> OutgoingBatch | None:
        """Takes the answer to the oldest request and returns its batch where that has now its outcome.

        Raises:
            MqError: the producer cannot go on (fenced, unknown, answers that fit no request): fail everything
                with it.
        """
        if not self._on_wire or self._on_wire[0].request_id != response.request_id:
            raise InternalError(
                f"the broker answered request {response.request_id}, not the oldest one: please report it"
            )
        batch, receipt = self._on_wire[0], response.receipt
        if not response.HasField("error") and (receipt.partition, receipt.rows) != (
            batch.partition,
            batch.rows,
        ):
            raise InternalError(
                f"the broker gave a receipt for {receipt.rows} rows of partition {receipt.partition} to a "
                f"batch of {batch.rows} rows for partition {batch.partition}: please report it"
            )
        self._on_wire.popleft()
        lane = self._lanes[batch.partition]
        lane.unanswered -= 1
        if not response.HasField("error"):
            lane.taken()
            batch.duplicates = receipt.duplicates
            batch.base_offset = None if self._staged is not None else receipt.base_offset
            return self._settle(batch, None)
        error = errors.from_code(response.error.code, response.error.message)
        if isinstance(error, StorageFailed):
            batch.lost = True
            # the broker restarts from its disk, which may have the batch or not
            lane.hold(batch, error, now, pause=True)
            return None
        if (
            isinstance(error, UnknownProducer)
            and self._is_unnamed
            and not (batch.lost or any(other.lost for other in lane.waiting))
        ):
            lane.forgotten = True
            lane.hold(batch, error, now, pause=False)
            return None
        # Refused now; but where an earlier answer was lost, that request may still be on its way (a
        # connection that one side has given up delivers late): OUT_OF_ORDER says what is stored by now, not
        # what will be.
        batch.lost = batch.lost and isinstance(error, RetryLater)
        batch.uncertain = batch.lost
        if isinstance(error, RetryLater):
            # OUT_OF_ORDER behind a refused one is its consequence: it waits for nothing of its own.
            lane.hold(batch, error, now, pause=not (isinstance(error, OutOfOrder) and lane.held))
            return None
        if batch.is_skip:
            if isinstance(error, SequenceReused | OutOfWindow):
                return None  # what it would have skipped is stored
        elif not isinstance(error, Replaced | UnknownProducer | WrongBroker) and self._staged is None:
            lane.give_up(batch, now)
            return self._settle(batch, error)
        self._on_wire.appendleft(batch)
        raise error

    def disconnected(self) -> None:
        """The stream is gone: all that it left unanswered goes again, before everything else."""
        again: list[OutgoingBatch] = []
        # Refused batches of a partition were sent before those of it that are still on the wire.
        for lane in self._lanes.values():
            again += lane.disconnected()
        for batch in self._on_wire:
            batch.lost = True
        again += self._on_wire
        self._on_wire.clear()
        never_left = [batch for batch in again if batch.sequence == NO_SEQUENCE]
        left = sorted(
            (batch for batch in again if batch.sequence != NO_SEQUENCE),
            key=lambda batch: (batch.partition, batch.sequence),
        )
        self._ready.extendleft(reversed([or_skip(batch) for batch in left] + never_left))

    def _settle(self, batch: OutgoingBatch, error: MqError | None) -> OutgoingBatch | None:
        """Gives a batch its outcome, once. Returns it where this was the first."""
        batch.records = None
        if batch.is_skip or batch.error is not None:
            return None
        self.bytes -= batch.size
        self.batches -= 1
        batch.error = error
        batch.stored = error is None
        if batch.stored:
            self.rows_stored += batch.rows
        return batch

    # -- giving up -----------------------------------------------------------------------------------------

    def expire(self, now: float, timeout_s: float) -> list[OutgoingBatch]:
        """Fails the batches whose time is up and returns them. Those that never left will not be sent."""
        expired: list[OutgoingBatch] = []
        for batch in self._on_wire:
            if _is_late(batch, now):
                expired += self._fail(batch, self._late(batch, timeout_s))
        self._ready = deque(self._without_late(self._ready, now, timeout_s, expired))
        for lane in self._lanes.values():
            lane.waiting = self._without_late(lane.waiting, now, timeout_s, expired)
        return expired

    def _without_late(
        self, batches: Iterable[OutgoingBatch], now: float, timeout_s: float, expired: list[OutgoingBatch]
    ) -> list[OutgoingBatch]:
        """Fails the late ones of `batches`, adds them to `expired`, and returns what is to be sent
        instead.
        """
        kept = []
        for batch in batches:
            if not _is_late(batch, now):
                kept.append(batch)
                continue
            expired += self._fail(batch, self._late(batch, timeout_s))
            if batch.sequence != NO_SEQUENCE:
                kept.append(skip_of(batch))
        return kept

    def _late(self, batch: OutgoingBatch, timeout_s: float) -> MqError:
        """What it means that no answer came in time."""
        which = f"a batch of {batch.rows} rows for partition {batch.partition}"
        if batch.uncertain:
            return SendOutcomeUnknown(
                f"{which} was sent and not answered within {timeout_s} s: it may be stored or not; read "
                f"the queue before sending it again"
                + ("" if self.trouble is None else f"; since then the broker refuses: {self.trouble}")
            )
        lane = self._lanes.get(batch.partition)
        refusal = batch.refusal
        if lane is not None and (refusal is None or isinstance(refusal, OutOfOrder)):
            refusal = lane.refusal  # of what stands before it in its partition
        refusal = self.trouble if refusal is None else refusal
        if refusal is not None and not isinstance(refusal, BrokerUnavailable | OutOfOrder):
            return type(refusal)(f"{which} was refused for {timeout_s} s and is not stored: {refusal}")
        return SendTimeout(
            f"{which} could not be sent within {timeout_s} s and will not be: see that the broker runs, or "
            f"raise send_timeout"
        )

    def _fail(self, batch: OutgoingBatch, error: MqError) -> list[OutgoingBatch]:
        settled = self._settle(batch, error)
        return [] if settled is None else [settled]

    def fail_all(self, error: MqError) -> list[OutgoingBatch]:
        """Fails everything that has no outcome with `error`, and returns it. Nothing is sent any more."""
        every = [
            *self._on_wire,
            *self._ready,
            *(batch for lane in self._lanes.values() for batch in lane.waiting),
        ]
        self._on_wire.clear()
        self._ready.clear()
        self._lanes.clear()
        return [batch for batch in every if self._settle(batch, error) is not None]


def _is_late(batch: OutgoingBatch, now: float) -> bool:
    return batch.deadline <= now and not batch.is_skip and batch.error is None
