"""What the work on a broker of version 0.1.0 is put together from, with the questions that follow from it."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from mq_wire.v1.subscribe_pb2 import AcknowledgeRangeRequest, PlanRequest
from pyspark_mq.client.run import Run
from spark_tests.compat.asking import Asker, Json, positions_json, positions_of, who_of
from spark_tests.support.waiting import wait_until


def token_of(name: str) -> str:
    return hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()


def columns_for(rows: int) -> Json:
    """Every optional column that version 0.1.0 takes, some of their values null."""
    some = range(rows)
    return {
        "key": [None if at % 5 == 4 else b"key-%d" % (at % 3) for at in some],
        "headers": [
            None
            if at % 4 == 3
            else [{"key": "origin", "value": b"h%d" % at}, {"key": "empty", "value": None}]
            for at in some
        ],
        "priority": [at % 10 for at in some],
        "message_id": [f"id-{at}" if at % 2 else None for at in some],
        "created_at": [1_700_000_000_000_000 + at for at in some],
        "correlation_id": [f"correlation {at}" for at in some],
        "reply_to": ["answers" if at % 3 else None for at in some],
        "type": [f"type-{at % 2}" for at in some],
        "trace_context": [f"00-{at:032x}-01" for at in some],
    }


class Reader:
    """A durable consumer with its checkpoint: what was planned, one boundary after the other."""

    def __init__(self, life: Work, queue: str, name: str = "") -> None:
        self.life = life
        self.who: Json = {"destination": queue, "consumer": name}
        self.boundaries: list[Json] = [{}]
        self.run = life.new_run()

    def plan(self, max_rows: int) -> None:
        who = who_of(self.who, self.run.number())
        planned = self.life.wire.call(
            "Plan", PlanRequest(who=who, start=positions_of(self.boundaries[-1]), max_rows=max_rows)
        )
        assert planned.rows, self.who
        for name in ("cluster_id", "destination_id", "incarnation"):
            self.who[name] = getattr(planned, name).hex()
        self.boundaries.append(positions_json(planned.end))

    def read(self, first: int = -2, last: int = -1, query: str = "", batch: int = 0) -> list[list[Any]]:
        """Opens and reads between two of the boundaries."""
        answer = self.life.asker.range(
            who=self.who,
            start=self.boundaries[first],
            end=self.boundaries[last],
            query_id=query,
            batch_id=batch,
            run=self.run.number(),
        )
        rows: list[list[Any]] = answer["rows"]
        return rows

    def acknowledge(self, boundary: int) -> None:
        who = who_of(self.who, self.run.number())
        self.life.wire.call(
            "AcknowledgeRange", AcknowledgeRangeRequest(who=who, end=positions_of(self.boundaries[boundary]))
        )

    def restart(self) -> None:
        """The query starts anew: a newer run. The older one goes on existing, as a process that hangs
        does.
        """
        self.run = self.life.new_run()

    def asks(self, first: int, last: int, why: str) -> None:
        """What lies between two boundaries is a question."""
        self.life.later(
            "range", why, who=dict(self.who), start=self.boundaries[first], end=self.boundaries[last]
        )


class Work:
    """A client of all kinds. `questions` holds what can be asked of the directory."""

    def __init__(self, address: str) -> None:
        self.asker = Asker(address)
        self.wire = self.asker.wire
        self.questions: list[Json] = []
        #: What could be seen before the end.
        self.seen: Json = {}
        self.stirred = 0
        self.readers: dict[str, Reader] = {}
        self.epochs: dict[str, int] = {}
        self.sessions: list[Any] = []

    def close(self) -> None:
        self.asker.close()

    def reach(self, queue: str) -> None:
        """Waits until the broker is there again."""
        self.wire.stats(queue, wait_for_ready=True)

    def new_run(self) -> Run:
        run = Run(self.asker.connection)
        run.number()
        self.asker._runs.append(run)
        return run

    def later(self, ask: str, why: str, **arguments: Any) -> None:
        """Adds a question."""
        self.questions.append({"ask": ask, "why": why, **arguments})

    def call(self, method: str, **request: Any) -> Json:
        return self.asker.call(method, request)

    def send(
        self, destination: str, partition: int, producer: str, first: int, values: list[str], **fields: Any
    ) -> Json:
        answer = self.asker.send(
            destination=destination,
            partition=partition,
            producer_id=producer,
            first_sequence=first,
            values=values,
            **fields,
        )
        assert "error" not in answer, answer
        return answer

    def fill(self, queue: str, partition: int, count: int, label: str) -> None:
        """So many rows of a producer that sends one batch, with priorities 3 and 7 mixed."""
        producer = token_of(f"{queue}/{partition}/{label}")
        priorities = [7 if at % 3 == 0 else 3 for at in range(count)]
        self.send(
            queue,
            partition,
            producer,
            0,
            [f"{queue}/{label} {at}" for at in range(count)],
            columns={"priority": priorities},
        )

    def settle(self, queue: str) -> None:
        """Waits until no connected consumer holds anything."""
        wait_until(lambda: not self.wire.stats(queue).assigned_rows, 20)

    def epoch(self) -> int:
        return int(self.call("TakeEpoch")["epoch"])

    def stage(
        self,
        name: str,
        queue: str,
        partition: int,
        first: int,
        rows: int,
        query: str = "",
        batch: int = 0,
        **fields: Any,
    ) -> Json:
        """Adds a batch to a staged set; returns what was sent, for who sends it again."""
        staged = {
            "token": token_of(name),
            "epoch": self.epochs.get(query, 0),
            "query_id": query,
            "batch_id": batch,
            "run_id": "run of v1",
        }
        values = [f"{name} {partition} {first + at}" for at in range(rows)]
        sent = {
            "destination": queue,
            "partition": partition,
            "first_sequence": first,
            "values": values,
            "staged": staged,
            **fields,
        }
        answer = self.asker.send(**sent)
        assert "error" not in answer, answer
        return sent

    def commit(self, sets: list[tuple[str, int]], owner: str, version: int, target: str) -> Json:
        """Commits sets; the commit again is a question, and with other rows, and with an older version."""
        tokens = [
            {"token": base64.b64encode(bytes.fromhex(token_of(name))).decode(), "rows": rows}
            for name, rows in sets
        ]
        request = {
            "tokens": tokens,
            "owner": owner,
            "version": version,
            "target": target,
            "rows": sum(rows for _, rows in sets),
            "run_id": "run of v1",
        }
        self.asker.call("CommitStaged", request)
        self.later("call", "a commit again", method="CommitStaged", request=request)
        if owner:
            self.later(
                "call",
                "a commit again with other rows",
                method="CommitStaged",
                request=request | {"rows": 77},
            )
            self.later(
                "call",
                "and kept",
                method="CommitStaged",
                request=request | {"rows": 77, "keep_mismatch": True},
            )
            self.later(
                "call", "an older version", method="CommitStaged", request=request | {"version": version - 1}
            )
        return request
