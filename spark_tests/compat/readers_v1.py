"""Durable consumers of version 0.1.0, with plans in every state, and those who took over from them."""

from __future__ import annotations

from mq_wire.v1.subscribe_pb2 import ReleaseConsumerRequest
from spark_tests.compat.work_v1 import Reader, Work, token_of
from spark_tests.support.waiting import wait_until


class Readers(Work):
    """The part of the work that Spark queries do."""

    def readers_begin(self, tag: str) -> None:
        for queue in ("night", "plain", "tried", "heir", "freed", "sunk"):
            self.call("CreateDestination", name=f"{tag}.{queue}", partitions=2)
            self.fill(f"{tag}.{queue}", 0, 12, "for queries")
            self.fill(f"{tag}.{queue}", 1, 12, "for queries")
        nightly = self.readers[f"{tag}.night"] = Reader(self, f"{tag}.night", f"{tag}-nightly")
        nightly.plan(3)
        nightly.read(query=f"{tag}-night", batch=0)
        nightly.plan(4)  # acknowledges the first one, which is kept
        nightly.read(query=f"{tag}-night", batch=1)
        nightly.restart()
        nightly.read(query=f"{tag}-night", batch=1)  # a failed attempt
        plain = self.readers[f"{tag}.plain"] = Reader(self, f"{tag}.plain")
        plain.plan(5)
        plain.read()
        tried = self.readers[f"{tag}.tried"] = Reader(self, f"{tag}.tried", f"{tag}-tried")
        tried.plan(5)
        tried.read(query=f"{tag}-tried", batch=0)
        tried.restart()
        tried.read(query=f"{tag}-tried", batch=0)
        heir = self.readers[f"{tag}.heir"] = Reader(self, f"{tag}.heir", f"{tag}-heir")
        heir.plan(4)
        heir.read(query=f"{tag}-heir", batch=3)
        freed = self.readers[f"{tag}.freed"] = Reader(self, f"{tag}.freed", f"{tag}-freed")
        freed.plan(6)
        freed.read(query=f"{tag}-freed", batch=7)
        sunk = self.readers[f"{tag}.sunk"] = Reader(self, f"{tag}.sunk", f"{tag}-sunk")
        sunk.plan(5)
        sunk.read(query=f"{tag}-sunk", batch=2)
        self.epochs[f"{tag}-heir"] = self.epoch()
        self.stage(f"{tag}-heir set", f"{tag}.heir-out", 0, 0, 2, query=f"{tag}-heir", batch=3)

    def readers_go_on(self, tag: str) -> None:
        nightly, plain = self.readers[f"{tag}.night"], self.readers[f"{tag}.plain"]
        nightly.plan(2)  # acknowledges the second one; the third stays unread
        nightly.asks(1, 2, "acknowledged last, and kept")
        nightly.asks(0, 1, "no longer kept")
        nightly.asks(2, 3, "planned, and not read before")
        plain.acknowledge(1)
        plain.plan(3)
        run, plain.run = plain.run, self.new_run()
        run.close()
        wait_until(lambda: self.wire.stats(f"{tag}.plain").assigned_rows == 0, 20)
        plain.boundaries.pop()
        plain.plan(4)  # what nobody read is cut anew under fresh numbers; those of the first cut hold nothing
        plain.read()
        plain.asks(0, 1, "acknowledged by a call, and kept")
        plain.asks(1, 2, "read by an older run, a failed attempt; the first numbers hold nothing")
        tried = self.readers[f"{tag}.tried"]
        tried.restart()
        tried.read(query=f"{tag}-tried", batch=0)
        tried.asks(0, 1, "two failed attempts, and now a third")
        self._successors(tag)
        for reader in (nightly, plain):
            beyond = {"0": 999}
            self.later("range", "never given", who=dict(reader.who), start=reader.boundaries[-1], end=beyond)
            self.later(
                "plan", "what comes next", who=dict(reader.who), start=reader.boundaries[-2], max_rows=3
            )

    def _successors(self, tag: str) -> None:
        heir, freed, sunk = (self.readers[f"{tag}.{name}"] for name in ("heir", "freed", "sunk"))
        successor = self.readers[f"{tag}.successor"] = Reader(self, f"{tag}.heir", f"{tag}-heir")
        successor.plan(7)
        successor.read(query=f"{tag}-successor", batch=0)
        successor.asks(0, 1, "what the heir holds")
        heir.asks(0, 1, "taken over")
        self.wire.call(
            "ReleaseConsumer", ReleaseConsumerRequest(destination=f"{tag}.freed", consumer=f"{tag}-freed")
        )
        freed.asks(0, 1, "released")
        self.epochs[f"{tag}-sunk"] = self.epoch()
        self.stage(f"{tag}-sunk set", f"{tag}.sunk-out", 0, 0, 3, query=f"{tag}-sunk", batch=2)
        self.commit([(f"{tag}-sunk set", 3)], f"query:{tag}-sunk", 2, f"{tag}.sunk-out")
        again = self.readers[f"{tag}.sunk again"] = Reader(self, f"{tag}.sunk", f"{tag}-sunk")
        again.plan(2)
        again.asks(0, 1, "planned by the successor of one whose batch the sink had committed")
        sunk.asks(0, 1, "taken over")
        for query, batch in ((f"{tag}-heir", 3), (f"{tag}-freed", 7)):
            staged = {
                "token": token_of(f"late {query}"),
                "epoch": 10**6,
                "query_id": query,
                "batch_id": batch,
            }
            self.later("send", "output of a batch whose rows went to "
                               "others", destination=f"{tag}.heir-out", partition=0, first_sequence=0,
                       values=["late"], staged=staged)  # fmt: skip
            request = {"owner": f"query:{query}", "version": batch, "target": f"{tag}.heir-out"}
            self.later("call", "and its commit", method="CommitStaged", request=request)
