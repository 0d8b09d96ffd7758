"""Bytes that rot: what a simulated broker left is damaged in one place, at rest or while it is read. All is
as it was, or it is said.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any, Final

from mq_broker.core.broker import Broker
from mq_broker.core.commands import ReleaseView, ResolveFetch
from mq_broker.engine.rows import RowReader
from mq_broker.journal.frames import MAGIC
from mq_broker.journal.segments import FIRST_POSITION, segment_name
from mq_broker.testing.memory_disk import MemoryDisk
from mq_wire.errors import BrokerFault, MqError
from mq_wire.v1.admin_pb2 import ListDestinationsRequest
from mq_wire.v1.produce_pb2 import TakeEpochRequest
from mq_wire.v1.subscribe_pb2 import OpenBrowseRequest, OpenFetch
from spark_tests.oracle.marked import Rows
from spark_tests.simulation.machine import Machine
from spark_tests.simulation.messages import rows_of
from spark_tests.simulation.simulation import Simulation
from spark_tests.support.worlds.dumps import check_same, dump_broker

#: Operations before the disk rests, and damages tried on it.
_OPERATIONS: Final = 200
_DAMAGES: Final = 30
#: Bits flipped under a broker that has read everything once.
_FLIPS: Final = 5
#: Each writes a turn of a sector or more; damage is mostly 8 sectors long at most, and never that of as many
#: turns.
_STARTS: Final = 10

_NOW_US: Final = 1 << 50

Disks = tuple[MemoryDisk, MemoryDisk]
#: Queue, partition, offset -> id of the message there.
Contents = dict[tuple[str, int, int], int]


def rot(seed: int) -> str:
    """Returns what is wrong with the history of this seed, "" where nothing is."""
    rng = random.Random(seed)
    machine = _at_rest(seed)
    expected, contents = _recovered(machine, _copies(machine))
    has_two = len(machine.whole_snapshots) > 1
    for _ in range(_DAMAGES):
        disks = _copies(machine)
        what = rng.choice(_KINDS)(rng, disks, machine)
        if not what:
            continue
        try:
            state, found = _recovered(machine, disks)
        except BrokerFault as error:
            if has_two and ("manifest" in what or "pack" in what):
                return f"{what}: one of two snapshots is damaged, and the start is refused: {error}"
            continue
        if wrong := _differing(found, contents):
            return f"{what}: {wrong}"
        try:
            check_same(state, expected)
        except AssertionError as error:
            return f"{what}: silently another state: {error}"
    return _while_it_runs(rng, machine, contents)


def _while_it_runs(rng: random.Random, machine: Machine, contents: Contents) -> str:
    """What was whole when it was read once may not be when it is read again."""
    disks = _copies(machine)
    broker, journal, _ = machine._recover(*disks)
    reader = RowReader(journal)
    try:
        _contents(broker, reader)
        for _ in range(_FLIPS):
            what = _flip(rng, (disks[0], disks[0]), machine)
            if wrong := _differing(_contents(broker, reader), contents):
                return f"{what} after it was read: {wrong}"
    finally:
        journal.close()
    return ""


def _differing(found: Contents, contents: Contents) -> str:
    wrong = [place for place, message in found.items() if contents.get(place) != message]
    return f"{len(wrong)} rows have another content, such as {wrong[0]}" if wrong else ""


def _at_rest(seed: int) -> Machine:
    """Returns a machine whose broker did some work and is down.

    It was started a few times since, and wrote a turn each time: what damages all of a journal's last turns
    at once makes a journal that was never longer.
    """
    simulation = Simulation(seed)
    machine = simulation._machine
    for _ in range(_OPERATIONS):
        simulation._operation()
    machine.heal()
    if machine.engine is not None:
        machine.kill()
    for _ in range(_STARTS):
        machine.start()
        assert machine.engine is not None
        machine.engine.answer(TakeEpochRequest())
        machine.kill()
    return machine


def _copies(machine: Machine) -> Disks:
    journal_disk, snapshot_disk = machine.disks
    return journal_disk.copy(), snapshot_disk.copy()


def _recovered(machine: Machine, disks: Disks) -> tuple[dict[str, Any], Contents]:
    broker, journal, _ = machine._recover(*disks)
    try:
        # Epochs are what the last turns were about.
        return {**dump_broker(broker), "epoch": None}, _contents(broker, RowReader(journal))
    finally:
        journal.close()


def _contents(broker: Broker, reader: RowReader) -> Contents:
    """Returns every row that can be read. Rows that are refused as damaged are not among them."""
    found = Contents()
    for queue in broker.handle(ListDestinationsRequest(), _NOW_US).destinations:
        opened = broker.handle(OpenBrowseRequest(destination=queue.name), _NOW_US)
        for part in opened.parts:
            fetch = OpenFetch(browse=opened.browse, partition=part.partition, first=0, last=part.last)
            rows = _read(broker, reader, fetch)
            if rows is None:  # one by one, around the damage
                single = (
                    OpenFetch(browse=opened.browse, partition=part.partition, first=n, last=n + 1)
                    for n in range(part.last)
                )
                rows = Rows.joined([row for one in single if (row := _read(broker, reader, one)) is not None])
            places = zip(rows.offsets.tolist(), rows.ids.tolist(), strict=True)
            found.update({(queue.name, part.partition, offset): message for offset, message in places})
            if rows.damaged:
                found[queue.name, part.partition, -1] = rows.damaged
    return found


def _read(broker: Broker, reader: RowReader, fetch: OpenFetch) -> Rows | None:
    """Returns the rows, or None where some of them are refused."""
    taken = []
    for view in broker.handle(ResolveFetch(fetch), _NOW_US):
        try:
            taken.append(rows_of(reader.read(view)))
        except MqError:
            return None
        finally:
            broker.handle(ReleaseView(view), _NOW_US)
    return Rows.joined(taken)


# -- damage: each returns what it did, "" where there was nothing to do it to ------------------------------


def _flip(rng: random.Random, disks: Disks, machine: Machine) -> str:
    disk, name, size = _any_file(rng, disks)
    position = rng.randrange(size)
    disk.flip(name, position, 1 << rng.randrange(8))
    return f"a bit of {name} at {position} flipped"


def _misplace(rng: random.Random, disks: Disks, machine: Machine) -> str:
    """A few sectors hold what was written to others."""
    disk, name, size = _any_file(rng, disks)
    _, source, source_size = _any_file(rng, (disk, disk))
    to, at = (
        rng.randrange(-(-length // disk.sector_bytes)) * disk.sector_bytes for length in (size, source_size)
    )
    length = min(rng.choice([1, 2, 4, 8]) * disk.sector_bytes, size - to)
    return _copied(disk, (source, at, length), (name, to))


def _misdirect(rng: random.Random, disks: Disks, machine: Machine) -> str:
    """A disk wrote a whole turn to the place of another."""
    disk = disks[0]
    turns: list[tuple[str, int, int]] = []
    for name in (name for name in disk.list_names() if name.startswith("segment-")):
        content = disk.open(name).read_at(0, disk.open(name).size())
        starts = [
            at
            for at in range(FIRST_POSITION, len(content), disk.sector_bytes)
            if content.startswith(MAGIC, at)
        ]
        turns += [(name, start, stop - start) for start, stop in itertools.pairwise(starts)]
    turns = turns[:-_STARTS]
    if len(turns) < 2:
        return ""
    source, target = rng.sample(turns, 2)
    return _copied(disk, source, target[:2])


def _copied(disk: MemoryDisk, source: tuple[str, int, int], target: tuple[str, int]) -> str:
    name, at, length = source
    content = disk.open(name).read_at(at, length)
    file = disk.open(target[0])
    if file.read_at(target[1], len(content)) == content:
        return ""
    file.write_at([content], target[1])
    return f"{len(content)} bytes of {name} at {at} in the place of those at {target[1]} in {target[0]}"


def _zero(rng: random.Random, disks: Disks, machine: Machine) -> str:
    disk, name, size = _any_file(rng, disks)
    at = rng.randrange(-(-size // disk.sector_bytes)) * disk.sector_bytes
    disk.open(name).write_at([bytes(min(disk.sector_bytes, size - at))], at)
    return f"the sector of {name} at {at} zeroed"


def _swap(rng: random.Random, disks: Disks, machine: Machine) -> str:
    disk = rng.choice(disks)
    kind = rng.choice(["segment-", "manifest-", "pack-"])
    names = [name for name in disk.list_names() if name.startswith(kind)]
    if len(names) < 2:
        return ""
    one, other = rng.sample(names, 2)
    for old, new in ((one, "aside"), (other, one), ("aside", other)):
        disk.rename(old, new)
    # Both snapshots have a damaged file now: refusing is right.
    numbers = " and ".join(name.partition("-")[2] for name in (one, other))
    return f"{'segments' if kind == 'segment-' else 'files of snapshots'} {numbers} swapped"


def _delete(rng: random.Random, disks: Disks, machine: Machine) -> str:
    disk, name, _ = _any_file(rng, disks)
    last = max(
        (other for other in disk.list_names() if other.startswith("segment-")), default=segment_name(0)
    )
    if name == last:
        return ""  # a journal that ends early looks like one that was never longer
    disk.remove(name)
    return f"{name} deleted"


def _any_file(rng: random.Random, disks: Disks) -> tuple[MemoryDisk, str, int]:
    named = [(disk, name, disk.open(name).size()) for disk in disks for name in disk.list_names()]
    files = [
        file for file in named if file[2] and not file[1].startswith("pool-") and not file[1].endswith(".new")
    ]
    # Snapshots have fewer files than the journal and are needed as much.
    of_snapshots = [file for file in files if file[0] is disks[1]]
    return rng.choice(of_snapshots if of_snapshots and rng.random() < 0.4 else files)


_KINDS: Final[list[Callable[[random.Random, Disks, Machine], str]]] = [
    _flip, _flip, _misplace, _misdirect, _misdirect, _zero, _swap, _delete,
]  # fmt: skip
