"""The door of the core: one command in, one reply or error out, entries recorded on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from mq_broker.core import apply, retention
from mq_broker.core import commands as command
from mq_broker.core.command_table import COMMANDS
from mq_broker.core.handlers import inventory, sessions
from mq_broker.core.ledger import Ledger, Sink
from mq_broker.core.model.facets import stored_facets
from mq_broker.core.model.state import State
from mq_broker.core.stored import entry_of

#: Microseconds for which it is known who holds space.
_HOLDERS_US: Final = 1_000_000


class Broker:
    """The whole broker but for disk, threads, clock and network.

    Args:
        cluster_id: 16 bytes, the data directory's identity.
        settings: bounds and defaults.
        sink: takes entries; the journal's turn in hand.
        new_id: gives 16 fresh random bytes.
    """

    def __init__(
        self, cluster_id: bytes, settings: command.Settings, sink: Sink, new_id: Callable[[], bytes]
    ) -> None:
        self.state = State(cluster_id, settings)
        self.ledger = Ledger(self.state, sink, new_id)
        #: When it was looked up who holds space, and the answer.
        self._holders: tuple[int, str] | None = None

    def handle(self, request: Any, now_us: int, monotonic_us: int | None = None) -> Any:
        """Returns the reply, which may leave once the entries recorded so far are on disk.

        Args:
            request: a command, or the wire's request of a unary call.
            now_us: wall clock, microseconds.
            monotonic_us: microseconds that only grow; None = the wall clock, where only one is told.

        Raises:
            MqError: the command is refused; what it recorded before the error (a destination created on first
                use) stays.
        """
        self.ledger.now_us = now_us
        self.ledger.monotonic_us = now_us if monotonic_us is None else monotonic_us
        self.ledger.began = self.ledger.entries
        return COMMANDS[type(request)].handler(self.ledger, request)

    def dispatch(self, now_us: int) -> bool:
        """Hands rows to connected consumers. To be called after the sync; returns whether it is to be called
        again.
        """
        self.ledger.now_us = now_us
        return sessions.dispatch(self.ledger)

    def replay(self, header: bytes | memoryview, body: pa.Buffer | None, place: Any) -> None:
        """Applies one entry of the journal at recovery.

        Raises:
            DataDirectoryUnusable: a newer version wrote the entry.
        """
        entry = entry_of(header)
        if body is None:
            apply.apply(self.state, entry, None)
        else:
            records = getattr(entry, str(entry.WhichOneof("what"))).records
            apply.apply(self.state, entry, apply.Body(place, stored_facets(records, body)))

    def holders_of_space(self) -> str:
        """Returns what holds rows that are not ready, for the error of a full disk; "" if nothing does. It is
        looked up once a second at most, however many publishes are refused.
        """
        now_us = self.ledger.monotonic_us
        if self._holders is None or now_us >= self._holders[0] + _HOLDERS_US:
            self._holders = now_us, inventory.holders_of_space(self.state)
        return self._holders[1]

    def reclaimable(self, segments: list[int]) -> list[int]:
        """Returns those of `segments` that hold no row that anybody can still get, and that nobody reads."""
        return retention.reclaimable(self.state, segments)
