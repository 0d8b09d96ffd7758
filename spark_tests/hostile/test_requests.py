"""Requests that would kill, fill or stall a broker that trusts them: each is refused by its name, before it
costs anything.

What is hostile inside of record batches stands in `test_hostile_records`, what is hostile about connections
in `test_connections`.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from mq_broker.core.commands import Settings
from mq_broker.memory import anonymous_bytes
from mq_broker.rpc import server
from mq_wire import framing
from mq_wire.limits import ID_BYTES_MAX, PARTITIONS_MAX, REQUEST_BYTES_MAX, RPC_BYTES_MAX
from mq_wire.v1 import admin_pb2, common_pb2, consume_pb2, produce_pb2, subscribe_pb2
from spark_tests.hostile.boundary import Boundary
from spark_tests.hostile.mutation import message_of, varint
from spark_tests.hostile.traffic import QUEUE, Traffic, publish, rows

#: What one refused request may take, in memory and in time.
_REFUSAL_BYTES_MAX: Final = 64 << 20
_REFUSAL_S_MAX: Final = 1.0
_HUGE: Final = 2**64 - 1


@pytest.fixture(scope="module")
def traffic() -> Iterator[Traffic]:
    failures: list[BaseException] = []
    boundary = Boundary(failures.append)
    yield Traffic(boundary)
    boundary.close()
    assert not failures


def who(traffic: Traffic, **other: Any) -> subscribe_pb2.ConsumerRef:
    """The query that the traffic holds."""
    known = subscribe_pb2.OpenRangeRequest.FromString(traffic.corpus["OpenRange"][0][0]).who
    known.MergeFrom(subscribe_pb2.ConsumerRef(**other))
    return known


def header(**fields: Any) -> bytes:
    """A publish of three good rows under this header."""
    return publish(rows(3).select(["value"]), **{"producer_id": "f" * 32, **fields})


def consume(*requests: consume_pb2.ConsumeRequest) -> tuple[bytes, ...]:
    opened = consume_pb2.OpenConsumer(destination=QUEUE, create=True)
    return tuple(
        message.SerializeToString() for message in (consume_pb2.ConsumeRequest(open=opened), *requests)
    )


def acknowledge(*partitions: tuple[int, bytes]) -> tuple[bytes, ...]:
    entries = [{"partition": number, "ranges": ranges} for number, ranges in partitions]
    return consume(consume_pb2.ConsumeRequest(acknowledge={"request_id": 1, "partitions": entries}))


def pairs(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}q", *numbers)


def fetch(traffic: Traffic, **fields: Any) -> bytes:
    opened = subscribe_pb2.OpenFetch(**{"who": who(traffic), **fields})
    return subscribe_pb2.FetchRequest(open=opened, credit_rows=_HUGE, credit_bytes=_HUGE).SerializeToString()


def many_positions(count: int) -> common_pb2.Positions:
    return common_pb2.Positions(next=dict.fromkeys(range(count), 1))


def repeated(number: int, message: bytes, size: int) -> bytes:
    """A message that repeats one field until it has `size` bytes."""
    field = varint(number << 3 | 2) + varint(len(message)) + message
    return field * (size // len(field))


Case = tuple[str, Callable[[Traffic], "bytes | tuple[bytes, ...]"], str]
_REFUSED: Final[list[Case]] = [
    # Sizes.
    ("Plan", lambda t: bytes(REQUEST_BYTES_MAX + 1), "LIMIT_EXCEEDED"),
    ("Stats", lambda t: bytes(RPC_BYTES_MAX), "LIMIT_EXCEEDED"),
    ("CommitStaged", lambda t: repeated(1, b"", RPC_BYTES_MAX), "LIMIT_EXCEEDED"),
    ("DiscardStaged", lambda t: repeated(1, b"x" * 600, 1 << 20), "LIMIT_EXCEEDED"),
    (
        "Consume",
        lambda t: (*consume()[:1], b"\x1a" + varint(4 << 20) + repeated(2, b"", 4 << 20)),
        "LIMIT_EXCEEDED",
    ),
    ("Send", lambda t: b"\x18\x01" * (2 << 20), "INVALID_REQUEST"),
    ("Send", lambda t: header(producer_id="\u20ac" * 200), "INVALID_REQUEST"),
    ("Send", lambda t: header(staged={"token": bytes(16), "query_id": "q" * (1 << 20)}), "LIMIT_EXCEEDED"),
    ("Publish", lambda t: header(staged={"token": bytes(16), "run_id": "r" * 4000}), "LIMIT_EXCEEDED"),
    ("Fetch", lambda t: fetch(t, query_id="q" * (ID_BYTES_MAX + 1)), "LIMIT_EXCEEDED"),
    (
        "ForgetMarker",
        lambda t: produce_pb2.ForgetMarkerRequest(owner="o" * (ID_BYTES_MAX + 1)).SerializeToString(),
        "LIMIT_EXCEEDED",
    ),
    (
        "CommitStaged",
        lambda t: produce_pb2.CommitStagedRequest(owner="o" * 513, target="\u20ac" * 9).SerializeToString(),
        "LIMIT_EXCEEDED",
    ),
    (
        "Hello",
        lambda t: admin_pb2.HelloRequest(client="c" * 1000, protocol=1).SerializeToString(),
        "LIMIT_EXCEEDED",
    ),
    (
        "Plan",
        lambda t: subscribe_pb2.PlanRequest(start=many_positions(PARTITIONS_MAX + 1)).SerializeToString(),
        "LIMIT_EXCEEDED",
    ),
    (
        "OpenRange",
        lambda t: subscribe_pb2.OpenRangeRequest(end=many_positions(60_000)).SerializeToString(),
        "LIMIT_EXCEEDED",
    ),
    (
        "AcknowledgeRange",
        lambda t: subscribe_pb2.AcknowledgeRangeRequest(end=many_positions(10**6)).SerializeToString(),
        "LIMIT_EXCEEDED",
    ),
    # Bytes that are no request.
    ("Plan", lambda t: b"\xff" * 100, "INVALID_REQUEST"),
    ("Stats", lambda t: b"\x0a\x02\xff\xfe", "INVALID_REQUEST"),
    ("TakeEpoch", lambda t: b"\x0b" * 10_000, "INVALID_REQUEST"),
    ("Send", lambda t: framing.join(b"\xff\xff\xff"), "INVALID_REQUEST"),
    ("HoldRun", lambda t: b"\x08", "INVALID_REQUEST"),
    ("Fetch", lambda t: b"\x0a\x7f", "INVALID_REQUEST"),
    ("Hello", lambda t: (), "INVALID_REQUEST"),
    ("HoldRun", lambda t: (), "INVALID_REQUEST"),
    # Names.
    (
        "CreateDestination",
        lambda t: admin_pb2.CreateDestinationRequest(name="a" * 256).SerializeToString(),
        "INVALID_NAME",
    ),
    (
        "CreateDestination",
        lambda t: admin_pb2.CreateDestinationRequest(name="../../etc").SerializeToString(),
        "INVALID_NAME",
    ),
    (
        "CreateDestination",
        lambda t: admin_pb2.CreateDestinationRequest(name="orders.*").SerializeToString(),
        "INVALID_NAME",
    ),
    (
        "CreateDestination",
        lambda t: admin_pb2.CreateDestinationRequest(name="\u20ac" * 300_000).SerializeToString(),
        "INVALID_NAME",
    ),
    (
        "OpenProducer",
        lambda t: produce_pb2.OpenProducerRequest(name="a\x00b").SerializeToString(),
        "INVALID_NAME",
    ),
    ("OpenProducer", lambda t: produce_pb2.OpenProducerRequest(name="").SerializeToString(), "INVALID_NAME"),
    (
        "Plan",
        lambda t: subscribe_pb2.PlanRequest(who=who(t, consumer="a/../b")).SerializeToString(),
        "INVALID_NAME",
    ),
    # Counts.
    (
        "CreateDestination",
        lambda t: admin_pb2.CreateDestinationRequest(name="x", partitions=1025).SerializeToString(),
        "LIMIT_EXCEEDED",
    ),
    (
        "CreateDestination",
        lambda t: admin_pb2.CreateDestinationRequest(name="x", partitions=1 << 31).SerializeToString(),
        "LIMIT_EXCEEDED",
    ),
    ("Send", lambda t: header(partition=2**32 - 1), "INVALID_REQUEST"),
    ("Send", lambda t: header(rows=0), "LIMIT_EXCEEDED"),
    ("Send", lambda t: header(rows=2**32 - 1), "LIMIT_EXCEEDED"),
    ("Send", lambda t: header(first_sequence=2**63 - 1), "INVALID_REQUEST"),
    ("Send", lambda t: header(first_sequence=_HUGE), "INVALID_REQUEST"),
    ("Send", lambda t: header(columns=_HUGE), "UNSUPPORTED"),
    ("Send", lambda t: header(columns=0), "INVALID_RECORDS"),
    ("Send", lambda t: header(priority_plus_one=2**32 - 1), "INVALID_RECORDS"),
    ("Send", lambda t: header(schema_id=1), "UNSUPPORTED"),
    ("Send", lambda t: header(has_crc32=True, crc32=1), "INVALID_RECORDS"),
    ("Send", lambda t: header(skip=True), "INVALID_REQUEST"),
    ("Send", lambda t: header(staged={"token": b"short", "epoch": 1}), "INVALID_REQUEST"),
    ("Send", lambda t: header(staged={"token": bytes(4096)}), "LIMIT_EXCEEDED"),
    ("Send", lambda t: header(staged={}), "INVALID_REQUEST"),
    (
        "CommitStaged",
        lambda t: produce_pb2.CommitStagedRequest(rows=_HUGE).SerializeToString(),
        "INVALID_REQUEST",
    ),
    ("HoldRun", lambda t: subscribe_pb2.HoldRunRequest(run=_HUGE).SerializeToString(), "INVALID_REQUEST"),
    (
        "Plan",
        lambda t: subscribe_pb2.PlanRequest(who=who(t, run=_HUGE)).SerializeToString(),
        "INVALID_REQUEST",
    ),
    ("Fetch", lambda t: fetch(t, last=_HUGE), "OFFSETS_UNKNOWN"),
    ("Fetch", lambda t: fetch(t, partition=2**32 - 1), "UNKNOWN_DESTINATION"),
    # Forged identities.
    ("Send", lambda t: header(cluster_id=b"\x00" * 16), "WRONG_BROKER"),
    ("Send", lambda t: header(producer_id="name/nobody", epoch=1), "UNKNOWN_PRODUCER"),
    ("Send", lambda t: header(producer_id="name/billing", epoch=2**32 - 1), "UNKNOWN_PRODUCER"),
    ("Send", lambda t: header(epoch=7), "INVALID_REQUEST"),
    (
        "Plan",
        lambda t: subscribe_pb2.PlanRequest(who=who(t, cluster_id=b"\x01" * 400)).SerializeToString(),
        "WRONG_BROKER",
    ),
    (
        "Plan",
        lambda t: subscribe_pb2.PlanRequest(who=who(t, destination_id=bytes(16))).SerializeToString(),
        "DESTINATION_RECREATED",
    ),
    (
        "OpenRange",
        lambda t: subscribe_pb2.OpenRangeRequest(who=who(t, incarnation=bytes(16))).SerializeToString(),
        "OFFSETS_UNKNOWN",
    ),
    ("Fetch", lambda t: fetch(t, browse=b"x" * 16), "DATA_LOST"),
    # Acknowledgements.
    ("Consume", lambda t: acknowledge((0, b"123")), "INVALID_REQUEST"),
    ("Consume", lambda t: acknowledge((0, b"")), "INVALID_REQUEST"),
    ("Consume", lambda t: acknowledge((0, pairs(5, 3))), "INVALID_REQUEST"),
    ("Consume", lambda t: acknowledge((0, pairs(-5, 3))), "INVALID_REQUEST"),
    ("Consume", lambda t: acknowledge((0, pairs(-(2**63), 2**63 - 1))), "INVALID_REQUEST"),
    ("Consume", lambda t: acknowledge((0, pairs(0, 2**63 - 1))), "NOT_ASSIGNED"),
    ("Consume", lambda t: acknowledge((0, pairs(0, 2, 1, 3))), "INVALID_REQUEST"),
    ("Consume", lambda t: acknowledge((0, pairs(0, 1))), "NOT_ASSIGNED"),
    ("Consume", lambda t: acknowledge((2**32 - 1, pairs(0, 1))), "NOT_ASSIGNED"),
    ("Consume", lambda t: acknowledge((0, pairs(0, 1)), (0, pairs(1, 2))), "INVALID_REQUEST"),
    ("Consume", lambda t: acknowledge(*[(0, pairs(0, 1))] * 300_000), "LIMIT_EXCEEDED"),
    ("Consume", lambda t: acknowledge((0, pairs(*range(500_000)))), "NOT_ASSIGNED"),
    (
        "Consume",
        lambda t: consume(consume_pb2.ConsumeRequest(open={"destination": QUEUE})),
        "INVALID_REQUEST",
    ),
    (
        "Consume",
        lambda t: consume_pb2.ConsumeRequest(credit={"rows": 1}).SerializeToString(),
        "INVALID_REQUEST",
    ),
    ("Fetch", lambda t: subscribe_pb2.FetchRequest(credit_rows=1).SerializeToString(), "INVALID_REQUEST"),
    (
        "OpenRange",
        lambda t: subscribe_pb2.OpenRangeRequest(who=who(t), end=many_positions(3)).SerializeToString(),
        "OFFSETS_UNKNOWN",
    ),
]


@pytest.mark.parametrize(
    ("method", "make", "code"), _REFUSED, ids=[f"{n}-{case[0]}" for n, case in enumerate(_REFUSED)]
)
def test_it_is_refused_before_it_costs_anything(
    traffic: Traffic, method: str, make: Callable[[Traffic], Any], code: str
) -> None:
    made = make(traffic)
    messages = made if isinstance(made, tuple) else (made,)
    before, began = anonymous_bytes(), time.process_time()
    answers = list(traffic.boundary.feed(method, *messages))
    assert time.process_time() - began < _REFUSAL_S_MAX
    assert anonymous_bytes() - before < _REFUSAL_BYTES_MAX
    assert answers[-1][0] == code, answers[-1]
    assert 0 < len(answers[-1][1].encode()) <= 2000


#: What looks dangerous and is allowed: the broker takes it as "as much as there is".
_HARMLESS: Final[list[tuple[str, Callable[[Traffic], Any]]]] = [
    (
        "Consume",
        lambda t: consume(*[consume_pb2.ConsumeRequest(credit={"rows": _HUGE, "bytes": _HUGE})] * 300),
    ),
    (
        "Fetch",
        lambda t: fetch(t, first=0, last=1, columns=_HUGE, batch_rows_max=2**32 - 1, batch_id=-(2**63)),
    ),
    (
        "Plan",
        lambda t: subscribe_pb2.PlanRequest(
            who=who(t), max_rows=_HUGE, max_bytes=_HUGE, min_rows=_HUGE, wait_ms=0
        ).SerializeToString(),
    ),
    (
        "Hello",
        lambda t: admin_pb2.HelloRequest(protocol=2**32 - 1, features=["x"] * 1000).SerializeToString(),
    ),
    ("Stats", lambda t: message_of([(100, 2, b"unknown" * 1000), (2**29 - 1, 0, _HUGE)])),
]


@pytest.mark.parametrize(("method", "make"), _HARMLESS, ids=[case[0] for case in _HARMLESS])
def test_it_is_taken_and_does_no_harm(traffic: Traffic, method: str, make: Callable[[Traffic], Any]) -> None:
    made = make(traffic)
    answers = list(traffic.boundary.feed(method, *(made if isinstance(made, tuple) else (made,))))
    assert answers
    assert not any(code for code, _, _ in answers), answers


def test_what_is_remembered_for_ever_has_bounds() -> None:
    failures: list[BaseException] = []
    boundary = Boundary(
        failures.append, Settings(partitions_total_max=10, named_producers_max=2, browses_max=2)
    )

    def code(method: str, request: Any) -> str:
        return next(boundary.feed(method, request.SerializeToString()))[0]

    assert code("CreateDestination", admin_pb2.CreateDestinationRequest(name="a", partitions=6)) == ""
    assert (
        code("CreateDestination", admin_pb2.CreateDestinationRequest(name="b", partitions=5))
        == "LIMIT_EXCEEDED"
    )
    assert code("CreateDestination", admin_pb2.CreateDestinationRequest(name="b", partitions=4)) == ""
    assert code("DeleteDestination", admin_pb2.DeleteDestinationRequest(name="a")) == ""
    assert code("CreateDestination", admin_pb2.CreateDestinationRequest(name="a", partitions=6)) == ""
    names = [code("OpenProducer", produce_pb2.OpenProducerRequest(name=name)) for name in "abac"]
    assert names == ["", "", "", "LIMIT_EXCEEDED"]
    assert [code("OpenBrowse", subscribe_pb2.OpenBrowseRequest(destination="a")) for _ in range(3)] == [
        "",
        "",
        "BUSY",
    ]
    boundary.close()
    assert not failures


def test_a_list_of_thousands_keeps_nobody_waiting() -> None:
    """It is gathered in pages, between which others have their turn."""
    boundary = Boundary(lambda error: None, Settings(default_partitions=1))
    for number in range(1200):
        create = admin_pb2.CreateDestinationRequest(name=f"{'a' if number % 2 else 'b'}.{number}")
        assert not next(boundary.feed("CreateDestination", create.SerializeToString()))[0]
    handle, pages = boundary.broker.handle, list[int]()

    def counted(request: Any, now_us: int, monotonic_us: int | None = None) -> Any:
        reply = handle(request, now_us, monotonic_us)
        if isinstance(reply, admin_pb2.ListDestinationsResponse):
            pages.append(len(reply.destinations))
        return reply

    boundary.broker.handle = counted  # type: ignore[method-assign]
    listed = next(
        boundary.feed("ListDestinations", admin_pb2.ListDestinationsRequest(prefix="a.").SerializeToString())
    )[2]
    assert [destination.name for destination in listed.destinations] == sorted(
        f"a.{number}" for number in range(1, 1200, 2)
    )
    assert sum(pages) == 600
    assert max(pages) <= 250
    boundary.close()


def test_large_answers_that_nobody_reads_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_LARGE_ANSWER_BYTES", 100)
    monkeypatch.setattr(server, "_LARGE_ANSWERS_BYTES_MAX", 3000)
    boundary = Boundary(lambda error: None, Settings(default_partitions=1))
    for number in range(20):
        next(
            boundary.feed(
                "CreateDestination", admin_pb2.CreateDestinationRequest(name=f"q{number}").SerializeToString()
            )
        )
    # A call that was answered, and whose client is still there, has not read its answer.
    calls = [boundary.feed("ListDestinations", b"") for _ in range(6)]
    codes = [next(call)[0] for call in calls]
    assert codes[0] == ""
    assert codes[-1] == "BUSY"
    assert next(boundary.feed("Stats", b""))[0] == ""
    for call in calls:
        call.close()
    assert next(boundary.feed("ListDestinations", b""))[0] == ""
    boundary.close()
