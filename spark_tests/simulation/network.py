"""All connections between clients and one broker: slow, broken at any moment, with answers that get lost."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final

from mq_broker.engine.engine import Engine
from mq_wire.errors import BrokerUnavailable, MqError
from mq_wire.v1.produce_pb2 import CommitStagedResponse, Receipt
from mq_wire.v1.subscribe_pb2 import OpenRangeResponse, PlanResponse
from spark_tests.oracle.history import History

_BROKEN: Final = "the connection broke"


class Link:
    """One stream or call, with the broker's end of it."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.number = network.new_number()
        self.up: deque[Any] = deque()
        self.down: deque[Any] = deque()
        self.pace = 0.7  # how likely it gets a turn when the broker has one
        self.is_broken = False  # the client knows
        self.is_gone = False  # the broker knows

    def send(self, message: Any) -> None:
        """Puts a message on its way to the broker."""
        if not self.is_broken:
            self.up.append(message)
            self.network.busy[self] = None

    def end(self) -> None:
        """The client ends it in order: what it sent before still arrives."""
        if not self.is_broken:
            self.is_broken = True
            self.network.busy[self] = None
            self.drop_down()

    def drop_down(self) -> None:
        """What was on its way to the client is lost."""
        self.down.clear()

    # -- the broker's end ----------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether the broker reads what comes next."""
        return True

    @property
    def has_rows(self) -> bool:
        """Whether the broker has rows to send."""
        return False

    def take(self, engine: Engine, message: Any) -> None:
        raise NotImplementedError

    def send_rows(self, engine: Engine) -> None:
        """Reads some rows and sends them."""

    def leave(self, engine: Engine) -> None:
        """The broker notices that the client is gone."""


class Call(Link):
    """One request, one reply. `done` once the client has the reply, or knows that it will get none."""

    def __init__(self, network: Network, command: Any, answered: Callable[[Any], None] | None = None) -> None:
        super().__init__(network)
        self.command, self._told = command, answered
        self.reply: Any = None
        self.done = False
        self.send(command)

    def take(self, engine: Engine, message: Any) -> None:
        if not engine.has_arrivals and self.network.rng.random() < 0.5:
            try:
                reply = engine.answer(message)
            except MqError as error:
                if engine.failed is not None:
                    raise
                reply = error
            self._answered(reply)
        else:
            engine.submit(message, self._answered)

    def _answered(self, reply: Any) -> None:
        self.network.count_reply(self.command, reply)
        if self._told is not None:
            self._told(reply)
        if not self.is_broken:
            self.reply, self.done = reply, True


class Network:
    """All links of one broker.

    Attributes:
        busy: links on which the broker's side has something to do, in the order in which it came.
        holders: how many links hold each run.
    """

    def __init__(self, rng: random.Random, history: History, counts: Counter[str], trace: list[str]) -> None:
        self.rng, self.history, self.counts, self.trace = rng, history, counts, trace
        self.busy: dict[Link, None] = {}
        self.links: dict[Link, None] = {}
        self.holders: Counter[int] = Counter()
        self.is_up = False
        self._links = 0

    def new_number(self) -> int:
        """Returns the number of a new link."""
        self._links += 1
        return self._links

    @property
    def is_late(self) -> bool:
        """Whether anything is on its way from clients that do not wait for it any more."""
        return any(link.is_broken and link.up for link in self.busy)

    def opened(self, link: Link) -> Any:
        """Takes a new link; where no process answers, it is broken at once."""
        if self.is_up:
            self.links[link] = None
        else:
            self._lose(link)
            link.is_gone = True
            self.busy.pop(link, None)
        return link

    def call(self, command: Any, answered: Callable[[Any], None] | None = None) -> Call:
        call: Call = self.opened(Call(self, command, answered))
        return call

    def deliver(self, engine: Engine) -> None:
        """Lets some of what was sent reach the broker, which sends some of what it has."""
        # In the order in which they were opened: the broker goes through sets of names, which have another
        # order in each process.
        chosen = [
            link for link in sorted(self.busy, key=lambda link: link.number) if self.rng.random() < link.pace
        ]
        self.rng.shuffle(chosen)
        for link in chosen:
            self._deliver(engine, link)

    def _deliver(self, engine: Engine, link: Link) -> None:
        while link.up and link.is_ready and self.rng.random() < 0.8:
            link.take(engine, link.up.popleft())
        while link.has_rows and self.rng.random() < 0.8:
            link.send_rows(engine)
        if link.is_broken and not link.is_gone and link.is_ready and not link.up:
            link.is_gone = True
            link.leave(engine)
        if link.is_gone or not (link.up or link.has_rows or link.is_broken):
            self.busy.pop(link, None)
            if link.is_gone:
                self.links.pop(link, None)

    def break_link(self, link: Link) -> None:
        """The connection is lost; what is on its way may still reach the broker, or not."""
        if link.is_broken:
            return
        self.counts["links broken"] += 1
        kept = self.rng.randint(0, len(link.up))
        if kept and self.rng.random() < 0.5:
            self.counts["late requests"] += kept
            link.pace = self.rng.choice([0.7, 0.1, 0.02])
        else:
            kept = 0
        _cut(link.up, kept)
        _cut(link.down, self.rng.randint(0, len(link.down)))
        self._lose(link)
        self.busy[link] = None

    def break_all(self) -> None:
        """The process is gone: what it sent before may still arrive, as far as it got."""
        for link in self.links:
            if not link.is_broken:
                _cut(link.down, self.rng.randint(0, len(link.down)))
                self._lose(link)
            link.is_gone = True
        self.links.clear()
        self.busy.clear()
        self.holders.clear()

    def _lose(self, link: Link) -> None:
        link.is_broken = True
        if isinstance(link, Call):
            self.counts["answers lost" if link.done else "calls without answer"] += 1
            link.reply, link.done = BrokerUnavailable(_BROKEN), True

    def close(self, link: Link) -> None:
        """The client has what it wanted."""
        self.links.pop(link, None)

    def count_reply(self, command: Any, reply: Any) -> None:
        """Writes down what the broker answered, whether it arrives or not."""
        what = command if isinstance(command, str) else type(command).__name__
        self.counts[f"{what}: {type(reply).__name__}" if isinstance(reply, MqError) else what] += 1
        self.trace.append(f"  {what} -> {_brief(reply)}")


def _brief(reply: Any) -> str:
    if isinstance(reply, Receipt):
        return (
            f"{reply.rows} rows from {reply.partition}@{reply.base_offset} "
            f"on{', known' if reply.duplicates else ''}"
        )
    if isinstance(reply, PlanResponse):
        return "idle" if reply.idle else f"{reply.rows} rows up to {dict(sorted(reply.end.next.items()))}"
    if isinstance(reply, OpenRangeResponse):
        return ", ".join(
            f"{part.partition}: {part.rows} rows in [{part.first}, {part.last})" for part in reply.parts
        )
    if isinstance(reply, CommitStagedResponse):
        return f"{reply.rows} rows{', known' if reply.already_committed else ''}"
    return str(reply) if isinstance(reply, int) else type(reply).__name__


def _cut(messages: deque[Any], kept: int) -> None:
    while len(messages) > kept:
        messages.pop()
