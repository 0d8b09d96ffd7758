"""Bugs in what producers and connected consumers see: receipts, sequences, lanes, deliveries,
acknowledgements.
"""

from __future__ import annotations

from typing import Final

from mq_broker.core import apply
from mq_broker.core.handlers import admin, publishing, sessions, settling, views
from mq_broker.core.model.audit import Audit
from mq_broker.core.model.counts import RowCounts
from mq_broker.core.model.frozen import Shelf
from mq_broker.core.model.lanes import Lanes
from mq_broker.core.model.selection import Selection
from mq_broker.core.model.session import Outbox, Session
from mq_broker.engine.engine import Engine
from mq_broker.engine.rows import RowReader
from spark_tests.support.planting import Bug, Change

_REPLY: Final = "self._replies.append((done, reply))"


def _early(what: str) -> tuple[Change, ...]:
    """Replies of one kind leave when they are made, not when their turn is on disk."""
    return (Change(Engine._handle, _REPLY, f"if {what}:\n    done(reply)\nelse:\n    {_REPLY}"),)


RECEIPTS: Final = (
    Bug(
        "acknowledged before fsync",
        "all replies leave, then the turn is written",
        (
            Change(
                Engine._finish_turn,
                """
                self._journal.commit()
                replies, self._replies = self._replies, []
                for done, reply in replies:
                    done(reply)
                """,
                """
                replies, self._replies = self._replies, []
                for done, reply in replies:
                    done(reply)
                self._journal.commit()
                """,
            ),
        ),
        "simulation",
    ),
    Bug(
        "a receipt before the sync",
        "a producer has its receipt as soon as its batch is in the turn in hand",
        _early("type(reply).__name__ == 'Receipt' and not reply.duplicates"),
        "promises",
    ),
    Bug(
        "a duplicate's receipt before the sync",
        "whoever sends again is told 'stored' while the original is in the turn in hand",
        _early("type(reply).__name__ == 'Receipt' and reply.duplicates"),
        "promises",
    ),
    Bug(
        "an acknowledgement answered before the sync",
        "a consumer learns that its rows are done while that is in the turn in hand",
        _early("type(command).__name__ == 'Acknowledge'"),
        "simulation",
    ),
    Bug(
        "a lone call answered before the sync",
        "who waits for its answer on its own thread does not wait for the disk",
        (
            Change(
                Engine.answer,
                "self._finish_turn()",
                """
                self._replies, replies = [], self._replies
                for done, reply in replies:
                    done(reply)
                """,
            ),
        ),
        "simulation",
    ),
    Bug(
        "a retry in the turn of its original is stored twice",
        "the audit learns of a batch when its turn is written",
        (
            Change(
                publishing.publish,
                "if known is not None:",
                "if known is not None and known.time_us == ledger.now_us:\n    known = None\nif known is "
                "not None:",
            ),
        ),
        "simulation",
    ),
    Bug(
        "a duplicate gets the receipt of another batch",
        "a retry is told the offsets of what its producer sent last",
        (
            Change(
                Audit._recall,
                "if (known.rows, stored) == (rows, crc):\n    return known",
                "if (known.rows, stored) == (rows, crc):\n    return mark.ranges[-1]",
            ),
        ),
        "simulation",
    ),
    Bug(
        "sequences are not looked at",
        "whatever a producer sends again is new",
        (Change(Audit.check, "return self._recall(producer, mark, first, rows, crc)", "return None"),),
        "simulation",
    ),
    Bug(
        "gaps in sequences are let through",
        "a batch behind a refused one is stored before it",
        (
            Change(
                Audit.check,
                "if first > mark.next_sequence:",
                "if first > mark.next_sequence:\n    return None\nif False:",
            ),
        ),
        "model",
    ),
    Bug(
        "an older instance of a named producer is not fenced",
        "two programs of one name write in turns",
        (
            Change(publishing._check_producer, "if epoch < current:", "if False:"),
            Change(Audit.check, "if epoch < mark.epoch:", "if False:"),
        ),
        "simulation",
    ),
    Bug(
        "a skip does not take its sequences",
        "what was given up may be stored all the same",
        (Change(apply._skipped, "partition.audit.record(", "(lambda *what: None)("),),
        "simulation",
    ),
)

