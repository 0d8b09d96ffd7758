"""Every answer that a sequence can get (docs/rules.md, "Duplicate audit")."""

from __future__ import annotations

import pytest

from mq_broker.core.commands import Settings
from mq_broker.core.handlers.admin import duplicates_of
from mq_broker.core.model.audit import SKIPPED, Audit, AuditMemory, ProducerMark, Range, is_named, named
from mq_wire.errors import (
    InvalidRequest,
    LimitExceeded,
    OutOfOrder,
    OutOfWindow,
    ProducerFenced,
    SequenceReused,
    UnknownProducer,
)
from mq_wire.limits import AUDIT_RANGES
from mq_wire.v1.admin_pb2 import DeleteDestinationRequest
from mq_wire.v1.produce_pb2 import OpenProducerRequest
from spark_tests.support.worlds import commands
from spark_tests.support.worlds.lists import ListWorld

WHO = ("a" * 32, 0)
ROWS = [(b"one", 4), (b"two", 4)]


def test_a_batch_sent_again_gets_its_first_receipt_and_is_stored_once() -> None:
    world = ListWorld()
    first = world.handle(commands.publish("q", 0, WHO, 0, ROWS))
    world.now_us += 5_000_000
    again = world.handle(commands.publish("q", 0, WHO, 0, ROWS))
    assert (again.base_offset, again.duplicates, again.append_time_us) == (0, 2, first.append_time_us)
    assert world.broker.state.by_name["q"].enqueued == 2
    assert duplicates_of(world.broker.state, world.broker.state.by_name["q"]) == 2


def test_also_after_other_batches_and_after_a_restart() -> None:
    world = ListWorld()
    world.handle(commands.publish("q", 0, WHO, 0, ROWS))
    world.handle(commands.publish("q", 0, WHO, 2, ROWS))
    world.broker = world.replayed()
    receipt = world.handle(commands.publish("q", 0, WHO, 0, ROWS))
    assert (receipt.base_offset, receipt.duplicates) == (0, 2)
    assert world.handle(commands.publish("q", 0, WHO, 4, ROWS)).base_offset == 4


def test_what_is_older_than_the_window_is_refused_and_never_taken_for_new() -> None:
    world = ListWorld()
    for number in range(AUDIT_RANGES + 1):
        world.handle(commands.publish("q", 0, WHO, number, [(b"%d" % number, 4)]))
    assert world.handle(commands.publish("q", 0, WHO, 1, [(b"1", 4)])).duplicates == 1
    with pytest.raises(OutOfWindow, match="sequence 0 "):
        world.handle(commands.publish("q", 0, WHO, 0, [(b"0", 4)]))
    assert world.broker.state.by_name["q"].enqueued == AUDIT_RANGES + 1


def test_unnamed_producers_beyond_the_limit_are_forgotten_longest_silent_first() -> None:
    world = ListWorld(Settings(anonymous_producers_max=2))
    one, two, three = ("1" * 32, 0), ("2" * 32, 0), ("3" * 32, 0)
    world.handle(commands.publish("q", 0, one, 0, ROWS))
    world.handle(commands.publish("q", 0, two, 0, ROWS))
    world.handle(commands.publish("q", 0, one, 2, ROWS))
    world.handle(commands.publish("q", 0, three, 0, ROWS))
    assert world.handle(commands.publish("q", 0, one, 4, ROWS)).rows == 2
    with pytest.raises(UnknownProducer):
        world.handle(commands.publish("q", 0, two, 2, ROWS))


def test_named_producers_are_never_forgotten() -> None:
    world = ListWorld(Settings(anonymous_producers_max=1))
    opened = world.handle(OpenProducerRequest(name="loader"))
    world.handle(commands.publish("q", 0, (opened.producer_id, 1), 0, ROWS))
    for number in range(5):
        world.handle(commands.publish("q", 0, (f"{number}" * 32, 0), 0, ROWS))
    assert world.handle(commands.publish("q", 0, (opened.producer_id, 1), 0, ROWS)).duplicates == 2


def test_no_unnamed_producer_is_remembered_where_the_limit_is_zero() -> None:
    world = ListWorld(Settings(anonymous_producers_max=0))
    assert world.handle(commands.publish("q", 0, WHO, 0, ROWS)).base_offset == 0
    with pytest.raises(UnknownProducer):
        world.handle(commands.publish("q", 0, WHO, 2, ROWS))


def test_a_gap_is_refused_until_it_is_filled_or_skipped() -> None:
    world = ListWorld()
    world.handle(commands.publish("q", 0, WHO, 0, ROWS))
    with pytest.raises(OutOfOrder, match="sequence 4, but 2 is missing"):
        world.handle(commands.publish("q", 0, WHO, 4, ROWS))
    world.handle(commands.skip("q", 0, WHO, 2, 2))
    world.handle(commands.skip("q", 0, WHO, 2, 2))
    assert world.handle(commands.publish("q", 0, WHO, 4, ROWS)).base_offset == 2
    with pytest.raises(SequenceReused):
        world.handle(commands.publish("q", 0, WHO, 2, ROWS))


def test_what_was_stored_cannot_be_skipped_and_nothing_cannot_be_skipped() -> None:
    world = ListWorld()
    world.handle(commands.publish("q", 0, WHO, 0, ROWS))
    with pytest.raises(SequenceReused):
        world.handle(commands.skip("q", 0, WHO, 0, 2))
    with pytest.raises(InvalidRequest):
        world.handle(commands.skip("q", 0, WHO, 2, 0))


