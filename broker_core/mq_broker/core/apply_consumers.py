"""What entries about durable consumers do to the state: plans, runs and incarnations. See `apply.py`."""

from __future__ import annotations

from mq_broker.core import owners
from mq_broker.core.consumer_parts import plan_of
from mq_broker.core.model.destination import Destination
from mq_broker.core.model.durable_consumer import Consumer, Plan
from mq_broker.core.model.query import Reader
from mq_broker.core.model.state import State
from mq_broker.core.model.subscription import Ended, Subscription
from mq_broker.core.touching import consumer_of, subscription_of, touch_rows
from mq_wire.store.v1 import store_pb2 as store


def consumer_minted(state: State, what: store.ConsumerMinted, time_us: int, body: object) -> None:
    subscription_of(state, what).consumers[what.incarnation] = Consumer(
        what.consumer, what.incarnation, what.run, what.run, time_us
    )
    state.consumers_total += 1
    state.dirty.add(("consumers", what.destination))


def planned(state: State, what: store.Planned, time_us: int, body: object) -> None:
    _, subscription, consumer = consumer_of(state, what)
    plan = plan_of(what, time_us, consumer.next)
    state.plans_cut += 1
    plan.serial = state.plans_cut
    state.dirty.add(("broker",))
    for number, (_, selection) in plan.assignments.items():
        subscription.backlogs[number].plan(selection)
        touch_rows(state, what.destination, number, selection)
    consumer.add(plan)
    consumer.run = max(consumer.run, what.run)


def _give_back(
    state: State, destination: Destination, subscription: Subscription, plan: Plan, *, handed_out: bool
) -> None:
    for number, (_, selection) in plan.assignments.items():
        backlog = subscription.backlogs[number]
        backlog.give_back(selection)
        if handed_out and selection.rows:
            backlog.handed_out.add(selection.offsets())
        touch_rows(state, destination.number, number, selection)
    plan.returned, plan.emptied, plan.assignments = True, True, {}
    state.stir(destination.name)


def _let_go(state: State, destination: Destination, subscription: Subscription, plan: Plan) -> None:
    """Nobody can get the rows of a plan any more: its frames may be forgotten, in snapshots too, or moved."""
    for number, (_, selection) in plan.assignments.items():
        if selection.rows:
            subscription.backlogs[number].lose(selection.offsets())
            touch_rows(state, destination.number, number, selection)


def plans_returned(state: State, what: store.PlansReturned, time_us: int, body: object) -> None:
    destination, subscription, consumer = consumer_of(state, what)
    for number in what.plans:
        _give_back(state, destination, subscription, consumer.plans[number], handed_out=False)
        # Who opens it from now on finds it empty.
        consumer.plans[number].opened_by_run = 0
    consumer.drop_returned(state.settings.kept_returned)


def plans_acknowledged(state: State, what: store.PlansAcknowledged, time_us: int, body: object) -> None:
    destination, subscription, consumer = consumer_of(state, what)
    for plan in consumer.between(0, what.through):
        if plan.pending:
            for number, (_, selection) in plan.assignments.items():
                if selection.rows:
                    subscription.backlogs[number].keep(selection.offsets())
                    touch_rows(state, what.destination, number, selection)
    before = consumer.acknowledged_plan
    consumer.acknowledge(what.through)
    _forget_plans(state, destination, subscription, consumer, before)


def _forget_plans(
    state: State, destination: Destination, subscription: Subscription, consumer: Consumer, through: int
) -> None:
    for plan in consumer.between(0, through):
        if not plan.returned:
            _let_go(state, destination, subscription, plan)
    consumer.forget(through, state.settings.kept_boundaries)


def plans_forgotten(state: State, what: store.PlansForgotten, time_us: int, body: object) -> None:
    _forget_plans(state, *consumer_of(state, what), what.through)


def query_joined(state: State, what: store.QueryJoined, time_us: int, body: object) -> None:
    owners.set_reader(
        state, what.query_id, what.destination, Reader(what.spark_run_id, what.run, what.incarnation)
    )


def range_opened(state: State, what: store.RangeOpened, time_us: int, body: object) -> None:
    _, _, consumer = consumer_of(state, what)
    consumer.run = max(consumer.run, what.run)
    for number in what.failed:
        consumer.plans[number].failed_attempts += 1
    for number in what.plans:
        consumer.plans[number].opened_by_run = what.run


def range_read(state: State, what: store.RangeRead, time_us: int, body: object) -> None:
    if what.query_id:
        owners.note_read(state, what)
    if not what.plans:
        return  # an empty batch: its number counts as used all the same
    _, _, consumer = consumer_of(state, what)
    for number in what.plans:
        plan = consumer.plans[number]
        plan.read_by_run = max(plan.read_by_run, what.run)
        if what.query_id:
            plan.batches.add((what.query_id, what.batch_id))
            plan.committed = plan.committed or state.queries[what.query_id].committed == what.batch_id


def consumer_ended(state: State, what: store.ConsumerEnded, time_us: int, body: object) -> None:
    destination, subscription, consumer = consumer_of(state, what)
    for number in what.returned:
        plan = consumer.plans[number]
        # Failed runs are counted with the range: nobody knows which of its rows it was. Two readers of one
        # query: reading by mistake counts nothing.
        handed_out = not what.shared and (plan.failed_attempts > 0 or plan.read_since_opened)
        _give_back(state, destination, subscription, plan, handed_out=handed_out)
        for query_id, batch in plan.batches:
            owners.touch_query(state, query_id).fence(batch)
    for plan in consumer.plans.values():
        if not plan.returned:  # acknowledged now or before
            _let_go(state, destination, subscription, plan)
    del subscription.consumers[what.incarnation]
    state.consumers_total -= 1
    state.is_crowded = False
    subscription.note_ended(
        what.incarnation, Ended(what.successor, consumer.name, what.shared), state.settings.kept_ended
    )
    state.dirty.add(("broker",))
