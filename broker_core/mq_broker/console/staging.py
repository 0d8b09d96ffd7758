"""`mq staged` and `mq markers`: list and remove staged sets and commit markers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from datetime import UTC, datetime

from mq_broker.console.output import put
from mq_broker.console.tables import age, print_table, size
from mq_wire.errors import InvalidOption, InvalidRequest
from mq_wire.v1 import produce_pb2 as produce
from pyspark_mq import Connection

_TOKEN_BYTES = 16
#: Most tokens of one call.
_PAGE = 1000


def list_staged(options: argparse.Namespace) -> int:
    """Prints one line per staged set. Its rows are durable and not committed."""
    heads = ("TOKEN", "QUERY", "BATCH", "EPOCH", "TARGET", "QUEUES", "ROWS", "SIZE", "IDLE")
    with Connection(options.broker) as connection:
        sets = list(_staged(connection, options.query))
    print_table(
        heads,
        [
            (
                one.token.hex(),
                one.query_id or "-",
                str(one.batch_id) if one.query_id else "-",
                str(one.epoch),
                one.target if one.HasField("target") else "-",
                ",".join(one.destinations),
                one.rows,
                size(one.bytes),
                age(one.age_ms),
            )
            for one in sets
        ],
    )
    return 0


def discard_staged(options: argparse.Namespace) -> int:
    """Discards staged sets by token, or all sets of one query."""
    if bool(options.tokens) == bool(options.query):
        raise InvalidOption(
            "give the tokens of the sets as `mq staged list` shows them, or --query for all of one query"
        )
    tokens = [_token(text) for text in options.tokens]
    with Connection(options.broker) as connection:
        known = [one.token for one in _staged(connection, options.query)]
        if unknown := set(tokens).difference(known):
            raise InvalidRequest(
                f"there is no staged set {min(unknown).hex()}: `mq staged list` shows them; "
                "nothing was discarded"
            )
        tokens = tokens or known
        rows = 0
        for first in range(0, len(tokens), _PAGE):
            request = produce.DiscardStagedRequest(tokens=tokens[first : first + _PAGE])
            rows += connection.call("DiscardStaged", request).rows
    put(f"discarded {rows:,} rows of {len(tokens):,} staged sets")
    return 0


def list_markers(options: argparse.Namespace) -> int:
    """Prints one line per marker: an owner and the last version that it committed."""
    heads = ("OWNER", "TARGET", "VERSION", "ROWS", "QUERY", "COMMITTED")
    with Connection(options.broker) as connection:
        markers = list(_markers(connection, options.prefix))
    print_table(
        heads,
        [
            (
                one.owner,
                one.target or "-",
                str(one.version),
                one.rows,
                one.query_id or "-",
                _time(one.time_us),
            )
            for one in markers
        ],
    )
    return 0


def forget_marker(options: argparse.Namespace) -> int:
    """Forgets one marker: versions that its owner writes again count as new."""
    with Connection(options.broker) as connection:
        found = [one for one in _markers(connection, options.owner) if one.owner == options.owner]
        if options.target is not None:
            found = [one for one in found if one.target == options.target]
        if len(found) != 1:
            targets = ", ".join(repr(one.target) for one in found)
            which = (
                f"{len(found)} targets ({targets}): say which with --target"
                if found
                else "no marker: `mq markers list` shows them"
            )
            raise InvalidRequest(f"owner {options.owner!r} has {which}")
        connection.call(
            "ForgetMarker", produce.ForgetMarkerRequest(owner=options.owner, target=found[0].target)
        )
    put(
        f"forgot {options.owner} of {found[0].target or '(no target)'}, "
        f"which was at version {found[0].version}"
    )
    return 0


def _staged(connection: Connection, query: str) -> Iterator[produce.StagedInfo]:
    request = produce.ListStagedRequest(query_id=query)
    while True:
        page = connection.call("ListStaged", request, retry_timeout=None)
        yield from page.sets
        if not page.more or not page.sets:
            return
        request.after = page.sets[-1].token


def _markers(connection: Connection, prefix: str) -> Iterator[produce.MarkerInfo]:
    request = produce.ListMarkersRequest(prefix=prefix)
    while True:
        page = connection.call("ListMarkers", request, retry_timeout=None)
        yield from page.markers
        if not page.more or not page.markers:
            return
        request.after_owner, request.after_target = page.markers[-1].owner, page.markers[-1].target


def _token(text: str) -> bytes:
    try:
        token = bytes.fromhex(text)
    except ValueError:
        token = b""
    if len(token) != _TOKEN_BYTES:
        raise InvalidOption(
            f"{text!r} is no token: give {2 * _TOKEN_BYTES} hexadecimal digits as `mq staged list` shows them"
        )
    return token


def _time(time_us: int) -> str:
    return (
        datetime.fromtimestamp(time_us // 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%SZ") if time_us else "-"
    )
