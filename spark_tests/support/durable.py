"""Durable state is changed by entries alone: here every change of it is watched.

What a restart brings back is durable. Everything else is derived from it (which of the rows are ready, where
frames begin, which producers a frame's number stands for), and may change at any time: a restart derives it
anew, and must come to the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from mq_broker.core import apply
from mq_broker.core.model.audit import Audit
from mq_broker.core.model.counts import RowCounts
from mq_broker.core.model.durable_consumer import Consumer
from mq_broker.core.model.log import PartitionLog
from mq_broker.core.model.markers import Markers
from mq_broker.core.model.query import Query
from mq_broker.core.model.staged import StagedSet, StagedSets
from mq_broker.core.model.state import State
from mq_broker.core.model.subscription import Backlog, Subscription

#: What changes durable state. Of a log, `trim`, `bury` and `compact_producers` forget what nobody can get any
#: more: that is derived.
MUTATORS: Final[tuple[tuple[type, tuple[str, ...]], ...]] = (
    (PartitionLog, ("append", "extend", "move")),
    (Audit, ("record",)),
    (RowCounts, ("add", "forget")),
    (Backlog, ("append", "append_runs", "plan", "acknowledge", "keep", "lose")),
    (Subscription, ("note_ended",)),
    (Consumer, ("add", "acknowledge", "forget", "drop_returned", "mark_committed")),
    (StagedSets, ("add", "pop")),
    (StagedSet, ("add", "move")),
    (Markers, ("put", "pop")),
    (Query, ("note_read", "fence")),
    (State, ("add", "remove")),
)


@contextmanager
def guarded() -> Iterator[list[str]]:
    """Until the end of the block changes outside `apply` are taken down: returned by name, as they happen."""
    found: list[str] = []
    depth = [0]

    def applying(handler: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> None:
            depth[0] += 1
            try:
                handler(*args)
            finally:
                depth[0] -= 1

        return call

    def watched(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            if not depth[0]:
                found.append(name)
            return method(*args, **named)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for kind, handler in list(apply._APPLY.items()):
            patch.setitem(apply._APPLY, kind, applying(handler))
        for noun, names in MUTATORS:
            for name in names:
                patch.setattr(noun, name, watched(f"{noun.__name__}.{name}", getattr(noun, name)))
        yield found
