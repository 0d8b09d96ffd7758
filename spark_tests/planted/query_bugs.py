"""Bugs in what Spark's source and sink stand on: plans, ranges, takeovers, staged sets and commits."""

from __future__ import annotations

from typing import Final

from mq_broker.core import apply, apply_consumers, consumer_parts, owners, snapshot
from mq_broker.core.handlers import committing, incarnations, planning, queries, ranges, staging
from mq_broker.core.model.durable_consumer import Consumer, Plan
from mq_broker.core.model.markers import Markers
from mq_broker.core.model.presence import Presence
from mq_broker.core.model.staged import StagedSets
from mq_broker.core.model.timers import Timers
from spark_tests.planted.queue_bugs import _early
from spark_tests.support.planting import Bug, Change

SOURCE: Final = (
    Bug(
        "a plan is cut anew after it was read",
        "who asks again gets other rows under a new boundary, although some were read",
        (
            Change(
                Plan.used,
                "return self.acknowledged or (self.opened_by_run if self.returned else self.read_by_run) > 0",
                "return self.acknowledged or (self.opened_by_run if self.returned else 0) > 0",
            ),
        ),
        "model",
    ),
    Bug(
        "an acknowledged plan is passed over",
        "a checkpoint that lost its last batch gets a plan of new rows under the number of that batch",
        (
            Change(
                Consumer.used_after,
                "if plan.number > number and plan.used)",
                "if plan.number > number and plan.used and plan.pending)",
            ),
        ),
        "model",
    ),
    Bug(
        "a plan that was cut after its batch was read is read under it",
        "a query over two queues, or with a new incarnation, puts new rows into a batch whose number its "
        "sink knows",
        (Change(queries.check_batch, "any(serial > read for serial in serials)", "False"),),
        "model",
    ),
    Bug(
        "the count of plans is not in the snapshot",
        "after a restart a new plan counts as older than batches that were read before",
        (Change(snapshot._restore_broker, "state.plans_cut = max(state.plans_cut, part.plans_cut)", "pass"),),
        "model",
    ),
    Bug(
        "boundaries are forgotten at a restart",
        "a checkpoint that lost two batches is told that its offsets were never given",
        (
            Change(
                consumer_parts._plan_parts,
                "for past in consumer.past.values():",
                "for past in ():",
            ),
        ),
        "model",
    ),
    Bug(
        "plans that were given back are kept for ever",
        "who plans again and again and never reads makes the broker, and each of its snapshots, grow",
        (Change(Consumer.drop_returned, "del self.plans[number]", "pass"),),
        "model",
    ),
    Bug(
        "queues and targets of queries are not counted",
        "invented targets of one query fill the memory, whatever query_ends_max says",
        (Change(owners._count_end, "state.query_ends += 1", "pass"),),
        "model",
    ),
    Bug(
        "a second reader is welcome",
        "a self-join shares the messages out between its two sides",
        (
            Change(
                queries.join,
                "if known.incarnation and who.incarnation and known.incarnation != who.incarnation:",
                "if False:",
            ),
        ),
        "model",
    ),
    Bug(
        "a commit marks what other batches read",
        "rows of a batch that was never committed count as acknowledged when their consumer ends",
        (
            Change(
                Consumer.mark_committed,
                "if batch in plan.batches and not plan.committed]",
                "if any(batch[0] == query for query, _ in plan.batches) and not plan.committed]",
            ),
        ),
        "model",
        is_rare=True,
    ),
    Bug(
        "a run is held at any broker",
        "a query at an old address gets a run and the consumer of somebody else, and acknowledges its rows",
        (
            Change(
                ranges.hold_run,
                "if command.cluster_id and command.cluster_id != state.cluster_id:",
                "if False:",
            ),
        ),
        "simulation",
    ),
    Bug(
        "an assignment answered before it is durable",
        "a query learns of its plan while that is in the turn in hand",
        _early("type(command).__name__ == 'PlanRequest'"),
        "promises",
    ),
    Bug(
        "a range's readers are not written down",
        "that a plan was read is forgotten with the process",
        (
            Change(
                ranges._note_read,
                "if new or queries.is_new(ledger.state, opened):\n    ledger.record(",
                "for number in new:\n    consumer.plans[number].read_by_run = opened.who.run\nif False:\n  "
                "  ledger.record(",
            ),
        ),
        "model",
    ),
    Bug(
        "planned rows stay ready",
        "what a query was assigned goes to others too",
        (Change(apply_consumers.planned, "subscription.backlogs[number].plan(selection)", "pass"),),
        "simulation",
    ),
    Bug(
        "rows that were read go back when their run ends",
        "a query that starts again finds its range empty, and others have its rows",
        (
            Change(
                ranges._return_unread,
                "for plan in consumer.pending() if not plan.read_by_run",
                "for plan in consumer.pending()",
            ),
        ),
        "simulation",
    ),
    Bug(
        "a zombie run's rows are returned twice",
        "when a run ends, what it gave back before goes back again",
        (
            Change(
                ranges._return_unread,
                "for plan in consumer.pending() if not plan.read_by_run",
                "for plan in consumer.plans.values() if not plan.read_by_run",
            ),
        ),
        "simulation",
    ),
    Bug(
        "the end of an older run gives back what a newer one planned",
        "closing a stream that hung looks at the consumer, not at the run",
        (
            Change(
                Presence.of_run,
                "for key in list(self._consumers.get(run, ())):",
                "for key in [k for r in self._consumers if r >= run for k in self._consumers[r]]:",
            ),
        ),
        "model",
    ),
    Bug(
        "an older run is not fenced",
        "two starts of one query work side by side",
        (Change(incarnations.find, "if who.run < consumer.run:", "if False:"),),
        "simulation",
    ),
    Bug(
        "a range acknowledged is let go at once",
        "the last acknowledged batch cannot be read again",
        (
            Change(
                apply_consumers.plans_acknowledged,
                "before = consumer.acknowledged_plan",
                "before = what.through",
            ),
        ),
        "simulation",
    ),
    Bug(
        "delivery numbers begin anew",
        "a plan takes the numbers of the one before",
        (
            Change(
                planning._record_plan,
                '"first": consumer.next.get(number, 0),',
                '"first": consumer.floor.get(number, 0),',
            ),
        ),
        "simulation",
    ),
    Bug(
        "a takeover loses what the old checkpoint held",
        "rows of an ended consumer are not ready again",
        (Change(apply_consumers._give_back, "backlog.give_back(selection)", "pass"),),
        "simulation",
    ),
    Bug(
        "a takeover leaves the old checkpoint in office",
        "an ended incarnation may go on reading",
        (Change(apply_consumers.consumer_ended, "del subscription.consumers[what.incarnation]", "pass"),),
        "simulation",
    ),
)