DELIVERIES: Final = (
    Bug(
        "an acknowledgement takes a neighbour along",
        "the offset before the last one that was acknowledged leaves the queue too",
        (
            Change(
                settling.acknowledge,
                """{"partition": partition, "offsets": offsets.serialize()}""",
                """
                {
                    "partition": partition,
                    "offsets": (offsets | BitMap64([max(offsets.max() - 1, 0)])).serialize(),
                }
                """,
            ),
        ),
        "simulation",
    ),
    Bug(
        "rows of a closed session stay with it",
        "what was in a consumer's hands when its stream broke is not ready again",
        (
            Change(
                settling._give_back,
                "queue.backlogs[partition].give_back(lanes.selection())",
                "pass",
            ),
        ),
        "simulation",
    ),
    Bug(
        "rows are given out twice",
        "what one session holds stays ready for the next one",
        (Change(sessions._deliver, "backlog.ready.remove(taken.lanes)", "pass"),),
        "simulation",
    ),
    Bug(
        "failed attempts are not written down",
        "a delivery that failed counts until the next restart only",
        (
            Change(
                settling._count,
                'ledger.record(returned={"destination": destination.number, "rows": rows, "failed": blamed})',
                "for partition, offsets in failed.items():\n    "
                "destination.queue.backlogs[partition].failed.add(offsets)",
            ),
        ),
        "model",
    ),
    Bug(
        "a neighbour is blamed",
        "of several rows that a consumer had when it died each has failed",
        (
            Change(
                settling._give_back,
                "sum(len(offsets) for offsets in returned.values()) == 1 and handed == returned",
                "handed == returned",
            ),
        ),
        "model",
    ),
    Bug(
        "a row that may never have been seen is blamed",
        "the only row of a consumer that died has failed, although nobody says that it was handed over",
        (Change(settling._give_back, "and handed == returned", ""),),
        "model",
    ),
    Bug(
        "hand-over off by one",
        "the last row that was handed over counts as not seen",
        (
            Change(
                Session.hand_over,
                "if held := offsets - self.missing(partition, offsets):",
                "if held := offsets - self.missing(partition, offsets) - BitMap64([offsets.max()]):",
            ),
        ),
        "model",
    ),
    Bug(
        "what never left counts as handed out",
        "rows that the broker had not sent yet are counted when the stream breaks",
        (Change(settling._give_back, "session.held_by_partition(unsent)", "session.held_by_partition()"),),
        "model",
    ),
    Bug(
        "a consumer is blamed for the broker's stop",
        "the row in the hands of a consumer has failed when the broker stops",
        (Change(settling._give_back, "if alone and end is not SessionEnd.BROKER:", "if alone:"),),
        "model",
    ),
    Bug(
        "lanes by last in, first out",
        "the newest rows of a priority leave first",
        (
            Change(
                Lanes.head,
                "return cut(lane, 0, rows)",
                "return cut(lane, len(lane) - rows, len(lane)) if below is None else cut(lane, 0, rows)",
            ),
        ),
        "model",
    ),
    Bug(
        "a slice loses the row at its cut",
        "where a delivery ends in the middle of a lane, the next row goes with neither half",
        (
            Change(
                Selection.slice,
                "low, high = max(start - at, 0),",
                "low, high = max(start - at + (0 < start - at < size - 1), 0),",
            ),
        ),
        "model",
        is_rare=True,
    ),
    Bug(
        "lowest priority first",
        "connected consumers are served from the wrong end",
        (
            Change(
                sessions._next_lanes,
                "for priority in reversed(range(PRIORITIES)):",
                "for priority in range(PRIORITIES):",
            ),
        ),
        "simulation",
    ),
    Bug(
        "mixed priorities lose the last row",
        "of a batch with a priority for each row the last one enters no lane",
        (
            Change(
                Lanes.add_rows,
                "present = np.bincount(priorities, minlength=PRIORITIES)",
                "priorities = priorities[: max(len(priorities) - 1, 1)]\npresent = np.bincount(priorities, "
                "minlength=PRIORITIES)",
            ),
        ),
        "simulation",
    ),
    Bug(
        "what came back counts its size only",
        "returned rows raise the counts of the lanes, but are in none",
        (Change(Lanes.add, "lane |= offsets", "pass"),),
        "simulation",
    ),
    Bug(
        "a charge of one row hits all",
        "failed attempts replace those that were counted before",
        (Change(RowCounts.add, "bits[at] ^ carry", "carry"),),
        "model",
    ),
    Bug(
        "rows that an application never saw are charged",
        "what was under way when a stream broke counts as a failed attempt",
        (Change(Session.seen, "left = self.seen_rows", "left = self.held_rows"),),
        "model",
    ),
    Bug(
        "a view shares what has changed",
        "what is browsed is what was there when somebody else looked",
        (Change(Shelf.freeze, "last.version == version", "last.version[0] == version[0]"),),
        "model",
    ),
    Bug(
        "what a slice leaves is forgotten",
        "rows beyond the deliveries of one turn wait until something else happens to their queue",
        (Change(sessions._dispatch, "ledger.state.stir(destination.name, news=False)", "pass"),),
        "model",
    ),
    Bug(
        "an outbox without a bound",
        "everything that is ready is given to a consumer at once, whether it reads or not",
        (
            Change(
                Outbox.put,
                "self.is_full = self.batches >= self.batches_max or self.bytes >= self.bytes_max",
                "pass",
            ),
        ),
        "model",
    ),
    Bug(
        "an outbox that has room again is not looked at",
        "a consumer that was slow once gets nothing more",
        (Change(views.release_view, "state.stir(session.destination, news=False)", "pass"),),
        "model",
    ),
    Bug(
        "a question is answered before the rows",
        "who asks whether there is nothing is told so at once, while what is ready for it has not left",
        (
            Change(
                sessions.ask,
                "session.questions.append(command.request_id)",
                "session.tell(Asked(request_id=command.request_id))",
            ),
        ),
        "simulation",
    ),
    Bug(
        "a deleted queue leaves its consumers waiting",
        "their streams stay open, and nothing will ever come",
        (Change(admin.delete, "state.farewells.append((session, why))", "pass"),),
        "simulation",
    ),
    Bug(
        "a late deletion hits the successor",
        "a repeated call deletes whatever has the name by now",
        (Change(admin.delete, "if found is None or found.destination_id != named:", "if found is None:"),),
        "model",
    ),
    Bug(
        "duplicates are forgotten at a restart",
        "what was recognised as stored before is counted in memory only",
        (
            Change(
                publishing.publish,
                "ledger.state.duplicates[destination.number, header.partition] += known.rows",
                "partition.duplicates += known.rows",
            ),
        ),
        "model",
    ),
    Bug(
        "scattered rows come from the front of their frame",
        "which rows of a frame were asked for is forgotten",
        (
            Change(
                RowReader._decoded,
                "return batch.take(pa.array(piece.indices))",
                "return batch.slice(0, piece.rows)",
            ),
        ),
        "simulation",
    ),
)
