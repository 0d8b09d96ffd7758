"""All attacks, by name."""

from __future__ import annotations

from typing import Final

from spark_tests.hostile.attacks import (
    crowds,
    frames,
    growing,
    keepers,
    listings,
    probes,
    readers,
    records,
    senders,
    sharers,
)
from spark_tests.hostile.siege import Attack

ATTACKS: Final[dict[str, Attack]] = {
    attack.name: attack
    for room in (frames, probes, records, senders, readers, keepers, crowds, growing, listings, sharers)
    for attack in room.ATTACKS
}
