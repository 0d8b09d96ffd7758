"""What the application is done with, in one session: gathered for a moment, on its way, confirmed."""

from __future__ import annotations

import enum
from typing import Final

from mq_wire.v1 import consume_pb2
from pyspark_mq.client.outstanding import Ranges

#: Acknowledgements are gathered so long, unless there are enough of them before.
_LINGER_S: Final = 0.005
_GATHERED_MAX: Final = 1000
#: Requests on the wire at a time; the broker reads no further where more are unanswered.
_UNCONFIRMED_MAX: Final = 64
_NEVER: Final = float("inf")


class Verb(enum.Enum):
    """What becomes of rows."""

    ACKNOWLEDGE = "acknowledge"
    RELEASE = "release"
    RELEASE_UNCOUNTED = "release, and count no failed attempt"


#: Ranges by partition.
_Gathered = dict[int, list[Ranges]]


class Acknowledgements:
    """Free of locks and clocks: time is an argument."""

    def __init__(self) -> None:
        self._gathered: _Gathered = {}
        self._released: dict[Verb, _Gathered] = {}
        self._count = 0
        self._unconfirmed: dict[int, int] = {}  # request id -> rows
        self._request_id = 0
        self._due = _NEVER

    def __bool__(self) -> bool:
        """Whether any are gathered or on their way."""
        return bool(self._gathered or self._released or self._unconfirmed)

    def gather(self, partition: int, ranges: Ranges, now: float, verb: Verb = Verb.ACKNOWLEDGE) -> bool:
        """Takes some; returns whether who sends them must be woken."""
        gathered = self._gathered if verb is Verb.ACKNOWLEDGE else self._released.setdefault(verb, {})
        gathered.setdefault(partition, []).append(ranges)
        self._count += 1
        if self._count == 1:
            self._due = min(self._due, now + _LINGER_S)
        elif self._count == _GATHERED_MAX:
            self._due = 0.0
        return self._count in (1, _GATHERED_MAX)

    def flush_now(self) -> None:
        """Lets what was gathered leave at once."""
        self._due = 0.0

    @property
    def _may_leave(self) -> bool:
        return len(self._unconfirmed) < _UNCONFIRMED_MAX

    @property
    def wake_at(self) -> float:
        """When something must leave; it waits for a confirmation where too many are on their way."""
        return self._due if (self._gathered or self._released) and self._may_leave else _NEVER

    def fill(self, request: consume_pb2.ConsumeRequest, now: float, *, last: bool) -> None:
        """Puts what is due into a request; of releases only one kind, and the other stays due."""
        is_due = last or (self._due <= now and self._may_leave)
        if not is_due or not (self._gathered or self._released):
            return
        self._due, self._count = _NEVER, 0
        if self._gathered:
            self._put(request.acknowledge, self._gathered)
            self._gathered = {}
        if self._released:
            verb = next(iter(self._released))
            request.settle.verb = consume_pb2.RELEASE
            request.settle.uncounted = verb is Verb.RELEASE_UNCOUNTED
            self._put(request.settle, self._released.pop(verb))
        if self._released:
            self._due = 0.0

    def _put(self, part: consume_pb2.AcknowledgeRows | consume_pb2.SettleRows, gathered: _Gathered) -> None:
        self._request_id += 1
        part.request_id = self._request_id
        rows = 0
        for partition, parts in gathered.items():
            ranges = Ranges.union(parts)
            rows += ranges.rows
            part.partitions.add(partition=partition, ranges=ranges.to_bytes())
        self._unconfirmed[self._request_id] = rows

    def confirmed(self, request_id: int) -> None:
        """The broker has answered."""
        self._unconfirmed.pop(request_id, None)

    def drop(self) -> int:
        """Forgets all, since the session is over; returns how many rows were not confirmed."""
        gathered = [self._gathered, *self._released.values()]
        rows = sum(self._unconfirmed.values()) + sum(
            ranges.rows for each in gathered for parts in each.values() for ranges in parts
        )
        self._gathered, self._released, self._unconfirmed = {}, {}, {}
        self._count, self._due = 0, _NEVER
        return rows
