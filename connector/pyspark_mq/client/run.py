"""A run: one start of a streaming query, held open at the broker by a stream that lives as long as this
process.
"""

from __future__ import annotations

import threading
from typing import Final

from mq_wire.errors import BrokerUnavailable, InternalError, MqError, WrongBroker
from mq_wire.v1 import admin_pb2, subscribe_pb2
from pyspark_mq.client import forks
from pyspark_mq.client.connection import Connection
from pyspark_mq.client.healing_stream import HealingStream
from pyspark_mq.client.log import LOG

#: How long the source's calls go on trying while the broker is away: a restart is seconds, and a query that
#: fails needs a person.
SOURCE_RETRY_S: Final = 60.0
#: The same before the broker was ever reached: then the address is more likely to be wrong than the broker to
#: be restarting.
FIRST_CONTACT_S: Final = 10.0


def patience_s(connection: Connection) -> float:
    """Returns for how many seconds the source waits for the broker: longer once it was reached."""
    return SOURCE_RETRY_S if connection.reached else FIRST_CONTACT_S


class Run:
    """Takes a run number and keeps it, over broken connections too.

    The broker returns what the run planned and nobody read once the stream is gone, so nothing has to be
    cleaned up when Spark kills the process, which is how most queries stop.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._number = 0
        self._cluster_id = b""
        self._error: MqError | None = None
        self._held = threading.Event()
        self._asked = b""  # cluster id of the broker that the present stream goes to
        self._stream: Final = HealingStream(connection, "HoldRun", "HoldRun")
        forks.watch(self)
        threading.Thread(target=self._run, name="mq-run", daemon=True).start()

    def forked(self, parent: int) -> None:
        """In a child: refuses, and leaves the stream to the parent."""
        self._stream.forked()
        self._error = forks.inherited("the run", parent)
        self._held = threading.Event()
        self._held.set()

    @property
    def cluster_id(self) -> bytes:
        """Identity of the broker that gave the number, 16 bytes; waits and raises as `number` does."""
        self.number()
        return self._cluster_id

    def number(self) -> int:
        """Returns the run's number once the broker holds it.

        Raises:
            BrokerUnavailable: it stayed away.
            WrongBroker: another broker stands at the address now; a new run can be taken there.
            MqError: the broker does not hold this run any more.
        """
        timeout = patience_s(self._connection)
        if not self._held.wait(timeout):
            raise BrokerUnavailable(
                f"no broker answered at {self._connection.address} for {timeout:g} s: start it with `mq "
                f"broker`, or correct option broker"
            )
        if self._error is not None:
            raise self._error
        return self._number

    def close(self) -> None:
        """Ends the run; what it planned and nobody read goes back."""
        self._stream.stop()
        self._stream.cancel()

    def _run(self) -> None:
        try:
            error = self._stream.serve(self)
        except BaseException as bug:  # whoever waits for the number must hear of it
            LOG.exception("the thread that holds a run ended")
            error = InternalError(f"the thread that holds the run has ended: {bug!r}: please report it")
        if error is not None:
            self._error = error
            self._held.set()

    # -- on the stream -------------------------------------------------------------------------------------

    def requests(self, hello: admin_pb2.HelloResponse) -> subscribe_pb2.HoldRunRequest:
        """Asks for a run, or for the same one again."""
        cluster_id = self._asked = hello.cluster_id
        # Asked here as well: older brokers do not look at what the request says.
        if self._number and cluster_id != self._cluster_id:
            raise WrongBroker(
                f"another broker stands at {self._connection.endpoint}: run {self._number} was taken from "
                f"{self._cluster_id.hex()}, "
                f"this is {cluster_id.hex()}: correct the address, or start with a new checkpoint"
            )
        return subscribe_pb2.HoldRunRequest(run=self._number, cluster_id=cluster_id)

    def take(self, answer: subscribe_pb2.RunEvent) -> None:
        """The broker holds the run."""
        self._number, self._cluster_id = answer.run, self._asked
        self._held.set()

    def broke(self, error: MqError | None) -> MqError | None:
        """The run is held no longer."""
        if not self._stream.is_stopped and (error is None or self._stream.heals(error)):
            self._held.clear()
        return error
