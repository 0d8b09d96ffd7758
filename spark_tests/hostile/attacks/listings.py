"""Questions of a few bytes whose answers are long, or look at much: asked by many, again and again."""

from __future__ import annotations

import contextlib
import functools
import uuid
from typing import Final

from mq_wire.v1.admin_pb2 import CreateDestinationRequest, DescribeDestinationRequest, ListDestinationsRequest
from mq_wire.v1.produce_pb2 import CommitStagedRequest, ListMarkersRequest
from mq_wire.v1.subscribe_pb2 import OpenBrowseRequest
from spark_tests.hostile.siege import Attack, Target, side_by_side
from spark_tests.support.wire import Wire

_CONNECTIONS: Final = 8
#: Calls of one connection that wait for their answers.
_WINDOW: Final = 120


def markers(target: Target) -> None:
    """Markers with long names, which are remembered for ever."""

    def some(count: int) -> None:
        with Wire(target.address) as wire:
            for _ in range(count):
                owner = f"app:{uuid.uuid4().hex}{'x' * 400}"
                wire.call("CommitStaged", CommitStagedRequest(owner=owner, version=1, run_id="r" * 400))

    side_by_side([functools.partial(some, target.times(1000))] * 4)


def broad(target: Target) -> None:
    """Queues of 1,024 partitions without a row."""
    with Wire(target.address) as wire:
        for number in range(8):
            request = CreateDestinationRequest(name=f"listed.{number}", partitions=1024)
            wire.call("CreateDestination", request)


def flood(target: Target, method: str, request: bytes) -> None:
    """So many calls at the same time, from several connections; those that are refused are made again."""

    def one() -> None:
        client = target.client(window=1 << 20)
        with contextlib.suppress(TimeoutError, ConnectionError):
            for _ in range(target.times(4)):
                begun = [client.call(method, request) for _ in range(_WINDOW)]
                client.wait(begun)

    side_by_side([one] * _CONNECTIONS)


ATTACKS: Final = tuple(
    Attack(
        name,
        functools.partial(flood, method=method, request=request.SerializeToString()),
        prepare=prepare,
        lawful=True,
        seconds=2,
    )
    for name, method, request, prepare in (
        ("lists of markers", "ListMarkers", ListMarkersRequest(after_owner="app:77"), markers),
        ("views of empty queues", "OpenBrowse", OpenBrowseRequest(destination="listed.0"), broad),
        ("lists of broad queues", "ListDestinations", ListDestinationsRequest(prefix="listed."), broad),
        (
            "a broad queue described",
            "DescribeDestination",
            DescribeDestinationRequest(name="listed.1"),
            broad,
        ),
    )
)
