"""What may grow in a broker, and how far."""

from __future__ import annotations

from mq_broker.core.state import State
from spark_tests.oracle.history import History


def check_bounds(state: State, history: History) -> None:
    """Notes everything of which there is more than the settings allow."""
    settings = state.settings
    sizes = [("queries", len(state.queries), settings.queries_max)]
    for query in state.queries.values():
        sizes.append((f"batches of query {query.query_id}", len(query.reads), settings.kept_batches))
        sizes.append((f"readers of query {query.query_id}", len(query.readers), settings.destinations_max))
    for destination in state.by_number.values():
        sizes.append((f"ended incarnations of {destination.name}", len(destination.ended), settings.kept_ended))
        sizes.append((f"consumers of {destination.name}", len(destination.consumers), settings.consumers_max))
        sizes += [(f"boundaries of {c.label}", len(c.past), settings.kept_boundaries) for c in destination.consumers.values()]
    for what, count, limit in sizes:
        if count > limit:
            history.note(f"{count} {what}, the limit is {limit}")
