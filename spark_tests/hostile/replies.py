"""Damaged answers of a broker, taken in as clients do: an error of ours is right, anything else would end
somebody's thread.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from mq_wire import framing
from mq_wire.errors import MqError
from mq_wire.v1.common_pb2 import RowsHeader
from pyspark_mq.client import deliveries
from spark_tests.hostile import mutation
from spark_tests.hostile.boundary import Boundary, template
from spark_tests.hostile.reading import read_as_clients
from spark_tests.hostile.traffic import QUEUE, Traffic

METHODS: Final = ("reply:Consume", "reply:Fetch")


class Replies:
    """A client whose broker lies: the same interface as `fuzzing.Chunk`."""

    def __init__(self, seed: str, number: int) -> None:
        self.rng = random.Random(f"{seed}/{number}")
        self.boundary = Boundary(lambda error: None)
        corpus = Traffic(self.boundary).corpus
        self.corpus = {
            f"reply:{name}": [answer for call in corpus[name] for answer in self._answers(name, call)]
            for name in ("Consume", "Fetch")
        }
        self.seen: set[str] = set()
        self.counts: Counter[str] = Counter()
        self.findings: list[str] = []
        self.read_rows = 0
        self.slowest_s = 0.0

    def _answers(self, method: str, call: tuple[bytes, ...]) -> list[bytes]:
        return [bytes(answer) for _, _, answer in self.boundary.feed(method, *call) if answer is not None]

    def next_input(self) -> tuple[str, tuple[bytes, ...]]:
        rng = self.rng
        method = rng.choice(METHODS)
        answer, other = rng.choice(self.corpus[method]), rng.choice(self.corpus["reply:Fetch"])
        head, records = (bytes(part) for part in framing.split(answer))
        choice = rng.random()
        if choice < 0.1:
            return method, (mutation.mutated(rng, answer, other),)
        if choice < 0.7:
            head = mutation.restructured(rng, head, other)
        if choice > 0.6:
            records = mutation.damaged_records(rng, records, other)
        return method, (framing.join(head, records),)

    def run(self, method: str, call: tuple[bytes, ...]) -> None:
        code = details = ""
        try:
            self._take_in(method, call[0])
        except MqError as error:
            code, details = error.code, str(error)
        except Exception as error:
            self.findings.append(f"{method} raised {type(error).__name__}: {error}")
        self.counts[f"{method} {code or 'OK'}"] += 1
        kind = f"{method} {template(code, details)}"
        if kind not in self.seen:
            self.seen.add(kind)
            try:
                framing.split(call[0])
            except MqError:
                return
            self.corpus[method].append(call[0])

    def _take_in(self, method: str, answer: bytes) -> None:
        parse: Callable[[bytes], tuple[Any, memoryview]] = (
            deliveries.consumed if method == "reply:Consume" else deliveries.fetched
        )
        header, records = parse(answer)
        rows = (
            header
            if isinstance(header, RowsHeader)
            else header.delivery
            if header.HasField("delivery")
            else None
        )
        if rows is not None and rows.rows:
            self.read_rows += read_as_clients(rows, records, QUEUE)

    def browse_all(self) -> None:
        pass
