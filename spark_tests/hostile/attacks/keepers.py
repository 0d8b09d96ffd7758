"""What a broker remembers, grown by one client; and questions about all of it."""

from __future__ import annotations

import uuid
from typing import Any, Final

import grpc

from mq_wire.v1.admin_pb2 import CreateDestinationRequest, DeleteDestinationRequest, ListDestinationsRequest
from mq_wire.v1.produce_pb2 import CommitStagedRequest, OpenProducerRequest, TakeEpochRequest
from mq_wire.v1.subscribe_pb2 import ConsumerRef, HoldRunRequest, JoinQueryRequest, PlanRequest
from spark_tests.hostile.siege import Attack, Target, side_by_side
from spark_tests.support.wire import Wire, batch_of, error_code

_WORKERS: Final = 8


def refused(call: Any, method: str, request: Any) -> bool:
    """Calls; returns whether a bound was met, which is the only way to fail."""
    try:
        call(method, request)
    except grpc.RpcError as error:
        if error_code(error) not in ("LIMIT_EXCEEDED", "BUSY"):
            raise
        return True
    return False


def invented(target: Target, count: int, make: Any, method: str) -> None:
    """Calls with requests that `make` invents, from several sides at once."""
    wire, each = target.wire(), target.times(count) // _WORKERS + 1

    def work() -> None:
        for _ in range(each):
            refused(wire.call, method, make(uuid.uuid4().hex))

    side_by_side([work] * _WORKERS)


def owners(target: Target) -> None:
    """Commits of nothing, each by an owner of its own with a long name."""
    invented(
        target,
        3000,
        lambda name: CommitStagedRequest(owner=f"app:{name * 15}", target="", version=1, run_id=name * 15),
        "CommitStaged",
    )


def producers(target: Target) -> None:
    """Producers with names."""
    invented(target, 3000, lambda name: OpenProducerRequest(name=name * 7), "OpenProducer")


def epochs(target: Target) -> None:
    """Epochs of queries that nobody runs."""
    invented(target, 3000, lambda name: TakeEpochRequest(query_id=name * 15, target=name), "TakeEpoch")


def destinations(target: Target) -> None:
    """Queues of a thousand partitions that come and go."""
    wire = target.wire()
    for number in range(target.times(40)):
        wire.call("CreateDestination", CreateDestinationRequest(name=f"come.{number}", partitions=1000))
        wire.call("DeleteDestination", DeleteDestinationRequest(name=f"come.{number}"))


def stage(target: Target, queues: int, sets: int) -> None:
    """So many queues, and so many staged sets of one row."""
    with Wire(target.address) as wire:
        for number in range(queues):
            wire.call("CreateDestination", CreateDestinationRequest(name=f"staged.{number}", partitions=1))
        publisher = wire.publisher("staged.0")
        batch = batch_of([b"v"])
        for start in range(0, sets, 500):
            for number in range(start, start + 500):
                publisher.put(
                    batch,
                    first_sequence=0,
                    staged={"token": number.to_bytes(16, "big"), "query_id": "staging", "epoch": 1},
                )
            for _ in range(500):
                answer = publisher.answer()
                assert not answer.error.code, answer
        publisher.stream.end()


def staged_sets(target: Target) -> None:
    stage(target, 1, target.times(5000))


def listings(target: Target) -> None:
    """The list of all queues, asked for again and again, beside many staged sets."""
    wire = target.wire()
    for _ in range(target.times(20)):
        wire.call("ListDestinations", ListDestinationsRequest())


def run_of(target: Target) -> int:
    """A run that is held as long as the attack lasts."""
    stream = target.wire().hold(HoldRunRequest())
    target.held(_Cancelled(stream))
    run: int = next(stream).run
    return run


class _Cancelled:
    """Ends a call with the attack."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._call.cancel()


def waiting_plans(target: Target) -> None:
    """Plans that wait for rows of an empty queue of 1,024 partitions."""
    run, client = run_of(target), target.client()
    target.wire().call("CreateDestination", CreateDestinationRequest(name="broad", partitions=1024))
    for number in range(target.times(256)):
        who = ConsumerRef(destination="broad", consumer=f"waits-{number}", run=run)
        client.call(
            "Plan", PlanRequest(who=who, max_rows=10, max_bytes=1 << 20, wait_ms=60_000).SerializeToString()
        )


def rows_to_plan(target: Target) -> None:
    with Wire(target.address) as wire:
        publisher = wire.publisher("taken")
        assert publisher.send(batch_of([b"v"] * 1000)).receipt.rows == 1000
        publisher.stream.end()


def takeovers(target: Target) -> None:
    """One consumer, whose checkpoint is always a new one."""
    run, wire = run_of(target), target.wire()
    for _ in range(target.times(1000)):
        who = ConsumerRef(destination="taken", consumer="restless", run=run)
        refused(wire.call, "Plan", PlanRequest(who=who, max_rows=10, max_bytes=1 << 20))


def batches_of_a_plan(target: Target) -> None:
    """One reader that is in ever other batches, of ever other queries."""
    run, wire = run_of(target), target.wire()
    who = ConsumerRef(destination="taken", consumer="busy", run=run)
    plan = wire.call("Plan", PlanRequest(who=who, max_rows=10, max_bytes=1 << 20))
    who.cluster_id, who.destination_id, who.incarnation = (
        plan.cluster_id,
        plan.destination_id,
        plan.incarnation,
    )
    for number in range(target.times(1000)):
        query = f"q-{number if number % 2 else 0}"
        refused(
            wire.call,
            "JoinQuery",
            JoinQueryRequest(who=who, query_id=query, batch_id=number, spark_run_id=uuid.uuid4().hex),
        )


ATTACKS: Final = (
    Attack("commits by invented owners", owners, seconds=2),
    Attack("producers with invented names", producers, seconds=2),
    Attack("epochs of invented queries", epochs, seconds=2),
    Attack("queues that come and go", destinations, lawful=True, seconds=1),
    Attack("staged sets of one row", staged_sets, seconds=2),
    Attack(
        "lists of everything",
        listings,
        prepare=lambda target: stage(target, 300, 3000),
        lawful=True,
        seconds=1,
    ),
    Attack("plans that wait", waiting_plans, lawful=True, seconds=0.5),
    Attack("takeovers", takeovers, prepare=rows_to_plan, seconds=1),
    Attack("batches of one plan", batches_of_a_plan, prepare=rows_to_plan, seconds=1),
)
