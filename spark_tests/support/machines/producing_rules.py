"""Random commands of producers and of sinks."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from mq_wire.v1 import produce_pb2 as produce
from spark_tests.model import staging as staging
from spark_tests.support.machines.both_sides import (
    UNNAMED,
    BothSides,
    destinations,
    jumps,
    newer_epochs,
    partitions,
    pick,
    priorities,
    queries,
    targets,
    versions,
)
from spark_tests.support.worlds import commands


class ProducingRules(BothSides):
    """Batches in order and out of it, and staged sets."""

    @rule(
        name=destinations, partition=partitions, who=pick, wanted=priorities, keys=st.booleans(), jump=jumps
    )
    def publish(self, name: str, partition: int, who: int, wanted: list[int], keys: bool, jump: int) -> None:
        known = [*((producer, 0) for producer in UNNAMED), *self.names]
        producer = known[who % len(known)]
        there = self.model.destinations.get(name)
        mark = there.partitions[partition].mark(producer[0]) if there is not None else None
        first = (mark.next if mark is not None and mark.epoch == producer[1] else 0) + jump
        rows = self.fresh_rows(wanted)
        self.sent.append((name, partition, producer, first, rows, keys))
        self._publish(len(self.sent) - 1)

    @precondition(lambda self: self.sent)
    @rule(which=pick)
    def publish_again(self, which: int) -> None:
        self._publish(-1 - which % min(len(self.sent), 8))

    @rule(name=destinations, batches=st.lists(st.tuples(partitions, priorities), min_size=1, max_size=4))
    def load(self, name: str, batches: list[tuple[int, list[int]]]) -> None:
        for partition, wanted in batches:
            self.publish(name, partition, 0, wanted, keys=False, jump=0)

    @precondition(lambda self: self.sent)
    @rule(which=pick, shift=st.integers(0, 2), wanted=priorities, count=st.integers(1, 4), skip=st.booleans())
    def publish_oddly(self, which: int, shift: int, wanted: list[int], count: int, skip: bool) -> None:
        if skip:
            self.skip(which, shift, count)
            return
        name, partition, producer, first, _, keys = self.sent[which % len(self.sent)]
        self.sent.append((name, partition, producer, first + shift, self.fresh_rows(wanted), keys))
        self._publish(len(self.sent) - 1)
        self.sent.pop()

    def _publish(self, which: int) -> None:
        name, partition, producer, first, rows, keys = self.sent[which]
        command = commands.publish(name, partition, producer, first, rows, keys)
        self.both(
            lambda: self.model.publish(name, partition, producer, first, rows, command.records_crc, self.now),
            command,
            lambda receipt: (receipt.base_offset, receipt.duplicates),
        )

    def skip(self, which: int, shift: int, count: int) -> None:
        name, partition, producer, first, rows, _ = self.sent[which % len(self.sent)]
        first += shift * len(rows)
        self.both(
            lambda: self.model.skip(name, partition, producer, first, count, self.now),
            commands.skip(name, partition, producer, first, count),
            lambda receipt: None,
        )

    @rule(name=st.sampled_from(["loader", "archive"]))
    def open_producer(self, name: str) -> None:
        producer = self.both(
            lambda: self.model.open_producer(name),
            produce.OpenProducerRequest(name=name),
            lambda reply: (reply.producer_id, reply.epoch),
        )
        self.names.append(producer)

    @rule(
        name=destinations,
        partition=partitions,
        query=queries,
        batch=versions,
        goal=targets,
        wanted=priorities,
        more=st.booleans(),
        newer=newer_epochs,
    )
    def stage(
        self,
        name: str,
        partition: int,
        query: str,
        batch: int,
        goal: str | None,
        wanted: list[int],
        more: bool,
        newer: int,
    ) -> None:
        rows = self.fresh_rows(wanted)
        if more and self.staged:
            _, token, writer, _, _ = self.staged[-1]
            held = self.model.staged.get(token)
            first = (
                sum(len(b.rows) for b in held.batches if (b.destination, b.partition) == (name, partition))
                if held is not None
                else 0
            )
        else:
            token = len(self.staged).to_bytes(16, "little")
            writer = (max(staging.lowest_epoch(self.model, query, goal) + newer - 1, 0), query, batch, goal)
            first = 0
        self.staged.append(((name, partition), token, writer, first, rows))
        self._stage(-1)

    @precondition(lambda self: self.staged)
    @rule(which=pick, shift=st.sampled_from([0, 0, 1, 5]), other=st.booleans())
    def stage_again(self, which: int, shift: int, other: bool) -> None:
        where, token, writer, first, rows = self.staged[-1 - which % min(len(self.staged), 4)]
        self.staged.append((where, token, writer, first + shift, self.fresh_rows([4]) if other else rows))
        self._stage(-1)
        self.staged.pop()

    def _stage(self, which: int) -> None:
        where, token, writer, first, rows = self.staged[which]
        held = produce.StagedSet(
            token=token, epoch=writer[0], query_id=writer[1], batch_id=writer[2], target=writer[3]
        )
        command = commands.publish(*where, ("", 0), first, rows, staged=held)
        self.both(
            lambda: staging.stage(
                self.model, where, token, writer, first, rows, command.records_crc, self.now
            ),
            command,
            lambda receipt: receipt.duplicates,
        )

    @rule(
        chosen=st.lists(pick, max_size=3),
        owner=st.sampled_from(["", "query:q0", "query:q1", "app:x", "app:x", "write:1"]),
        goal=st.sampled_from(["", "", "eu"]),
        version=versions,
        wrong=st.sampled_from([0, 0, 0, 0, 1]),
        keep=st.booleans(),
        query_id=queries,
    )
    def commit_staged(
        self, chosen: list[int], owner: str, goal: str, version: int, wrong: int, keep: bool, query_id: str
    ) -> None:
        recent = [token for _, token, _, _, _ in self.staged[-4:]]
        tokens = [recent[c % len(recent)] for c in chosen if recent]
        named = [
            (token, held.count if (held := self.model.staged.get(token)) is not None else 1)
            for token in tokens
        ]
        self._commit(named, owner, goal, version, wrong, keep, query_id)

    def _commit(
        self,
        named: list[tuple[bytes, int]],
        owner: str,
        goal: str,
        version: int,
        wrong: int,
        keep: bool,
        query_id: str = "",
    ) -> None:
        rows = sum(count for _, count in named) + wrong
        request = produce.CommitStagedRequest(
            tokens=[produce.StagedToken(token=token, rows=count) for token, count in named],
            owner=owner,
            target=goal,
            version=version,
            rows=rows,
            keep_mismatch=keep,
            query_id=query_id,
        )
        self.both(
            lambda: staging.commit(self.model, named, owner, goal, version, rows, self.now, keep, query_id),
            request,
            lambda reply: (reply.already_committed, reply.rows),
        )

    @rule(query=queries, goal=targets, latest=st.booleans())
    def take_epoch(self, query: str, goal: str | None, latest: bool) -> None:
        if latest and self.staged:
            query = self.staged[-1][2][1]
        request = produce.TakeEpochRequest(query_id=query, target=goal)
        self.both(lambda: staging.take_epoch(self.model, query, goal), request, lambda reply: reply.epoch)

    @rule(owner=st.sampled_from(["query:q0", "app:x", "write:1"]), goal=st.sampled_from(["", "eu"]))
    def forget_marker(self, owner: str, goal: str) -> None:
        def forget() -> None:
            self.model.markers.pop((owner, goal), None)

        self.both(forget, produce.ForgetMarkerRequest(owner=owner, target=goal), lambda reply: None)

    @precondition(lambda self: self.staged)
    @rule(which=pick)
    def discard_staged(self, which: int) -> None:
        token = self.staged[which % len(self.staged)][1]
        self.both(
            lambda: staging.discard(self.model, [token]),
            produce.DiscardStagedRequest(tokens=[token, token]),
            lambda r: r.rows,
        )
