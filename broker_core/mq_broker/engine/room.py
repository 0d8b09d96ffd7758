"""Room in the journal, asked for when a command is about to write: what changes nothing needs none."""

from __future__ import annotations

from typing import Any, Final

from mq_broker.core import planning
from mq_broker.core.broker import Broker
from mq_broker.core.commands import CloseRun, OpenSession, Publish, Tick
from mq_broker.engine.housekeeping import Housekeeping
from mq_broker.journal.frames import frame_bytes
from mq_broker.journal.journal import Journal
from mq_wire.v1.admin_pb2 import CreateDestinationRequest, DescribeDestinationRequest
from mq_wire.v1.produce_pb2 import CommitStagedRequest
from mq_wire.v1.subscribe_pb2 import PlanRequest

#: For what a command writes behind its first entry: other entries of a few numbers each, and tokens of staged
#: sets.
_MORE_BYTES: Final = 64 << 10
_TOKEN_BYTES: Final = 24
#: An entry that gives plans of one consumer back.
_RETURNED_BYTES: Final = 256
#: These write only where something new comes into being: refused together with rows.
_GROW: Final = (CreateDestinationRequest, DescribeDestinationRequest, OpenSession)


class JournalRoom:
    """Makes room for the entries of one command. All that state entries of a command need is asked for at its
    first one: a turn lies in one segment, and what belongs together in one turn.

    Args:
        journal: that the entries go to.
        broker: whose state tells how much a command may write.
        housekeeping: knows how much snapshots need.
    """

    def __init__(self, journal: Journal, broker: Broker, housekeeping: Housekeeping) -> None:
        self._journal, self._broker, self._housekeeping = journal, broker, housekeeping
        #: The command in hand.
        self.command: Any = None

    def for_state(self, header_bytes: int) -> None:
        """Before the first entry of a command.

        Raises:
            StoreFull: there is none, or only the last segment that is kept back, and snapshots may bring
                others; nothing was changed.
        """
        command, first = self.command, frame_bytes(header_bytes, None)
        if isinstance(command, _GROW) or (
            isinstance(command, Publish) and not command.header.HasField("staged")
        ):
            self.for_rows(header_bytes + _MORE_BYTES, 0)
            return
        size = max(min(first + self._more_bytes(command), self._journal.turn_bytes_max // 2), first)
        if not self._journal.fits(size):
            self._journal.commit()
            self._housekeeping.keep_room(self._broker)
            may_relieve = self._housekeeping.may_relieve(self._broker.ledger.monotonic_us)
            self._journal.reserve(size, for_state=True, left=int(may_relieve))

    def for_rows(self, header_bytes: int, body_bytes: int) -> None:
        """Before each entry with rows.

        Raises:
            StoreFull: there is none beside what is kept back for state.
        """
        size = min(
            frame_bytes(header_bytes, body_bytes),
            max(self._journal.turn_bytes_max // 2, frame_bytes(0, body_bytes)),
        )
        if not self._journal.fits(size):
            self._journal.commit()
            self._housekeeping.keep_room(self._broker)
        self._journal.reserve(size)

    def _more_bytes(self, command: Any) -> int:
        state = self._broker.state
        more = _MORE_BYTES + _TOKEN_BYTES * len(state.staged)
        if isinstance(command, PlanRequest):
            more += planning.plan_bytes(state, command)
        elif isinstance(command, (CloseRun, Tick)):
            more += _RETURNED_BYTES * sum(destination.durable_consumers for destination in state.consuming())
        elif isinstance(command, CommitStagedRequest):
            more += command.ByteSize()
        return min(more, self._journal.state_bytes_max // 2)