SINK: Final = (
    Bug(
        "staged rows visible early",
        "what is staged can be read before it is committed",
        (
            Change(
                apply._staged,
                "state.staged.add(held, what, body.place, body.facets, time_us)",
                """
                state.staged.add(held, what, body.place, body.facets, time_us)
                destination, partition = partition_of(state, what.destination, what.partition)
                priority = body.facets.frame_priority
                rows, columns = what.records.rows, what.records.columns
                base = partition.log.append(rows, columns, body.place, priority, "", 0, time_us)
                _append(destination, what.partition, base, body.facets, what.records.rows)
                touch(state, what.destination, what.partition, base, base + what.records.rows)
                state.stir(destination.name)
                """,
            ),
            Change(apply._staged_committed, "sets.append(held.frames)", "pass"),
        ),
        "simulation",
    ),
    Bug(
        "a commit is not idempotent",
        "the same batch again is committed again",
        (
            Change(
                committing.commit, "if marker is not None and request.version <= marker.version:", "if False:"
            ),
            Change(apply._staged_committed, "held = state.staged.pop(token)", "held = state.staged[token]"),
        ),
        "simulation",
    ),
    Bug(
        "the marker is looked at behind the tokens",
        "a commit whose answer was lost is refused when it is asked for again",
        (
            Change(
                committing.commit, "if marker is not None and request.version <= marker.version:", "if False:"
            ),
        ),
        "simulation",
    ),
    Bug(
        "a lower batch is swallowed",
        "a checkpoint older than the queue is told that its batch was committed",
        (Change(committing._committed_before, "if request.version < marker.version:", "if False:"),),
        "model",
        is_rare=True,
    ),
    Bug(
        "a batch of another size is swallowed",
        "the rows of a batch that was committed with others vanish in silence",
        (
            Change(
                committing._committed_before,
                "if request.rows != marker.rows and not request.keep_mismatch:",
                "if False:",
            ),
        ),
        "model",
        is_rare=True,
    ),
    Bug(
        "a batch of another query is swallowed",
        "other rows under a number that an earlier query used vanish in silence",
        (
            Change(
                committing._committed_before,
                'if "" not in (query_id, marker.query_id) and query_id != marker.query_id:',
                "if False:",
            ),
        ),
        "model",
        is_rare=True,
    ),
    Bug(
        "keep takes another query for the same",
        "batchMismatch=keep drops rows of a query that never committed this batch",
        (
            Change(
                committing._committed_before,
                'if "" not in (query_id, marker.query_id) and query_id != marker.query_id:',
                'if "" not in (query_id, marker.query_id) and query_id != marker.query_id and not '
                "request.keep_mismatch:",
            ),
        ),
        "model",
        is_rare=True,
    ),
    Bug(
        "a commit does not say who made it",
        "the marker of a commit is without its query",
        (Change(committing.commit, '"query_id": query_id,', ""),),
        "model",
    ),
    Bug(
        "an epoch of another target discards",
        "of two sinks of one query each throws away what the other has staged",
        (Change(apply._staged_discarded, "target = _target_of(what)", "target = None"),),
        "model",
    ),
    Bug(
        "an epoch is taken for nobody",
        "a new writer says so, and what older ones have staged stays",
        (Change(staging.take_epoch, '"older": True', '"older": False'),),
        "model",
    ),
    Bug(
        "markers of writes never end",
        "each batch write that was not forgotten is remembered for ever",
        (Change(Markers.over, "if now_us - since > WRITE_MARKER_TTL_US:", "if False:"),),
        "model",
        is_rare=True,
    ),
    Bug(
        "rows that were staged are counted for ever",
        "a set that is over still counts as staged",
        (
            Change(
                StagedSets.pop,
                "self._count(held, -len(held.frames), gone, -held.size_bytes)",
                "pass",
            ),
        ),
        "model",
    ),
    Bug(
        "a commit takes what its writers did not count",
        "a set with other rows than its task says is committed all the same",
        (
            Change(committing._whole_set, "if held.rows != token.rows:", "if False:"),
            Change(committing.commit, "if rows != request.rows:", "if False:"),
        ),
        "model",
    ),
    Bug(
        "the last token of a commit is left out",
        "of several sets one stays invisible",
        (
            Change(
                apply._staged_committed,
                "for token in what.tokens:",
                "for token in list(what.tokens)[: max(len(what.tokens) - 1, 1)]:",
            ),
        ),
        "simulation",
    ),
    Bug(
        "a zombie's sets survive a newer writer",
        "an older attempt may stage on",
        (Change(staging._open_set, "if staged.epoch < newest:", "if False:"),),
        "model",
        is_rare=True,
    ),
    Bug(
        "a takeover does not fence the sink",
        "a batch whose input went to others is committed all the same",
        (
            Change(
                apply_consumers.consumer_ended, "owners.touch_query(state, query_id).fence(batch)", "pass"
            ),
            Change(
                incarnations.end_consumer,
                "staging.discard_readers(ledger, {batch for plan in freed for batch in plan.batches})",
                "pass",
            ),
        ),
        "simulation",
    ),
    Bug(
        "a release returns rows of a committed batch",
        "what our sink has committed goes to others all the same",
        (
            Change(
                incarnations.end_consumer, "done = [plan for plan in pending if plan.committed]", "done = []"
            ),
        ),
        "model",
    ),
    Bug(
        "sets expire while they are written",
        "a staged set lives from its first batch on, not from its last",
        (
            Change(
                staging.expire,
                "staged.silent(ledger.monotonic_us - ttl_us, _EXPIRED_SETS_MAX)",
                "staged.silent(ledger.monotonic_us, _EXPIRED_SETS_MAX)",
            ),
        ),
        "model",
    ),
    Bug(
        "what is touched ends at its first time",
        "whatever the heap says is due ends, also where it was put off since",
        (Change(Timers.due, "if self._due.get(key) == (due_us, number):", "if key in self._due:"),),
        "ending",
    ),
    Bug(
        "what is touched never ends",
        "what is put off loses its entry in the heap",
        (
            Change(
                Timers.set,
                "self._due[key] = (due_us, self._number)",
                "known = key in self._due\nself._due[key] = (due_us, self._number)\nif known:\n    return",
            ),
        ),
        "ending",
    ),
    Bug(
        "consumers that a start found are with nobody",
        "who was there before this start is in no index: what they planned and kept stays theirs for ever",
        (Change(Presence._index, "if not self._has_begun:", "if False:"),),
        "ending",
    ),
)
