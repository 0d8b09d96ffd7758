"""Lawful work that is long, asked for as often as one may: others have their turn in between, and little of
it is remembered.
"""

from __future__ import annotations

import contextlib
import pathlib
import random
import threading
import uuid
from concurrent import futures
from typing import Final

import grpc
import pytest

from mq_wire.v1.admin_pb2 import CreateDestinationRequest, ListDestinationsRequest
from mq_wire.v1.consume_pb2 import ConsumeRequest
from mq_wire.v1.produce_pb2 import DiscardStagedRequest
from mq_wire.v1.subscribe_pb2 import HoldRunRequest, OpenBrowseRequest, PlanRequest
from spark_tests.hostile.siege import Attack, Siege, Target, stop_during
from spark_tests.support.wire import Wire, batch_of, error_code

pytestmark = pytest.mark.slow

BATCH: Final = 50_000
ROWS: Final = 1_000_000
STAGED: Final = 5000


def fill(target: Target, queue: str, rows: int, priorities: int = 1) -> None:
    rng = random.Random(queue)
    with Wire(target.address) as wire:
        wire.call("CreateDestination", CreateDestinationRequest(name=queue, partitions=1))
        publisher = wire.publisher(queue)
        batch = batch_of([b"v"] * BATCH, priority=[rng.randrange(priorities) for _ in range(BATCH)])
        for _ in range(rows // BATCH):
            assert publisher.send(batch).receipt.rows == BATCH
        publisher.stream.end()


def consume_row_by_row(target: Target) -> None:
    """All credit there can be, one row a delivery: one consumer reads, one does not, and nothing is ever
    acknowledged.
    """
    credit = {"rows": 1 << 62, "bytes": 1 << 62}
    for _ in range(2):
        stream = target.wire().stream("Consume")
        stream.put(ConsumeRequest(open={"destination": "singles", "credit": credit, "batch_rows_max": 1}))
        stream.next()
    for _ in range(target.times(5000)):
        stream.next()


def browse_what_changes(target: Target) -> None:
    """A row more between any two views."""
    wire = target.wire()
    publisher = wire.publisher("mixed")
    errors = set()
    for _ in range(target.times(300)):
        publisher.send(batch_of([b"w"]))
        try:
            wire.call("OpenBrowse", OpenBrowseRequest(destination="mixed"))
        except grpc.RpcError as error:
            errors.add(error_code(error))
    publisher.stream.end()
    assert errors <= {"BUSY"}


def prepare_lists(target: Target) -> None:
    with Wire(target.address) as wire:
        for number in range(500):
            wire.call("CreateDestination", CreateDestinationRequest(name=f"listed.{number}"))
        for number in range(20):
            wire.call("CreateDestination", CreateDestinationRequest(name=f"wide.{number}", partitions=1024))
        publisher = wire.publisher("listed.0")
        batch = batch_of([b"s"])
        for number in range(STAGED):
            publisher.sequences.clear()
            token = number.to_bytes(16, "big")
            publisher.put(
                batch,
                producer_id="",
                staged={"token": token, "epoch": 1, "query_id": f"q{number % 7}", "target": ""},
            )
        for _ in range(STAGED):
            assert publisher.answer().receipt.rows == 1
        publisher.stream.end()


def ask_for_lists(target: Target) -> None:
    wires = [target.wire() for _ in range(4)]

    def ask(wire: Wire) -> None:
        for _ in range(target.times(5)):
            wire.call("ListDestinations", ListDestinationsRequest())
            wire.call(
                "DiscardStaged", DiscardStagedRequest(tokens=[uuid.uuid4().bytes for _ in range(50_000)])
            )

    with futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, wires))


def wait_for_plans(target: Target) -> None:
    """Hundreds of queries wait for more rows than there are, and each row that comes wakes them all."""
    wire = target.wire()
    wire.call("CreateDestination", CreateDestinationRequest(name="broad", partitions=1024))
    run = target.held(Held(wire)).run
    for number in range(200):
        who = {"destination": "broad", "consumer": f"c{number}", "run": run}
        threading.Thread(
            target=_plan, args=(wire, PlanRequest(who=who, min_rows=1 << 40, wait_ms=10_000)), daemon=True
        ).start()
    publisher = wire.publisher("broad")
    for number in range(target.times(300)):
        publisher.send(batch_of([b"w"]), partition=number % 1024)
    publisher.stream.end()


def _plan(wire: Wire, request: PlanRequest) -> None:
    with contextlib.suppress(grpc.RpcError, ValueError):  # the attack is over
        wire._stubs["Plan"](request, timeout=20)


class Held:
    """A run, as long as its block."""

    def __init__(self, wire: Wire) -> None:
        self._stream = wire.hold(HoldRunRequest())
        self.run: int = next(self._stream).run

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.cancel()


ATTACKS: Final = (
    Attack("row by row", consume_row_by_row, lambda target: fill(target, "singles", ROWS), lawful=True),
    Attack(
        "views of what changes",
        browse_what_changes,
        lambda target: fill(target, "mixed", ROWS, 10),
        lawful=True,
    ),
    Attack("lists", ask_for_lists, prepare_lists, lawful=True),
    Attack("waiting plans", wait_for_plans, lawful=True),
)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_others_have_their_turn(siege: Siege, attack: Attack) -> None:
    report = siege.endure(attack)
    report.check()


@pytest.mark.parametrize("attack", [ATTACKS[0], ATTACKS[3]], ids=lambda attack: attack.name)
def test_the_broker_can_be_told_to_stop_at_every_moment(
    attack: Attack, tmp_path: pathlib.Path, rng: random.Random
) -> None:
    stop_during(attack, tmp_path / "broker", rng)
