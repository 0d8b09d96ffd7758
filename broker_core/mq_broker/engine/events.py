"""Decisions that operators want to hear of, as lines of the log. They are told once they are on the disk."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from pyroaring import BitMap64

from mq_broker.core.handlers.quarantine import lost_message
from mq_broker.core.ledger import Notice
from mq_broker.log import say
from mq_wire.errors import MqError

#: Microseconds without a refusal after which a disk is no longer called full.
_QUIET_US: Final = 5_000_000


def tell(notices: list[Notice]) -> None:
    """Logs what happened in a turn."""
    for notice in notices:
        _TOLD[notice.kind](notice, getattr(notice.entry, notice.kind))


class RoomNews:
    """Logs that publishes are refused for want of room, and later that they are taken again.

    On a disk that is nearly full, large messages are refused while small ones are taken. So it is full from
    the first refusal until nothing was refused for some seconds.
    """

    def __init__(self) -> None:
        self._is_full = False
        self._refused_us = 0

    def refused(self, monotonic_us: int, free_bytes: Callable[[], int]) -> None:
        """A publish was refused."""
        self._refused_us = monotonic_us
        if self._is_full:
            return
        self._is_full = True
        message = (
            "the disk is full: what is published is refused until messages are acknowledged or the "
            "data directory gets more space"
        )
        say(logging.WARNING, "disk_full", message, free_bytes=free_bytes())

    def taken(self, monotonic_us: int, free_bytes: Callable[[], int]) -> None:
        """There is room for rows now."""
        if not self._is_full or monotonic_us < self._refused_us + _QUIET_US:
            return
        self._is_full = False
        message = "the disk has room again: messages are taken"
        say(logging.INFO, "disk_has_room", message, free_bytes=free_bytes())


def tell_lost(destination: str, partition: int, lost: BitMap64, error: MqError) -> None:
    """Logs which rows are lost, and where their bytes were."""
    message = f"{lost_message(destination, partition, lost)} ({error})"
    say(logging.ERROR, "rows_lost", message, queue=destination, partition=partition, rows=len(lost))


def _created(notice: Notice, what: Any) -> None:
    say(
        logging.INFO,
        notice.kind,
        f"queue {notice.destination!r} was created",
        queue=notice.destination,
        partitions=what.partitions,
    )


def _deleted(notice: Notice, what: Any) -> None:
    say(logging.INFO, notice.kind, f"queue {notice.destination!r} was deleted", queue=notice.destination)


def _minted(notice: Notice, what: Any) -> None:
    label = what.consumer or what.incarnation.hex()
    say(
        logging.INFO,
        notice.kind,
        f"consumer {label!r} of queue {notice.destination!r} begins",
        queue=notice.destination,
        consumer=what.consumer,
        incarnation=what.incarnation,
        run=what.run,
    )


def _ended(notice: Notice, what: Any) -> None:
    how = "was taken over by a newer checkpoint" if what.successor else "was released"
    say(
        logging.INFO,
        notice.kind,
        f"consumer {notice.consumer!r} of queue {notice.destination!r} {how}",
        queue=notice.destination,
        consumer=notice.consumer,
        incarnation=what.incarnation,
        returned_plans=len(what.returned),
        acknowledged_plans=len(what.acknowledged),
    )


def _forgotten(notice: Notice, what: Any) -> None:
    say(
        logging.INFO,
        notice.kind,
        f"the marker of {what.owner!r} was forgotten",
        owner=what.owner,
        target=what.target,
    )


_TOLD: Final[dict[str, Callable[[Notice, Any], None]]] = {
    "destination_created": _created,
    "destination_deleted": _deleted,
    "consumer_minted": _minted,
    "consumer_ended": _ended,
    "marker_forgotten": _forgotten,
}
