"""Changes to the state after losses: lost rows are removed from it, and numbers that lost entries may have
used are never used again.
"""

from __future__ import annotations

from typing import Final

from pyroaring import BitMap64

from mq_broker.core import apply
from mq_broker.core.handlers.choosing import PLAN_ROWS_MAX
from mq_broker.core.model.destination import Destination
from mq_broker.core.model.durable_consumer import Plan, packed
from mq_broker.core.model.state import State
from mq_broker.repair.findings import Finding
from mq_broker.repair.gaps import Gaps
from mq_wire.store.v1 import store_pb2 as store

#: Smallest size of an entry in the journal, and of a row in its frame.
_ENTRY_BYTES: Final = 64
_ROW_BYTES: Final = 4


class Aftermath:
    """Adapts the state of an inspection to what is lost."""

    def __init__(self, state: State, gaps: Gaps) -> None:
        self._state = state
        self._gaps = gaps
        self._lost_bytes = 0

    def lose_state(self, size_bytes: int) -> None:
        """Notes that so many bytes of the journal are lost, with an unknown number of entries in them."""
        self._lost_bytes += max(size_bytes, _ENTRY_BYTES)
        self._gaps.sure.clear()

    def settle(self, findings: list[Finding]) -> None:
        """Skips as many numbers as the lost entries can have used: runs and epochs, offsets, delivery numbers
        and destinations.
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
                if (destination.number, number) not in self._gaps.sure:
                    partition.log.next_offset += self._lost_bytes // _ROW_BYTES
            for consumer in destination.queue.consumers.values():
                end = {
                    number: consumer.next.get(number, 0) + entries * PLAN_ROWS_MAX
                    for number in range(len(destination.partitions))
                }
                consumer.add(Plan(consumer.next_plan, consumer.run, 0, {}, packed(end), returned=True))

    def lose_holes(self) -> None:
        """Removes the rows of which only the offsets are known."""
        left = {key: offsets.copy() for key, offsets in self._gaps.holes.items() if offsets}
        for key, offsets, finding in self._gaps.blamed:
            number, partition = key
            destination = self._state.by_number.get(number)
            if destination is not None and key in left:
                self.lose_rows(destination, partition, left[key] & offsets, finding)

    def lose_rows(
        self, destination: Destination, number: int, offsets: BitMap64, finding: Finding | None
    ) -> None:
        """Removes rows whose bytes are missing or damaged, and charges them to the finding."""
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
        """Removes an incomplete staged set. Its commit will be refused, and its writer writes the batch
        again.
        """
        held = self._state.staged[token]
        self._state.staged.pop(token)
        who = (
            f"batch {held.batch_id} of query {held.query_id}"
            if held.query_id
            else f"a write under token {token.hex()}"
        )
        finding.add_state(
            f"{held.rows} staged rows of {who} are dropped: "
            "its commit will be refused, and it is written again"
        )
