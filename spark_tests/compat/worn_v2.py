"""Directories of version 0.2.0 that have been through something: a repair, rows that were kept for a query
that did not come back, and a beginning as a directory of version 0.1.0.
"""

from __future__ import annotations

import pathlib
from typing import Final

from mq_broker import LocalBroker
from mq_broker.repair.directory import repair_directory
from mq_wire.v1 import admin_pb2
from spark_tests.compat.brokers_v1 import SEGMENT_BYTES, as_seen, broker_on, manifests
from spark_tests.compat.kept import V1, unpack
from spark_tests.compat.life_v2 import LifeOfTwo
from spark_tests.compat.work_v1 import Reader, columns_for, token_of
from spark_tests.support.rotten import rot
from spark_tests.support.waiting import wait_until

_KEPT_S: Final = 2


def grown_from_format_1(data: pathlib.Path) -> LifeOfTwo:
    """A directory of version 0.1.0 in which version 0.2.0 went on: its snapshot has parts of both formats.
    Then SIGKILL.
    """
    unpack(V1 / "snapshot_and_journal.tar.xz", data)
    broker = broker_on(data, snapshot_s=1).start()
    before = manifests(data)
    life = LifeOfTwo(broker.address)
    life.begin("four")
    wait_until(lambda: manifests(data) != before, 20)
    broker.stop()
    again = broker_on(data, port=int(broker.address.rpartition(":")[2])).start()
    life.reach("one.orders")
    life.go_on("four")
    as_seen(life, again)
    again.kill()
    return life


def grown_and_stopped(data: pathlib.Path) -> LifeOfTwo:
    """The same for one that only had a snapshot, stopped after few changes: most parts are still as
    version 0.1.0 wrote them.
    """
    unpack(V1 / "clean_stop.tar.xz", data)
    broker = broker_on(data, snapshot_s=1).start()
    before = manifests(data)
    life = LifeOfTwo(broker.address)
    life.call("CreateDestination", name="five.few", partitions=2)
    life.fill("five.few", 1, 4, "few")
    wait_until(lambda: manifests(data) != before, 20)
    as_seen(life, broker)
    broker.stop()
    return life


def forgotten_in_the_journal(data: pathlib.Path) -> LifeOfTwo:
    """Rows that were kept for the checkpoint of a query that ended were let go; those of a query that runs
    were not. Then SIGKILL.
    """
    return _forget(data, snapshot_s=86_400)


def forgotten_in_the_snapshot(data: pathlib.Path) -> LifeOfTwo:
    """The same, and a clean stop."""
    return _forget(data, snapshot_s=1)


def _forget(data: pathlib.Path, snapshot_s: int) -> LifeOfTwo:
    broker = LocalBroker(
        data,
        segment_bytes=SEGMENT_BYTES,
        snapshot_interval_s=snapshot_s,
        default_partitions=2,
        kept_range_ttl_s=_KEPT_S,
    ).start()
    life = LifeOfTwo(broker.address)
    for name in ("ended", "back"):
        life.call("CreateDestination", name=name, partitions=2)
        life.fill(name, 0, 12, "for queries")
        life.fill(name, 1, 12, "for queries")
    ended, back = Reader(life, "ended", "ended-reader"), Reader(life, "back", "back-reader")
    for reader in (ended, back):
        for batch in range(3):
            reader.plan(3)
            reader.read(query=f"{reader.who['consumer']}-query", batch=batch)
        reader.acknowledge(3)
    back.plan(2)
    before = _turns(life)
    ended.run.close()
    wait_until(lambda: _turns(life) > before, 20)
    for reader in (ended, back):
        reader.asks(2, 3, "acknowledged last")
        reader.asks(0, 1, "acknowledged before it")
        life.later("plan", "what comes next", who=dict(reader.who), start=reader.boundaries[3], max_rows=3)
    as_seen(life, broker)
    if snapshot_s == 1:
        broker.stop()
    else:
        broker.kill()
    return life


def _turns(life: LifeOfTwo) -> int:
    return int(life.wire.call("Stats", admin_pb2.StatsRequest()).broker.turns)


def repaired(data: pathlib.Path) -> LifeOfTwo:
    """A frame of a queue and one of a staged set rotted, and `mq repair` took them out: what else was in the
    damaged file was moved, staged rows too. Then some more work, and SIGKILL.
    """
    broker = broker_on(data).start()
    life = LifeOfTwo(broker.address)
    life.call("CreateDestination", name="rotten", partitions=1)
    for batch in range(4):
        life.send(
            "rotten", 0, token_of("rotten"), 3 * batch,
            [f"rotten batch {batch} row {at}" for at in range(3)], columns=columns_for(3),
        )  # fmt: skip
    life.epochs["repaired"] = life.epoch()
    life.stage("whole set", "rotten", 0, 0, 4, query="repaired", columns={"priority": [1, 9, 4, 4]})
    life.stage("rotten set", "rotten", 0, 0, 2)
    life.fill("planned", 1, 9, "planned")
    reader = Reader(life, "planned", "repaired-reader")
    reader.plan(5)
    reader.read(query="repaired-reader-query")
    broker.kill()
    rot(data, b"rotten batch 1 row 2")
    rot(data, b"rotten set 0 1")
    report = repair_directory(data)
    assert report.lost_rows == 3, report.findings
    broker.start()
    life.reach("rotten")
    life.send("rotten", 0, token_of("rotten"), 12, ["after the repair"])
    life.stage("whole set", "rotten", 0, 4, 1, query="repaired")
    reader.asks(0, 1, "what was moved beside the damage")
    life.commit([("whole set", 5)], "query:repaired", 0, "")
    life.later("browse", "without the rotten rows", destination="rotten")
    as_seen(life, broker)
    broker.kill()
    return life
