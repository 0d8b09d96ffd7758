"""Clients that take rows and acknowledge them: with credit, in parts, over sessions that end at any
moment.
"""

from __future__ import annotations

import numpy as np

from mq_wire.errors import MqError, SessionClosed, StoreFull
from mq_wire.v1.consume_pb2 import Credit, OpenConsumer
from spark_tests.oracle.marked import Rows
from spark_tests.simulation.client import Client, Steps, World
from spark_tests.simulation.links import ConsumeLink


class Consumer(Client):
    """Takes from one queue, acknowledges most of it, gives up its session now and then."""

    def __init__(self, world: World, queue: str, number: int) -> None:
        super().__init__(world, f"consumer {number}")
        self.queue = queue
        self._link: ConsumeLink | None = None
        self._held: list[Rows] = []
        self._requests = 0
        self._asks = self._asked = 0
        self._unconfirmed: dict[int, Rows] = {}

    def body(self) -> Steps:
        while not self.world.is_finishing:
            if self._link is None:
                self._open()
            elif self._link.is_broken and not self._link.down:
                self.counts["sessions broken"] += 1
                self._link, self._held = None, []
            else:
                self._work(self._link)
            yield None
        if self._link is not None:
            self._link.end()

    def _open(self) -> None:
        credit = self.rng.choice([1, 5, 50, 1000])
        self._asked = 0
        opening = OpenConsumer(
            destination=self.queue,
            credit=Credit(rows=credit, bytes=self.rng.choice([500, 1 << 40])),
            create=True,
            batch_rows_max=self.rng.choice([0, 3, 100]),
        )
        self._link = self.network.opened(ConsumeLink(self.network, self.queue, opening))

    def _work(self, link: ConsumeLink) -> None:
        while link.down and self.rng.random() < 0.9:
            what = link.down.popleft()
            if what[0] == "acknowledged":
                self._confirmed(*what[1:])
            elif what[0] == "asked":
                self._answered(what[1])
            else:
                _, rows, stamp, counts = what
                self.history.read(self.queue, self.world.saw(rows), stamp, counts=counts)
                self._held.append(rows)
                if self.rng.random() < 0.9:
                    link.send(("credit", len(rows)))
        if not self._asked and self.rng.random() < 0.1:
            self._asks += 1
            self._asked = self._asks
            link.send(("ask", self._asked))
        while self._held and self.rng.random() < 0.7:
            self._acknowledge(link, self._held.pop(self.rng.randrange(len(self._held))))
        if self.rng.random() < 0.01:
            self.counts["sessions ended"] += 1
            link.end()
            self._link, self._held = None, []

    def _answered(self, number: int) -> None:
        self.counts["questions answered"] += 1
        if number != self._asked:
            self.history.note(f"{self.name}: an answer to question {number}, where {self._asked} was asked")
        self._asked = 0

    def _acknowledge(self, link: ConsumeLink, rows: Rows) -> None:
        if self.rng.random() < 0.3:  # some of them, the rest later or never
            keep = np.array([self.rng.random() < 0.6 for _ in range(len(rows))], bool)
            if not keep.all() and self.rng.random() < 0.7:
                self._held.append(rows[~keep])
            rows = rows[keep]
        if len(rows):
            self._requests += 1
            self._unconfirmed[self._requests] = rows
            link.send(("acknowledge", self._requests, ranges_of(rows), rows))

    def _confirmed(self, request: int, reply: object) -> None:
        rows = self._unconfirmed.pop(request)
        if isinstance(reply, StoreFull):
            self._held.append(rows)  # again later
        elif isinstance(reply, MqError) and not isinstance(
            reply, SessionClosed
        ):  # an operator's word is on its way
            self.history.note(f"{self.name}: an acknowledgement of its own rows was refused: {reply}")


def ranges_of(rows: Rows) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """Returns per partition the first offsets and the offsets after the last."""
    ranges = []
    for partition in np.unique(rows.partitions).tolist():
        offsets = np.sort(rows.offsets[rows.partitions == partition])
        breaks = np.flatnonzero(np.diff(offsets) != 1)
        starts = offsets[np.concatenate(([0], breaks + 1))]
        stops = offsets[np.concatenate((breaks, [len(offsets) - 1]))] + 1
        ranges.append((partition, starts, stops))
    return ranges
