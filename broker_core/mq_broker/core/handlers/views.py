"""Views of rows that leave: pinned, so that no segment is recycled under them."""

from __future__ import annotations

from pyroaring import BitMap64

from mq_broker.core.commands import ReleaseView, RowsView
from mq_broker.core.handlers.quarantine import check_kept
from mq_broker.core.ledger import Ledger
from mq_broker.core.model.destination import Destination
from mq_broker.core.model.frozen import Frozen
from mq_broker.core.model.log import FrameIndex
from mq_broker.core.model.selection import Selection
from mq_broker.core.model.state import BrowseView, State
from mq_wire.errors import Busy, DataLost
from mq_wire.v1 import subscribe_pb2 as wire


def make_view(
    state: State,
    destination: Destination,
    partition: int,
    selection: Selection,
    first_delivery: int = 0,
    delivery_count: int = 1,
    counts: tuple[tuple[BitMap64, ...], ...] = (),
    index: FrameIndex | None = None,
    session: int = 0,
    size_bytes: int = 0,
) -> RowsView:
    """Returns a pinned view of `selection`, which must have rows; give it back with `ReleaseView`.

    `index`: an older one that has them. `session`, `size_bytes`: whose outbox it goes to, and how large it is
    there.
    """
    if index is None:
        index = destination.partitions[partition].log.index()
    pins = index.segments(*selection.span())
    state.pins.update(pins)
    return RowsView(
        destination=destination.name,
        partition=partition,
        log_id=destination.destination_id,
        selection=selection,
        first_delivery=first_delivery,
        frames=index,
        delivery_count=delivery_count,
        counts=counts,
        pins=pins,
        session=session,
        size_bytes=size_bytes,
    )


def release_view(ledger: Ledger, command: ReleaseView) -> None:
    state, view = ledger.state, command.view
    unpin(state, view.pins)
    session = state.sessions.get(view.session) if view.session else None
    if session is not None and session.sent(view.selection.rows, view.size_bytes):
        state.stir(session.destination, news=False)


def unpin(state: State, pins: frozenset[int]) -> None:
    state.pins.subtract(pins)
    for segment in pins:
        if state.pins[segment] <= 0:
            del state.pins[segment]


def open_browse(ledger: Ledger, request: wire.OpenBrowseRequest) -> wire.OpenBrowseResponse:
    """Freezes what is on the queue now, ready and assigned, for whoever reads it within `browse_ttl_us`.
    Nothing is consumed.
    """
    state = ledger.state
    destination = state.destination(request.destination)
    if len(state.browses) >= state.settings.browses_max:
        raise Busy(
            f"{len(state.browses)} browse views are kept, the limit (browses_max) is "
            f"{state.settings.browses_max}: "
            "try again when older ones have expired, or raise it"
        )
    shelf = state.shelf
    parts: dict[int, Frozen] = {}
    for number, backlog in enumerate(destination.queue.backlogs):
        if not backlog.rows:
            continue
        frozen = shelf.freeze(destination, number)
        if frozen is not None:
            parts[number] = frozen
    cost, limit = shelf.cost(list(parts.values())), state.settings.browse_bytes_max
    # One view may always be: it takes about as much as the queue itself.
    if state.browses and shelf.size_bytes + cost > limit:
        raise Busy(
            f"{len(state.browses)} browse views take {shelf.size_bytes} bytes and this one would take "
            f"{cost} more, the limit "
            f"(browse_bytes_max) is {limit}: try again when older ones have expired (browse_ttl_s), or "
            f"raise it"
        )
    handle = ledger.new_id()
    response = wire.OpenBrowseResponse(browse=handle, destination_id=destination.destination_id)
    pins: frozenset[int] = frozenset()
    for number, frozen in parts.items():
        rows = frozen.selection.rows
        pins |= frozen.index.segments(*frozen.selection.span())
        response.parts.add(partition=number, first=0, last=rows, rows=rows, bytes=frozen.rows_bytes)
    state.pins.update(pins)
    shelf.hold(list(parts.values()))
    state.browses[handle] = BrowseView(destination.name, destination.destination_id, parts, pins)
    _use(ledger, handle)
    return response


def _use(ledger: Ledger, handle: bytes) -> None:
    """A view is kept for a while after its last use."""
    ledger.state.browses_end.set(handle, ledger.monotonic_us + ledger.state.settings.browse_ttl_us)


def browse(ledger: Ledger, opened: wire.OpenFetch) -> list[RowsView]:
    """Returns rows [first, last) of a partition of a browse view.

    Raises:
        DataLost: the view has expired, the queue is gone, or rows are damaged on the disk and the caller does
            not accept that.
    """
    state = ledger.state
    view = state.browses.get(opened.browse)
    destination = state.by_name.get(view.destination) if view is not None else None
    if view is None or destination is None or destination.destination_id != view.destination_id:
        raise DataLost("this browse view is no longer kept: read the queue again")
    _use(ledger, opened.browse)
    if opened.partition not in view.partitions:
        return []
    frozen = view.partitions[opened.partition]
    selection = frozen.selection.slice(opened.first, opened.last)
    if not opened.accept_data_loss:
        check_kept(destination, opened.partition, selection)
    partition = destination.partitions[opened.partition]
    counts = destination.queue.backlogs[opened.partition].counts
    return [
        make_view(
            state,
            destination,
            opened.partition,
            rows,
            opened.first + at,
            counts=counts,
            index=frozen.index,
        )
        for at, rows in selection.stretches(partition.lost_of(selection))
        if rows.rows
    ]


def expire_browses(ledger: Ledger) -> None:
    """Lets go of views whose time is over."""
    state = ledger.state
    for handle in state.browses_end.due(ledger.monotonic_us - 1):
        state.browses_end.drop(handle)
        view = state.browses.pop(handle)
        unpin(state, view.pins)
        state.shelf.drop(list(view.partitions.values()))
