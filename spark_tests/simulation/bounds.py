"""What may grow in a broker, and how far."""

from __future__ import annotations

from mq_broker.core.model.state import State
from spark_tests.oracle.history import History


def check_bounds(state: State, history: History) -> None:
    """Notes everything of which there is more than the settings allow."""
    settings = state.settings
    ends = sum(query.ends for query in state.queries.values())
    if ends != state.query_ends:
        history.note(f"{ends} queues and targets of queries, {state.query_ends} are counted")
    sizes = [
        ("queues and targets of queries", ends, settings.query_ends_max),
        ("queries", len(state.queries), settings.queries_max),
    ]
    sizes.append(
        (
            "durable consumers",
            sum(destination.durable_consumers for destination in state.by_number.values()),
            settings.consumers_max,
        )
    )
    for query in state.queries.values():
        sizes.append((f"batches of query {query.query_id}", len(query.reads), settings.kept_batches))
        sizes.append((f"readers of query {query.query_id}", len(query.readers), settings.destinations_max))
    for destination in state.by_number.values():
        sizes.append(
            (f"ended incarnations of {destination.name}", len(destination.queue.ended), settings.kept_ended)
        )
        for consumer in destination.queue.consumers.values():
            plans = consumer.plans.values()
            given_back = sum(plan.emptied and not plan.used for plan in plans)
            sizes.append(
                (f"plans of {consumer.label} that were given back", given_back, settings.kept_returned)
            )
            batches = max((len(plan.batches) for plan in plans), default=0)
            sizes.append((f"batches of one plan of {consumer.label}", batches, settings.batches_per_plan_max))
        sizes += [
            (f"boundaries of {c.label}", len(c.past), settings.kept_boundaries)
            for c in destination.queue.consumers.values()
        ]
    for what, count, limit in sizes:
        if count > limit:
            history.note(f"{count} {what}, the limit is {limit}")
