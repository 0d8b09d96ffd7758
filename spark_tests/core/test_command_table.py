"""The table of commands is whole, and says what it must of each."""

from __future__ import annotations

import pytest

from mq_broker.core import commands
from mq_broker.core.command_table import COMMANDS, Permission, Room
from mq_wire.service import METHODS
from mq_wire.v1 import admin_pb2, produce_pb2, subscribe_pb2

#: Calls that the shell answers by itself, or turns into commands of their own.
_BY_THE_SHELL = {"Hello", "Publish", "Send", "Consume", "Fetch", "HoldRun", "WatchDestination"}


def test_every_unary_method_has_a_row() -> None:
    names = {request.__name__.removesuffix("Request") for request in COMMANDS}
    streams = {name for name, method in METHODS.items() if method.client_streaming or method.server_streaming}
    missing = METHODS.keys() - names - streams - _BY_THE_SHELL
    assert not missing, "add them to COMMANDS"


def test_rows_name_the_destination_of_their_requests() -> None:
    assert (
        COMMANDS[subscribe_pb2.PlanRequest].destination(
            subscribe_pb2.PlanRequest(who=subscribe_pb2.ConsumerRef(destination="q"))
        )
        == "q"
    )
    for request, row in COMMANDS.items():
        fields = getattr(request, "DESCRIPTOR", None)
        named = fields is not None and (
            "destination" in fields.fields_by_name or "who" in fields.fields_by_name
        )
        if named:
            assert row.destination is not COMMANDS[commands.Tick].destination, f"{request.__name__} names one"


@pytest.mark.parametrize("request_type", [admin_pb2.StatsRequest, produce_pb2.ListStagedRequest])
def test_who_only_looks_needs_no_room(request_type: type) -> None:
    assert COMMANDS[request_type].room_of(request_type()) is Room.NOTHING


def test_only_admins_delete() -> None:
    assert COMMANDS[admin_pb2.DeleteDestinationRequest].permission is Permission.ADMIN