@pytest.mark.parametrize("first", [0, 1])
def test_reuse_of_a_sequence_with_other_content_is_an_error(first: int) -> None:
    world = ListWorld()
    world.handle(commands.publish("q", 0, WHO, 0, ROWS))
    with pytest.raises(SequenceReused):
        world.handle(commands.publish("q", 0, WHO, first, [(b"other", 4)]))


def test_an_unknown_producer_begins_with_zero_and_an_older_epoch_is_fenced() -> None:
    audit = Audit(AuditMemory(10, 100))
    with pytest.raises(UnknownProducer):
        audit.check("name/x", 1, 1, 1, 0)
    audit.record("name/x", 2, Range(0, 3, 7, 10, 0))
    with pytest.raises(ProducerFenced):
        audit.check("name/x", 1, 3, 1, 0)
    with pytest.raises(OutOfOrder):
        audit.check("name/x", 3, 3, 1, 0)
    assert audit.check("name/x", 3, 0, 3, 7) is None, "a new epoch begins anew, also with the same content"


def test_an_older_instance_of_a_name_is_refused_everywhere_at_once() -> None:
    world = ListWorld()
    world.handle(OpenProducerRequest(name="loader"))
    newer = world.handle(OpenProducerRequest(name="loader"))
    with pytest.raises(ProducerFenced):
        world.handle(commands.publish("q", 0, (newer.producer_id, 1), 0, ROWS))
    assert "q" not in world.broker.state.by_name, "nothing is created for a refused batch"
    with pytest.raises(UnknownProducer):
        world.handle(commands.publish("q", 0, (newer.producer_id, 3), 0, ROWS))


def test_a_name_is_told_what_it_has_stored_over_all_epochs() -> None:
    world = ListWorld()
    world.handle(OpenProducerRequest(name="loader"))
    world.handle(commands.publish("q", 1, (named("loader"), 1), 0, ROWS))
    world.handle(commands.publish("q", 1, WHO, 0, ROWS))
    world.handle(OpenProducerRequest(name="loader"))
    world.handle(commands.publish("q", 1, (named("loader"), 2), 0, ROWS))
    opened = world.handle(OpenProducerRequest(name="loader", destination="q"))
    assert [(mark.partition, mark.rows, mark.last_offset) for mark in opened.marks] == [(1, 4, 5)]


def test_names_never_meet_unnamed_producers() -> None:
    assert is_named(named("a" * 32))
    assert not is_named("a" * 32)


def test_skipped_rows_count_nowhere() -> None:
    audit = Audit(AuditMemory(10, 100))
    audit.record("a", 0, Range(0, 5, 0, SKIPPED, 0))
    mark = audit.anonymous["a"]
    assert (mark.rows, mark.last_offset, mark.next_sequence) == (0, -1, 5)


def test_over_all_partitions_who_was_silent_longest_is_forgotten_first_also_after_a_restart() -> None:
    world = ListWorld(Settings(anonymous_producers_total_max=3, default_partitions=2))
    one, two, three, four = ((at * 32, 0) for at in "1234")
    for at, who in enumerate((one, two, three)):
        world.handle(commands.publish("q", at % 2, who, 0, ROWS))
    world.broker = world.replayed()
    world.handle(commands.publish("q", 0, one, 2, ROWS))
    world.handle(commands.publish("other", 0, four, 0, ROWS))
    with pytest.raises(UnknownProducer):
        world.handle(commands.publish("q", 1, two, 2, ROWS))
    assert ("log", 1, 1) in world.broker.state.dirty, "the next snapshot forgets it too"
    assert world.handle(commands.publish("q", 0, three, 2, ROWS)).rows == 2
    assert world.broker.state.audits.anonymous == 3


def test_producers_of_a_deleted_queue_make_room() -> None:
    world = ListWorld(Settings(producer_marks_max=1))
    opened = world.handle(OpenProducerRequest(name="loader"))
    loader = (opened.producer_id, 1)
    world.handle(commands.publish("q", 0, WHO, 0, ROWS))
    world.handle(commands.publish("q", 0, loader, 0, ROWS))
    assert world.handle(commands.publish("q", 0, loader, 2, ROWS)).rows == 2
    for queue, partition in (("q", 1), ("other", 0)):
        with pytest.raises(LimitExceeded, match="producer_marks_max = 1 "):
            world.handle(commands.publish(queue, partition, loader, 0, ROWS))
    assert "other" not in world.broker.state.by_name, "nothing is created for a refused batch"
    world.handle(DeleteDestinationRequest(name="q"))
    assert world.broker.state.audits.anonymous == 0
    assert world.handle(commands.publish("other", 0, loader, 0, ROWS)).rows == 2


def test_of_many_ranges_the_last_are_remembered_and_the_last_can_be_amended() -> None:
    mark = ProducerMark()
    known = [Range(at, 1, at, at, at) for at in range(AUDIT_RANGES + 3)]
    for stored in known:
        mark.note(stored)
    assert mark.ranges == known[3:]
    mark.amend(Range(9, 9, 9, SKIPPED, 9))
    assert mark.ranges == [*known[3:-1], Range(9, 9, 9, SKIPPED, 9)]
