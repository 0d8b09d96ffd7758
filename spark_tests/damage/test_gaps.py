"""What a repair had to make up is told with the damage that made it necessary."""

from __future__ import annotations

from mq_broker.core.commands import Settings
from mq_broker.core.model.state import State
from mq_broker.repair.findings import Finding
from mq_broker.repair.gaps import Gaps


def test_a_queue_whose_creation_is_lost_is_named_with_the_damage() -> None:
    finding = Finding("segment-0000000001.mqj", 4096, "a turn is damaged")
    gaps = Gaps(State(bytes(16), Settings()), blame=finding)
    made = gaps.destination(7, partitions=2)
    assert gaps.destination(7) is made
    assert "its rows are in 'recovered.7', under a new identity" in finding.cost
    assert finding.cost.count("recovered.7") == 1
    assert len(made.queue.backlogs) == len(made.partitions) == 2
