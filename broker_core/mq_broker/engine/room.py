"""Room in the journal, asked for when a command is about to write: what changes nothing needs none."""

from __future__ import annotations

from typing import Any

from mq_broker.core.broker import Broker
from mq_broker.core.command_table import COMMANDS, Room
from mq_broker.engine.housekeeping import Housekeeping
from mq_broker.journal.frames import frame_bytes
from mq_broker.journal.journal import Journal


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
        rule = COMMANDS[type(command)]
        more_bytes = rule.bytes_behind_first(self._broker.state, command)
        if rule.room_of(command) is Room.PLAIN:
            self.for_rows(header_bytes + more_bytes, 0)
            return
        more_bytes = min(more_bytes, self._journal.space.state_bytes_max // 2)
        size = max(min(first + more_bytes, self._journal.space.turn_bytes_max // 2), first)
        if not self._journal.space.fits(size):
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
            max(self._journal.space.turn_bytes_max // 2, frame_bytes(0, body_bytes)),
        )
        if not self._journal.space.fits(size):
            self._journal.commit()
            self._housekeeping.keep_room(self._broker)
        self._journal.reserve(size)
