"""Snapshots: the newest whole one is found, whatever happened to the others."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from mq_broker.journal import snapshots
from mq_broker.journal.recovery import JournalPosition
from mq_broker.journal.snapshots import PACK_AGE_MAX, SnapshotStore
from mq_broker.testing.memory_disk import Crash, MemoryDisk, MemoryFile, crash_at, fail_at
from mq_wire.errors import InternalError, JournalDamaged, StorageFailed, StoreFull
from spark_tests.support.journals import UUID_1


def at(turn: int) -> JournalPosition:
    return JournalPosition(
        segment=turn // 10 + 1, position=4096 + turn * 512, turn=turn, generation=1, trailer_crc=turn * 7
    )


def test_a_pack_that_cannot_be_opened_any_more_is_a_failure_of_the_storage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = SnapshotStore(MemoryDisk(), UUID_1)
    store.write(at(7), [("queue/orders", bytes(100))])

    def gone(_: MemoryDisk, name: str) -> MemoryFile:
        raise OSError(errno.EIO, os.strerror(errno.EIO), name)

    monkeypatch.setattr(MemoryDisk, "open", gone)
    with pytest.raises(StorageFailed, match=r"(pack|manifest)-.* could not be opened: .*Input/output error"):
        store.sizes()


def loaded(store: SnapshotStore) -> tuple[JournalPosition, dict[str, bytes]] | None:
    found = store.load()
    return None if found is None else (found[0], dict(found[1]))


def packs(disk: MemoryDisk) -> list[str]:
    return [name for name in disk.list_names() if name.startswith("pack-")]


GOLDEN = {name: Path(__file__).with_name(f"golden_v1_{name}.bin") for name in ("pack", "manifest")}
FILES = {"pack": "pack-0000000001.mqk", "manifest": "manifest-0000000001.mqm"}


def test_version_1_is_written_as_ever() -> None:
    disk = MemoryDisk()
    SnapshotStore(disk, UUID_1).write(at(7), [("queue/orders", bytes(range(100))), ("größe", b"")])
    for name, golden in GOLDEN.items():
        assert disk.open(FILES[name]).read_at(0, 1 << 20) == golden.read_bytes(), name


def test_version_1_is_read_for_ever() -> None:
    disk = MemoryDisk()
    for name, golden in GOLDEN.items():
        disk.create(FILES[name]).write_at([golden.read_bytes()], 0)
    assert loaded(SnapshotStore(disk, UUID_1)) == (at(7), {"queue/orders": bytes(range(100)), "größe": b""})


def test_nothing_was_ever_written() -> None:
    store = SnapshotStore(MemoryDisk(), UUID_1)
    assert store.load() is None
    assert store.older_position() is None


def test_parts_come_back_changed_kept_and_forgotten() -> None:
    disk = MemoryDisk()
    store = SnapshotStore(disk, UUID_1)
    store.write(at(1), [("a", b"1" * 500), ("b", b"2" * 300), ("c", b"")])
    store.write(at(2), [("b", b"22"), ("größe", b"4")], keep=["a"])
    expected = (at(2), {"a": b"1" * 500, "b": b"22", "größe": b"4"})
    assert loaded(store) == expected
    assert loaded(SnapshotStore(disk, UUID_1)) == expected
    assert SnapshotStore(disk, UUID_1).older_position() == at(1)


def test_a_random_life_against_a_dict(rng: random.Random) -> None:
    disk = MemoryDisk()
    store, model = SnapshotStore(disk, UUID_1), dict[str, bytes]()
    for turn in range(1, 2 * PACK_AGE_MAX):
        changed = {
            f"part {rng.randrange(30)}": rng.randbytes(rng.randrange(2000)) for _ in range(rng.randrange(4))
        }
        gone = [key for key in model if rng.random() < 0.02]
        keep = [key for key in model if key not in changed and key not in gone]
        store.write(at(turn), changed.items(), keep)
        model = {key: model[key] for key in keep} | changed
        if turn % 10 == 0:
            disk = disk.crash(rng)
            store = SnapshotStore(disk, UUID_1)
        assert loaded(store) == (at(turn), model)
        manifests = [name for name in disk.list_names() if name.startswith("manifest-")]
        assert len(manifests) == min(turn, 2) or turn % 10 == 0, "a removal may be lost in a crash"


def test_packs_that_are_mostly_dead_or_old_are_written_anew() -> None:
    disk = MemoryDisk()
    store = SnapshotStore(disk, UUID_1)
    store.write(at(1), [("large", bytes(1000)), ("small", bytes(100))])
    store.write(at(2), [("other", b"x")], keep=["large"])
    assert len(packs(disk)) == 2, "more than half is live"
    store.write(at(3), [("large", bytes(1000))], keep=["other"])
    store.write(at(4), [("small", b"y")], keep=["large", "other"])
    store.write(at(5), [], keep=["large", "other", "small"])
    before = packs(disk)
    for turn in range(6, PACK_AGE_MAX + 3):
        store.write(at(turn), [], keep=["large", "other", "small"])
    assert packs(disk) == before, "nothing changed, nothing written"
    for turn in range(PACK_AGE_MAX + 3, PACK_AGE_MAX + 10):
        store.write(at(turn), [], keep=["large", "other", "small"])
    assert not set(packs(disk)) & set(before)
    assert loaded(SnapshotStore(disk, UUID_1)) == (
        at(PACK_AGE_MAX + 9),
        {"large": bytes(1000), "other": b"x", "small": b"y"},
    )


def test_mostly_dead_packs_move_their_live_part() -> None:
    disk = MemoryDisk()
    store = SnapshotStore(disk, UUID_1)
    store.write(at(1), [("large", bytes(5000)), ("small", bytes(100))])
    first = packs(disk)
    store.write(at(2), [], keep=["small"])
    store.write(at(3), [], keep=["small"])
    assert not set(packs(disk)) & set(first)
    assert loaded(SnapshotStore(disk, UUID_1)) == (at(3), {"small": bytes(100)})


@pytest.mark.parametrize("kind", ["pack", "manifest"])
def test_rot_anywhere_in_the_newest_leads_to_the_older(kind: str) -> None:
    disk = MemoryDisk()
    store = SnapshotStore(disk, UUID_1)
    store.write(at(1), [("a", b"older" * 20)])
    store.write(at(2), [("a", b"newer" * 20), ("b", b"x")])
    name = next(name for name in disk.list_names() if name.startswith(f"{kind}-0000000002"))
    for position in range(disk.open(name).size()):
        disk.flip(name, position)
        again = SnapshotStore(disk, UUID_1)
        assert loaded(again) == (at(1), {"a": b"older" * 20}), position
        assert again.older_position() is None
        assert len(again.damaged) == 1
        assert name in again.damaged[0]
        disk.flip(name, position)
    assert loaded(SnapshotStore(disk, UUID_1)) == (at(2), {"a": b"newer" * 20, "b": b"x"})


def test_after_a_fall_back_the_next_snapshot_builds_on_the_older() -> None:
    disk = MemoryDisk()
    store = SnapshotStore(disk, UUID_1)
    store.write(at(1), [("a", b"1"), ("b", b"1")])
    store.write(at(2), [("a", b"2")], keep=["b"])
    disk.remove("pack-0000000002.mqk")
    store = SnapshotStore(disk, UUID_1)
    assert loaded(store) == (at(1), {"a": b"1", "b": b"1"})
    store.write(at(3), [("a", b"3")], keep=["b"])
    assert "manifest-0000000002.mqm" not in disk.list_names()
    again = SnapshotStore(disk, UUID_1)
    assert loaded(again) == (at(3), {"a": b"3", "b": b"1"})
    assert again.older_position() == at(1)


def test_a_manifest_that_comes_back_without_its_pack_is_not_the_older_one() -> None:
    """It would have segments given back that the one which really is the older one needs."""
    disk = MemoryDisk()
    store = SnapshotStore(disk, UUID_1)
    store.write(at(1), [("a", b"1")])
    store.write(at(2), [("a", b"2")])
    manifest = disk.open("manifest-0000000002.mqm").read_at(0, 1 << 20)
    disk.flip("pack-0000000002.mqk", 130)
    store = SnapshotStore(disk, UUID_1)
    store.write(at(3), [("a", b"3")])
    disk.create("manifest-0000000002.mqm").write_at(
        [manifest], 0
    )  # its removal was lost in a power cut, that of its pack was not
    store = SnapshotStore(disk, UUID_1)
    assert (store.position(), store.older_position()) == (at(3), at(1))


def test_no_whole_snapshot_is_damage_and_no_new_beginning() -> None:
    disk = MemoryDisk()
    store = SnapshotStore(disk, UUID_1)
    store.write(at(1), [("a", b"1")])
    store.write(at(2), [("b", b"1")], keep=["a"])
    broken = ("pack-0000000001.mqk", "manifest-0000000002.mqm")
    for name in broken:
        disk.flip(name, 130)
    with pytest.raises(JournalDamaged, match=r"pack-0000000001\.mqk, position 128: part 'a' of snapshot 1"):
        SnapshotStore(disk, UUID_1)
    for name in broken:
        disk.flip(name, 130)
    with pytest.raises(JournalDamaged):
        SnapshotStore(disk, UUID(int=3))


@pytest.mark.parametrize("restarted", [False, True])
def test_damage_in_one_file_never_spoils_both_snapshots(restarted: bool) -> None:
    """Whatever stays unchanged for long lies in two packs, and no pack serves both manifests."""
    disk = MemoryDisk()
    store = SnapshotStore(disk, UUID_1)
    store.write(at(1), [("always", b"the same" * 40), ("often", b"1")])
    for turn in range(2, 9):
        if restarted:
            store = SnapshotStore(disk, UUID_1)
        changed = [("often", b"%d" % turn)] if turn % 3 else []
        store.write(at(turn), changed, keep=["always"] + ["often"] * (not changed))
        for name in disk.list_names():
            for position in range(0, disk.open(name).size(), 7):
                disk.flip(name, position)
                found = loaded(SnapshotStore(disk, UUID_1))
                assert found is not None
                assert found[0].turn in (turn - 1, turn)
                assert found[1]["always"] == b"the same" * 40
                disk.flip(name, position)


@pytest.mark.parametrize("step", range(1, 16))
def test_a_crash_at_every_step_leaves_the_older_or_the_newer(step: int, rng: random.Random) -> None:
    for _ in range(5):
        disk = MemoryDisk()
        store = SnapshotStore(disk, UUID_1)
        store.write(at(1), [("a", b"1" * 700), ("b", b"1")])
        store.write(at(2), [("a", b"2" * 700)], keep=["b"])
        disk.hook = crash_at(disk.steps + step)
        finished = False
        try:
            store.write(at(3), [("b", b"3" * 900)], keep=["a"])
            finished = True
        except Crash:
            pass
        disk = disk.crash(rng)
        store = SnapshotStore(disk, UUID_1)
        older, newer = (at(2), {"a": b"2" * 700, "b": b"1"}), (at(3), {"a": b"2" * 700, "b": b"3" * 900})
        assert loaded(store) in ([newer] if finished else [older, newer])
        assert store.damaged == []
        store.write(at(4), [("c", b"4")], keep=["a", "b"])
        assert loaded(SnapshotStore(disk.crash(rng), UUID_1)) is not None
        assert not [name for name in disk.list_names() if name.endswith(".new")]


@pytest.mark.parametrize(
    ("what", "count"),
    [("write", 1), ("sync", 1), ("sync", 2), ("rename", 1), ("rename", 2), ("sync_directory", 2)],
)
def test_a_failure_leaves_the_snapshots_as_they_were(what: str, count: int) -> None:
    disk = MemoryDisk()
    store = SnapshotStore(disk, UUID_1)
    store.write(at(1), [("a", b"1")])
    disk.hook = fail_at(what, count)
    with pytest.raises(StorageFailed, match="snapshot 2 of turn 2"):
        store.write(at(2), [("a", b"2")])
    disk.hook = None
    assert loaded(store) == (at(1), {"a": b"1"})
    store.write(at(3), [("a", b"3")])
    assert loaded(SnapshotStore(disk, UUID_1)) == (at(3), {"a": b"3"})


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("before", [0, 1, 2])
def test_whatever_fails_the_next_start_finds_a_whole_snapshot(
    before: int, number: int, rng: random.Random
) -> None:
    """Each step of a snapshot fails, the first one of all and later ones; then the process ends, or the power
    goes.
    """
    states: list[object] = [
        None,
        *((at(turn), {"a": b"%d" % turn * 700, "b": b"always"}) for turn in (1, 2, 3)),
    ]

    def write(store: SnapshotStore, turn: int) -> None:
        changed = [("a", b"%d" % turn * 700)]
        store.write(
            at(turn), changed if turn > 1 else [*changed, ("b", b"always")], ["b"] if turn > 1 else ()
        )

    def fail_at_step(step: int) -> Callable[[str, str, int], None]:
        def hook(_: str, name: str, steps: int) -> None:
            if steps == step:
                raise OSError(number, os.strerror(number), name)

        return hook

    failures = 0
    for step in range(1, 20):
        disk = MemoryDisk(rng=rng)
        store = SnapshotStore(disk, UUID_1)
        for turn in range(1, before + 1):
            write(store, turn)
        disk.hook = fail_at_step(disk.steps + step)
        try:
            write(store, before + 1)
        except (StorageFailed, StoreFull):
            failures += 1
        disk.hook = None
        for after in (disk.reopen(), *(disk.crash(rng) for _ in range(8))):
            found = SnapshotStore(after, UUID_1)
            assert loaded(found) in states[before : before + 2], f"step {step}"
            write(found, 1 if loaded(found) is None else before + 1)
            assert loaded(SnapshotStore(after, UUID_1)) is not None
    assert failures >= 8


def test_no_room() -> None:
    disk = MemoryDisk(capacity_bytes=5000)
    store = SnapshotStore(disk, UUID_1)
    store.write(at(1), [("a", b"1")])
    with pytest.raises(StoreFull, match="snapshot 2"):
        store.write(at(2), [("a", bytes(6000))])
    assert loaded(store) == (at(1), {"a": b"1"})
    assert not [name for name in disk.list_names() if name.endswith(".new")]


@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize("what", ["create", "write", "sync", "rename"])
def test_a_disk_that_is_full_in_the_middle_of_a_snapshot(what: str, limit: int) -> None:
    """ENOSPC at each step that may meet it, also behind what was written: the snapshots stay, the room comes
    back, the next one goes on.
    """
    disk = MemoryDisk()
    store = SnapshotStore(disk, UUID_1)
    store.write(at(1), [("a", b"1"), ("large", bytes(3 << 20))])
    store.write(at(2), [("a", b"2")], keep=["large"])
    before = disk.list_names()
    disk.hook = fail_at(what, limit, errno.ENOSPC)
    parts = [("a", b"3"), *((f"large {number}", bytes(1 << 20)) for number in range(3))]
    try:
        store.write(at(3), parts, keep=["large"])
    except StoreFull:
        disk.hook = None
        assert loaded(store) == (at(2), {"a": b"2", "large": bytes(3 << 20)})
        assert loaded(SnapshotStore(disk, UUID_1)) == (at(2), {"a": b"2", "large": bytes(3 << 20)})
        assert not [name for name in disk.list_names() if name.endswith(".new")]
        store.write(at(4), parts, keep=["large"])
    else:
        assert before != disk.list_names(), "there were fewer such steps"
    disk.hook = None
    found = loaded(SnapshotStore(disk, UUID_1))
    assert found is not None
    assert (found[1]["a"], len(found[1])) == (b"3", 5)


def test_a_part_that_is_too_large_is_refused_before_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "PART_BYTES_MAX", 1000)
    disk = MemoryDisk()
    store = SnapshotStore(disk, UUID_1)
    store.write(at(1), [("a", bytes(1000))])
    with pytest.raises(InternalError, match="part 'b' of snapshot 2 has 1001 bytes, the limit is 1000"):
        store.write(at(2), [("b", bytes(1001))])
    assert loaded(SnapshotStore(disk, UUID_1)) == (at(1), {"a": bytes(1000)})
    monkeypatch.undo()
    store.write(at(3), [("b", bytes(1001))])
    monkeypatch.setattr(snapshots, "PART_BYTES_MAX", 1000)
    assert loaded(SnapshotStore(disk, UUID_1)) == (at(3), {"b": bytes(1001)}), (
        "what an older version wrote is read"
    )


def test_wrong_calls() -> None:
    store = SnapshotStore(MemoryDisk(), UUID_1)
    store.write(at(1), [("a", b"1")])
    with pytest.raises(InternalError, match="'x'"):
        store.write(at(2), [], keep=["x"])
    with pytest.raises(InternalError, match="'a' of snapshot 3"):
        store.write(at(2), [("a", b"2")], keep=["a"])
    with pytest.raises(InternalError, match="given twice"):
        store.write(at(2), [("b", b"2"), ("b", b"2")])
    assert loaded(store) == (at(1), {"a": b"1"})
