"""What happened to a broker of version 0.1.0 before its directory was kept: work of every kind, one half and
the other.
"""

from __future__ import annotations

import base64
from typing import Final

import numpy as np

from mq_wire.v1.consume_pb2 import AcknowledgeRows, ConsumeRequest, PartitionRanges
from pyspark_mq import Consumer, Producer
from spark_tests.compat.asking import Json
from spark_tests.compat.readers_v1 import Readers
from spark_tests.compat.work_v1 import columns_for, token_of
from spark_tests.support.wire import consumed, open_consumer

PRIORITIES: Final = list(range(10))


class Life(Readers):
    """All of the work."""

    def begin(self, tag: str) -> None:
        """The first half of everything: what it leaves is open, held, or waits."""
        self._destinations(tag)
        self._producers(tag)
        self._sessions_begin(tag)
        self.readers_begin(tag)
        self._staged_begin(tag)

    def go_on(self, tag: str) -> None:
        """The second half: goes on with what the first one began, and leaves some of it open."""
        self._producers_go_on(tag)
        self._sessions_go_on(tag)
        self.readers_go_on(tag)
        self._staged_go_on(tag)

    def _destinations(self, tag: str) -> None:
        self.call("CreateDestination", name=f"{tag}.orders", partitions=3)
        for partition in range(3):
            self.send(
                f"{tag}.orders",
                partition,
                token_of(f"{tag}/all/{partition}"),
                0,
                [f"all {partition} {at}" for at in range(12)],
                columns=columns_for(12),
            )
            for priority in PRIORITIES:
                self.send(
                    f"{tag}.orders",
                    partition,
                    token_of(f"{tag}/uniform/{partition}"),
                    priority,
                    [f"uniform {partition} {priority}"],
                    priority_plus_one=priority + 1,
                )
        for name, again in ((f"{tag}.gone", 0), (f"{tag}.again", 4)):
            self.call("CreateDestination", name=name, partitions=2)
            self.fill(name, 1, 5, "before it was deleted")
            self.call("DeleteDestination", name=name)
            if again:
                self.call("CreateDestination", name=name, partitions=again)
                self.fill(name, 3, 3, "after it was created again")
        self.call("CreateDestination", name=f"{tag}.empty", partitions=1)

    def _producers(self, tag: str) -> None:
        queue, anonymous = f"{tag}.sent", token_of(f"{tag}/anonymous")
        self.call("CreateDestination", name=queue, partitions=2)
        self.send(queue, 0, anonymous, 0, ["a0", "a1", "a2"])
        self.send(queue, 0, anonymous, 3, ["", ""], skip=True)
        self.send(queue, 0, anonymous, 5, ["a5", "a6"])
        for _ in range(2):
            self.send(queue, 0, anonymous, 0, ["a0", "a1", "a2"])
        self.send(queue, 1, anonymous, 0, ["", "", "", ""], skip=True)
        named = self.call("OpenProducer", name=f"{tag}-named", destination=queue)
        self.send(queue, 0, named["producer_id"], 0, ["n0", "n1"], epoch=named["epoch"])
        self.send(queue, 1, named["producer_id"], 0, ["n0", "n1", "n2"], epoch=named["epoch"])
        self.call("OpenProducer", name=f"{tag}-silent", destination=queue)
        with Producer(self.asker.address, queue=queue, name=f"{tag}-client") as client:
            client.send(b"by the client", key=b"k", priority=8, headers={"h": b"1"}, partition=1).result(20)
        self.later("send", "a retry of the first "
                           "batch", destination=queue, partition=0, producer_id=anonymous, first_sequence=0,
                   values=["a0", "a1", "a2"])  # fmt: skip
        self.later(
            "send",
            "other bytes under a known sequence",
            destination=queue,
            partition=0,
            producer_id=anonymous,
            first_sequence=0,
            values=["a0", "a1", "xx"],
        )
        self.later(
            "send",
            "a skip again",
            destination=queue,
            partition=0,
            producer_id=anonymous,
            first_sequence=3,
            values=["", ""],
            skip=True,
        )
        self.later(
            "send",
            "nobody's sequence 5",
            destination=queue,
            partition=0,
            producer_id=token_of("nobody"),
            first_sequence=5,
            values=["x"],
        )

    def _producers_go_on(self, tag: str) -> None:
        queue, anonymous = f"{tag}.sent", token_of(f"{tag}/anonymous")
        self.send(queue, 0, anonymous, 7, ["a7"])
        self.send(queue, 1, anonymous, 4, ["b4", "b5"])
        self.send(queue, 0, anonymous, 5, ["a5", "a6"])
        named = self.call("OpenProducer", name=f"{tag}-named", destination=queue)
        self.send(
            queue, 0, named["producer_id"], 0, ["second epoch 0", "second epoch 1"], epoch=named["epoch"]
        )
        again = {
            "destination": queue,
            "partition": 0,
            "producer_id": named["producer_id"],
            "first_sequence": 0,
        }
        self.later(
            "send",
            "the named producer's retry",
            epoch=named["epoch"],
            values=["second epoch 0", "second epoch 1"],
            **again,
        )
        self.later("send", "its older epoch", epoch=named["epoch"] - 1, values=["x"], **again)
        self.later(
            "send",
            "a gap",
            destination=queue,
            partition=0,
            producer_id=anonymous,
            first_sequence=99,
            values=["x"],
        )
        self.later(
            "send",
            "the next sequence",
            destination=queue,
            partition=0,
            producer_id=anonymous,
            first_sequence=8,
            values=["a8"],
        )
        for name in ("named", "silent", "client"):
            self.later("call", "the marks of a named producer", method="OpenProducer",
                       request={"name": f"{tag}-{name}", "destination": queue})  # fmt: skip

    # -- connected consumers -------------------------------------------------------------------------------

    def _sessions_begin(self, tag: str) -> None:
        queue = f"{tag}.work"
        self.call("CreateDestination", name=queue, partitions=2)
        self.fill(queue, 0, 12, "work")
        self.fill(queue, 1, 6, "work")
        self._work(queue, take=8, done=3, seen=4)

    def _sessions_go_on(self, tag: str) -> None:
        queue = f"{tag}.work"
        self._work(queue, take=6, done=2, seen=3)
        with Consumer(self.asker.address, queue=queue, prefetch=1) as consumer:
            message = consumer.receive(timeout=20.0)
            assert message is not None
            consumer.acknowledge(message)
        self.settle(queue)

    def _work(self, queue: str, take: int, done: int, seen: int) -> None:
        """A consumer takes rows, acknowledges some, has seen some more, and goes away."""
        stream = open_consumer(self.wire, queue, take)
        rows: list[tuple[int, int]] = []
        while len(rows) < take:
            header, _ = consumed(stream.next())
            delivery = header.delivery
            base = delivery.base_offset
            offsets = (
                np.frombuffer(delivery.offsets, "<i8").tolist()
                if delivery.offsets
                else range(base, base + delivery.rows)
            )
            rows += [(delivery.partition, offset) for offset in offsets]
        ranges: dict[int, list[int]] = {}
        for partition, offset in rows[:done]:
            ranges.setdefault(partition, []).extend((offset, offset + 1))
        partitions = [
            PartitionRanges(partition=p, ranges=np.array(sorted(r), "<i8").tobytes())
            for p, r in ranges.items()
        ]
        stream.put(ConsumeRequest(acknowledge=AcknowledgeRows(request_id=1, partitions=partitions)))
        # Credit anew says what was seen: as many as were acknowledged, and some.
        stream.put(ConsumeRequest(credit={"rows": done + seen, "bytes": 0}))
        while True:
            header, _ = consumed(stream.next())
            if header.HasField("acknowledged"):
                break
        stream.cancel()
        self.settle(queue)

    def hang(self, queue: str) -> None:
        """A consumer that holds rows when the end comes: they count as ready."""
        stream = open_consumer(self.wire, queue, 2)
        consumed(stream.next())
        self.sessions.append(stream)

    # -- staged sets ---------------------------------------------------------------------------------------

    def _staged_begin(self, tag: str) -> None:
        out, query = f"{tag}.out", f"{tag}-query"
        self.call("CreateDestination", name=out, partitions=3)
        self.epochs[query] = self.epoch()
        self.stage(f"{tag} batch write", out, 0, 0, 4, columns={"priority": [1, 9, 4, 4]})
        self.stage(f"{tag} batch write", out, 2, 0, 2, priority_plus_one=6)
        self.stage(f"{tag} query 0", out, 1, 0, 3, query=query)
        self.stage(
            f"{tag} query 0",
            f"{tag}.out2",
            0,
            0,
            2,
            query=query,
            columns=columns_for(2) | {"priority": [2, 2]},
        )
        self.commit([(f"{tag} query 0", 5)], f"query:{query}", 0, "")
        self.epochs[query] = self.epoch()
        self.stage(f"{tag} query 1 a", out, 0, 0, 2, query=query, batch=1)
        self.stage(f"{tag} query 1 b", out, 0, 0, 3, query=query, batch=1)
        self.stage(f"{tag} discarded", out, 0, 0, 9)
        self.call(
            "DiscardStaged", tokens=[base64.b64encode(bytes.fromhex(token_of(f"{tag} discarded"))).decode()]
        )
        self.stage(f"{tag} app", out, 2, 0, 2)
        self.commit([(f"{tag} app", 2)], f"app:{tag} job", 41, out)

    def _staged_go_on(self, tag: str) -> None:
        out, query = f"{tag}.out", f"{tag}-query"
        self.stage(f"{tag} batch write", out, 0, 4, 2)
        self.stage(f"{tag} query 1 a", out, 0, 2, 2, query=query, batch=1)
        # Set b lost: the commit names a alone, and ends the epoch.
        self.commit([(f"{tag} query 1 a", 4)], f"query:{query}", 1, "")
        stale = {
            "token": token_of(f"{tag} stale"),
            "epoch": self.epochs[query],
            "query_id": query,
            "batch_id": 2,
        }
        self.later(
            "send",
            "an epoch that is over",
            destination=out,
            partition=0,
            first_sequence=0,
            values=["stale"],
            staged=stale,
        )
        self.stage(f"{tag} app 42", out, 1, 0, 1)
        self.commit([(f"{tag} app 42", 1)], f"app:{tag} job", 42, out)
        for name, forget in (("kept", False), ("forgotten", True)):
            self.stage(f"{tag} write {name}", out, 1, 0, 2)
            self.commit([(f"{tag} write {name}", 2)], f"write:{tag} {name}", 0, out)
            if forget:
                self.call("ForgetMarker", owner=f"write:{tag} {name}", target=out)
        self.epochs[query] = self.epoch()
        sent = self.stage(
            f"{tag} query 2", out, 1, 0, 3, query=query, batch=2, columns={"priority": [0, 5, 9]}
        )
        self._asks_open_sets(tag, sent)

    def _asks_open_sets(self, tag: str, sent: Json) -> None:
        out = f"{tag}.out"
        self.later("send", "a staged batch again", **sent)
        more = sent | {"first_sequence": 3, "values": ["more"], "columns": {"priority": [8]}}
        self.later("send", "the set of the query goes on", **more)
        sets = (
            (f"{tag} query 2", f"query:{tag}-query", 2, 4),
            (f"{tag} batch write", f"write:{tag} late", 0, 8),
        )
        for name, owner, version, rows in sets:
            token = base64.b64encode(bytes.fromhex(token_of(name))).decode()
            request = {
                "tokens": [{"token": token, "rows": rows}],
                "rows": rows,
                "owner": owner,
                "version": version,
                "target": out,
            }
            short = request | {"tokens": [{"token": token, "rows": rows - 1}], "rows": rows - 1}
            self.later("call", "an open set, counted short", method="CommitStaged", request=short)
            self.later("call", "an open set is committed", method="CommitStaged", request=request)
        self.later("browse", "what the commits made visible", destination=out)
