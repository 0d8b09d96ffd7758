"""What has to be said and done about what is lost: rows are taken out, and numbers that may have been given
are never given again.
"""

from __future__ import annotations

from typing import Final

from pyroaring import BitMap64

from mq_broker.core import apply
from mq_broker.core.destination import Destination
from mq_broker.core.durable_consumer import Plan, packed
from mq_broker.core.planning import PLAN_ROWS_MAX
from mq_broker.core.state import State
from mq_broker.repair.findings import Finding
from mq_broker.repair.replay import Replay
from mq_wire.store.v1 import store_pb2 as store

#: What one entry takes in the journal at least, and what one row takes in its frame.
_ENTRY_BYTES: Final = 64
_ROW_BYTES: Final = 4


class Aftermath:
    """Works on the state of an inspection."""

    def __init__(self, state: State, replay: Replay) -> None:
        self._state = state
        self._replay = replay
        self._lost_bytes = 0

    def lose_state(self, size_bytes: int) -> None:
        """Notes that so many bytes of the journal are lost, with decisions in them that nobody knows."""
        self._lost_bytes += max(size_bytes, _ENTRY_BYTES)
        self._replay.sure.clear()

    def settle(self, findings: list[Finding]) -> None:
        """Leaves out as many numbers as the lost entries can have given: runs and epochs, offsets, delivery
        numbers, destinations.
        """
        if not self._lost_bytes:
            return
        state = self._state
        staged = [
            f"batch {s.batch_id} of query {s.query_id} ({s.rows} rows)"
            for s in state.staged.values()
            if s.query_id
        ]
        if staged:
            for finding in findings:
                if finding.turns is not None:
                    finding.add_state(f"still staged, unless a lost turn committed it: {', '.join(staged)}")
        entries = self._lost_bytes // _ENTRY_BYTES
        state.epoch += entries
        state.next_destination += entries
        for destination in state.by_number.values():
            for number, partition in enumerate(destination.partitions):
                if (destination.number, number) not in self._replay.sure:
                    partition.log.next_offset += self._lost_bytes // _ROW_BYTES
            for consumer in destination.queue.consumers.values():
                end = {
                    number: consumer.next.get(number, 0) + entries * PLAN_ROWS_MAX
                    for number in range(len(destination.partitions))
                }
                consumer.add(Plan(consumer.next_plan, consumer.run, 0, {}, packed(end), returned=True))

    def lose_holes(self) -> None:
        """Takes out the rows of which nothing is left but their numbers."""
        left = {key: offsets.copy() for key, offsets in self._replay.holes.items() if offsets}
        for key, offsets, finding in self._replay.blamed:
            number, partition = key
            destination = self._state.by_number.get(number)
            if destination is not None and key in left:
                self.lose_rows(destination, partition, left[key] & offsets, finding)

    def lose_rows(
        self, destination: Destination, number: int, offsets: BitMap64, finding: Finding | None
    ) -> None:
        """Takes rows out whose bytes are not there."""
        offsets = offsets - destination.partitions[number].quarantined
        if not offsets:
            return
        rows = [{"partition": number, "offsets": offsets.serialize()}]
        apply.apply(
            self._state, store.Entry(quarantined={"destination": destination.number, "rows": rows}), None
        )
        if finding is not None:
            finding.lose((destination.name, number), offsets)

    def drop_set(self, token: bytes, finding: Finding) -> None:
        """Forgets a staged set that is not whole: its commit is refused, and its batch written again."""
        held = self._state.staged[token]
        self._state.staged.pop(token)
        who = (
            f"batch {held.batch_id} of query {held.query_id}"
            if held.query_id
            else f"a write under token {token.hex()}"
        )
        said = (
            f"{held.rows} staged rows of {who} are dropped: its commit will be refused, and it is "
            f"written again"
        )
        finding.add_state(said)
