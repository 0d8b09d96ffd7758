"""Rows whose bytes are damaged or gone: they leave the queue for good, are counted, and everything else goes
on being delivered.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyroaring import BitMap64

from mq_broker.core.commands import Quarantine
from mq_broker.core.ledger import Ledger
from mq_broker.core.model.destination import Destination
from mq_broker.core.model.log import FrameIndex
from mq_broker.core.model.selection import Selection, shown
from mq_wire.errors import DataLost


def quarantine(ledger: Ledger, command: Quarantine) -> tuple[BitMap64, BitMap64]:
    """Takes out what of the damaged frames somebody could still get; returns it, and all of these frames that
    is out by now.
    """
    view = command.view
    destination = ledger.state.by_name.get(view.destination)
    if destination is None or destination.destination_id != view.log_id:
        return BitMap64(), BitMap64()
    taken = quarantine_frames(ledger, destination, view.partition, view.frames, command.bases)
    out = destination.partitions[view.partition].quarantined & view.selection.offsets()
    return taken, out


def quarantine_frames(
    ledger: Ledger, destination: Destination, number: int, seen: FrameIndex, bases: Iterable[int]
) -> BitMap64:
    """As `quarantine`; `seen` says where the damaged frames lay when they were read."""
    index = destination.partitions[number].log.index()
    lost = BitMap64()
    for base in bases:
        now, then = index.at(base), seen.at(base)
        # Trimmed since: nobody can get it. Moved since: the cleaner has read it, so it was whole.
        if (
            now is not None
            and then is not None
            and (now["segment"], now["position"]) == (then["segment"], then["position"])
        ):
            lost |= destination.live(number, base, base + int(now["span"]))
    if lost:
        ledger.record(
            quarantined={
                "destination": destination.number,
                "rows": [{"partition": number, "offsets": lost.serialize()}],
            }
        )
        ledger.state.damage_found = True
        for subscription in destination.subscriptions.values():
            for session in subscription.sessions.values():
                session.drop(number, lost, index)
        ledger.state.stir(destination.name)  # its credit may have come back
    return lost


def check_kept(destination: Destination, number: int, selection: Selection) -> None:
    """Raises DataLost, naming them, when rows of `selection` are quarantined."""
    lost = destination.partitions[number].lost_of(selection)
    if lost:
        raise DataLost(lost_message(destination.name, number, lost))


def lost_message(destination: str, number: int, lost: BitMap64) -> str:
    """How errors and the broker's log name lost rows."""
    return (
        f"offsets {shown(lost)} of partition {number} of {destination!r} ({len(lost)} rows) are lost: "
        f"their bytes on the broker's disk are "
        "damaged. `mq verify` shows where; send them again from their source. failOnDataLoss=false reads "
        "on without them"
    )
