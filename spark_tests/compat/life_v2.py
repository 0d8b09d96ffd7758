"""What happened to a broker of version 0.2.0 before its directory was kept: all that version 0.1.0 did, and
what came with format 2.
"""

from __future__ import annotations

import base64
from typing import Final

from mq_wire.v1.consume_pb2 import AcknowledgeRows, ConsumeRequest
from mq_wire.v1.subscribe_pb2 import JoinQueryRequest, OpenRangeRequest
from spark_tests.compat.asking import Json, positions_of, who_of
from spark_tests.compat.life_v1 import Life
from spark_tests.compat.work_v1 import Reader, columns_for, token_of
from spark_tests.support.waiting import wait_until
from spark_tests.support.wire import consumed, open_consumer

#: How often two rows come back: a count of six bits.
_FAILURES: Final = 37


class LifeOfTwo(Life):
    """All of the work of both versions."""

    def begin(self, tag: str) -> None:
        super().begin(tag)
        self._many_partitions(tag)
        self._failures(tag, _FAILURES - 1)
        self._targets_begin(tag)
        self._queries_begin(tag)
        self._shared(tag)

    def go_on(self, tag: str) -> None:
        super().go_on(tag)
        self._failures(tag, 1)
        self._targets_go_on(tag)
        self._queries_go_on(tag)
        self._states(tag)

    def _many_partitions(self, tag: str) -> None:
        queue = f"{tag}.wide"
        self.call("CreateDestination", name=queue, partitions=40)
        for partition in (0, 1, 7, 38, 39):
            self.send(
                queue,
                partition,
                token_of(f"{queue}/{partition}"),
                0,
                [f"wide {partition} {at}" for at in range(11)],
                columns=columns_for(11),
            )

    # -- rows that fail again and again --------------------------------------------------------------------

    def _failures(self, tag: str, times: int) -> None:
        queue = f"{tag}.failing"
        if times > 1:
            self.call("CreateDestination", name=queue, partitions=1)
            self.send(queue, 0, token_of(queue), 0, [f"failing {at}" for at in range(6)])
        for _ in range(times):
            self._seen_and_left(queue, 2)
        self._seen_and_left(queue, 3)

    def _seen_and_left(self, queue: str, rows: int) -> None:
        """A consumer takes rows, sees them, and ends without a word."""
        stream = open_consumer(self.wire, queue, rows)
        taken = 0
        while taken < rows:
            header, _ = consumed(stream.next())
            taken += header.delivery.rows
        # The answer to an acknowledgement of nothing comes behind the credit that says what was seen.
        stream.put(ConsumeRequest(credit={"rows": rows, "bytes": 0}))
        stream.put(ConsumeRequest(acknowledge=AcknowledgeRows(request_id=1)))
        while True:
            header, _ = consumed(stream.next())
            if header.HasField("acknowledged"):
                break
        stream.cancel()
        self.settle(queue)

    # -- staged sets that say for which target they are ----------------------------------------------------

    def _targets_begin(self, tag: str) -> None:
        query = f"{tag}-targets"
        for name in ("left", "right"):
            self.call("CreateDestination", name=f"{tag}.{name}", partitions=2)
            self._take_epoch(query, f"{tag}.{name}")
            self._stage_for(f"{tag} {name} 0", f"{tag}.{name}", query, 0, 4)
            self._commit_for(f"{tag} {name} 0", f"{tag}.{name}", query, 0, 4)
            self._take_epoch(query, f"{tag}.{name}")
        self._stage_for(f"{tag} left late", f"{tag}.left", query, 1, 3)
        self._stage_for(f"{tag} right 1", f"{tag}.right", query, 1, 2)

    def _targets_go_on(self, tag: str) -> None:
        query = f"{tag}-targets"
        # Ends the older writer to one target, and only that.
        self._take_epoch(query, f"{tag}.left")
        self._stage_for(f"{tag} left 1", f"{tag}.left", query, 1, 3)
        self._commit_for(f"{tag} right 1", f"{tag}.right", query, 1, 2)
        self._take_epoch(query, f"{tag}.right")
        # Each batch with an application's own version, as within foreachBatch.
        self.stage(f"{tag} each 0", f"{tag}.left", 1, 0, 2)
        request = self._commit_request(f"{tag} each 0", f"{tag}.left", f"app:{tag} each", 0, 2)
        self.call("CommitStaged", **request, query_id=f"{tag}-each")
        self.later(
            "call", "the same version from another query", method="CommitStaged",
            request=request | {"query_id": "stranger"},
        )  # fmt: skip
        self.later(
            "call", "an open set for one target", method="CommitStaged",
            request=self._commit_request(f"{tag} left 1", f"{tag}.left", f"query:{query}", 1, 3),
        )  # fmt: skip

    def _take_epoch(self, query: str, target: str) -> None:
        self.epochs[target] = int(self.call("TakeEpoch", query_id=query, target=target)["epoch"])

    def _stage_for(self, name: str, target: str, query: str, batch: int, rows: int) -> None:
        staged = {
            "token": token_of(name),
            "epoch": self.epochs[target],
            "query_id": query,
            "batch_id": batch,
            "run_id": "run of v2",
            "target": target,
        }
        columns = {"priority": [(3 * at) % 10 for at in range(rows)]}
        self.stage(name, target, batch % 2, 0, rows, staged=staged, columns=columns)

    def _commit_request(self, name: str, target: str, owner: str, version: int, rows: int) -> Json:
        token = base64.b64encode(bytes.fromhex(token_of(name))).decode()
        return {
            "tokens": [{"token": token, "rows": rows}],
            "owner": owner,
            "version": version,
            "target": target,
            "rows": rows,
            "run_id": "run of v2",
        }

    def _commit_for(self, name: str, target: str, query: str, version: int, rows: int) -> None:
        request = self._commit_request(name, target, f"query:{query}", version, rows)
        self.call("CommitStaged", **request, query_id=query)
        self.later("call", "a commit for one target again", method="CommitStaged", request=request)

    # -- queries -------------------------------------------------------------------------------------------

    def _queries_begin(self, tag: str) -> None:
        for name in ("first", "second", "third"):
            queue = f"{tag}.{name}"
            self.call("CreateDestination", name=queue, partitions=2)
            self.fill(queue, 0, 9, "for a query over two queues")
            self.fill(queue, 1, 9, "for a query over two queues")
            self.readers[queue] = Reader(self, queue)
        self._join(f"{tag}.third", f"{tag}-waits", 0)
        for batch in (0, 1):
            both = [self.readers[f"{tag}.{name}"] for name in ("first", "second")]
            for reader in both:
                reader.plan(3)
            for reader in both:
                reader.read(query=f"{tag}-both", batch=batch)

    def _queries_go_on(self, tag: str) -> None:
        first, second = (self.readers[f"{tag}.{name}"] for name in ("first", "second"))
        third = self.readers[f"{tag}.third"]
        first.restart()
        first.read(query=f"{tag}-both", batch=1)
        first.plan(2)
        first.read(query=f"{tag}-both", batch=2)
        self._join(f"{tag}.second", f"{tag}-both", 2, second)
        third.plan(4)
        third.read(query=f"{tag}-waits", batch=1)
        between = {"start": second.boundaries[1], "end": second.boundaries[2]}
        for why, batch in (("under its number", 1), ("under one that it had not", 0)):
            self.later(
                "range", f"a batch again, {why}", who=dict(second.who), query_id=f"{tag}-both",
                batch_id=batch, **between,
            )  # fmt: skip

    def _join(self, queue: str, query: str, batch: int, reader: Reader | None = None) -> None:
        known = reader or self.readers[queue]
        self.wire.call(
            "JoinQuery",
            JoinQueryRequest(
                who=who_of(known.who, known.run.number()),
                query_id=query,
                batch_id=batch,
                spark_run_id="run of v2",
            ),
        )

    def _states(self, tag: str) -> None:
        """A plan that was given back unread and is past; one that is committed and not acknowledged; one that
        was opened and not read.
        """
        queue, query = f"{tag}.states", f"{tag}-states"
        self.call("CreateDestination", name=queue, partitions=1)
        self.fill(queue, 0, 24, "for queries")
        reader = Reader(self, queue)
        reader.plan(2)
        run, reader.run = reader.run, self.new_run()
        run.close()
        wait_until(lambda: self.wire.stats(queue).assigned_rows == 0, 20)
        reader.boundaries.pop()
        for batch in range(4):
            reader.plan(3)
            reader.read(query=query, batch=batch)
            if batch < 3:
                reader.acknowledge(batch + 1)
        self.epochs[query] = self.epoch()
        self.stage(f"{tag} states", f"{tag}.states-out", 0, 0, 3, query=query, batch=3)
        self.commit([(f"{tag} states", 3)], f"query:{query}", 3, f"{tag}.states-out")
        reader.plan(2)
        who = who_of(reader.who, reader.run.number())
        start, end = (positions_of(reader.boundaries[at]) for at in (-2, -1))
        self.wire.call("OpenRange", OpenRangeRequest(who=who, start=start, end=end))
        reader.asks(3, 4, "its batch is committed")
        reader.asks(0, 1, "plans that were given back are past")
        reader.asks(4, 5, "opened, and not read before")

    def _shared(self, tag: str) -> None:
        """Two readers of one queue in one query: both end."""
        queue = f"{tag}.shared"
        self.call("CreateDestination", name=queue, partitions=2)
        self.fill(queue, 1, 9, "for two")
        one, other = Reader(self, queue), Reader(self, queue)
        one.plan(3)
        other.plan(3)
        one.read(query=f"{tag}-shared", batch=0)
        for reader in (one, other):
            asked: Json = {"ask": "range", "who": dict(reader.who), "start": {}}
            asked |= {"end": reader.boundaries[-1]}
            asked |= {"query_id": f"{tag}-shared", "batch_id": 0}
            if reader is other:
                answer = self.asker.answer(asked)
                assert answer == {"error": "SHARED_RANGE"}, answer
            self.questions.append(asked | {"why": "one of two readers, which have ended"})
