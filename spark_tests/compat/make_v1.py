"""Makes what version 0.1.0 leaves behind, for the record: it must be run with the version that it is named
after, and refuses others.

    python -m spark_tests.compat.make_v1 directories checkpoints

A newer version proves itself on what this wrote; written by a newer version it would prove nothing. The wheel
beside it is `make wheel` of the same commit.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Final

from mq_broker import LocalBroker
from mq_broker.repair.directory import verify_directory
from spark_tests.compat.asking import Asker, Json
from spark_tests.compat.brokers_v1 import as_seen, broker_on, manifests
from spark_tests.compat.inside import entries_in, state_of
from spark_tests.compat.kept import V1, check, pack, save, unpack
from spark_tests.compat.life_v1 import Life
from spark_tests.support.tree import PROJECT
from spark_tests.support.waiting import wait_until

#: The sources that these directories are of.
COMMIT: Final = "aa5eb36"


def refuse_other_versions() -> None:
    """Ends where these are not the sources of version 0.1.0."""
    sources = ["proto", "connector", "broker_core", "setup.py"]
    same = subprocess.run(["git", "diff", "--quiet", COMMIT, "--", *sources], cwd=PROJECT, check=False)
    if same.returncode:
        raise SystemExit(
            f"make_v1 writes what commit {COMMIT} writes, and these sources are others: what it has "
            f"written is kept, in {V1}"
        )


def journal_only(data: pathlib.Path) -> Life:
    """Everything once, and SIGKILL: no snapshot."""
    broker = broker_on(data).start()
    life = Life(broker.address)
    life.begin("one")
    life.go_on("one")
    _end(life, broker, "one")
    assert not manifests(data)
    return life


def snapshot_and_journal(data: pathlib.Path, *, clean: bool = False) -> Life:
    """Everything in the snapshot; a half of everything in it, the other half behind it; everything behind it.
    Then SIGKILL.
    """
    broker = broker_on(data, snapshot_s=1).start()
    life = Life(broker.address)
    life.begin("one")
    life.go_on("one")
    wait_until(lambda: manifests(data), 20)
    broker.stop()
    broker.start()
    life.reach("one.orders")
    life.begin("two")
    wait_until(lambda: len(manifests(data)) > 1, 20)
    broker.stop()  # takes the last snapshot, which everything so far is in
    newest = manifests(data)
    again = broker_on(data, port=int(broker.address.rpartition(":")[2])).start()
    life.reach("one.orders")
    life.go_on("two")
    if not clean:
        life.begin("three")
        life.go_on("three")
    _end(life, again, "two", clean=clean)
    assert clean or manifests(data) == newest
    return life


def clean_stop(data: pathlib.Path) -> Life:
    """The same, but the broker was stopped: the snapshot has everything."""
    return snapshot_and_journal(data, clean=True)


def empty(data: pathlib.Path) -> Life:
    """A broker that nobody ever called."""
    broker = broker_on(data).start()
    life = Life(broker.address)
    life.questions.append({"ask": "browse", "why": "there is none", "destination": "nothing"})
    broker.stop()
    return life


def _end(life: Life, broker: LocalBroker, tag: str, *, clean: bool = False) -> None:
    as_seen(life, broker)
    life.hang(f"{tag}.work")
    if clean:
        assert broker.stop() == 0
    else:
        broker.kill()


def findings_of(data: pathlib.Path) -> list[Json]:
    """What `mq verify` finds in a directory."""
    return [
        {"file": finding.file, "lost": finding.as_json()["lost"]}
        for finding in verify_directory(data).findings
    ]


def _as_durable(seen: Json) -> Json:
    """Leaves out what a crash may forget: duplicates since the last snapshot are counted in memory only."""
    for destination in seen.get("destinations", {}).values():
        del destination["figures"]["duplicate_rows"]
    return seen


def keep(name: str, make: Callable[[pathlib.Path], Life]) -> None:
    """Makes a directory, packs it, and writes down what this version says of a copy of it."""
    with tempfile.TemporaryDirectory(prefix="mq-compat-") as folder:
        data = pathlib.Path(folder) / "data"
        life = make(data)
        archive = V1 / f"{name}.tar.xz"
        pack(data, archive)
        expected: Json = {
            "kind": (make.__doc__ or "").strip(),
            "version": "0.1.0",
            "questions": life.questions,
        }
        expected["state"] = state_of(unpack(archive, pathlib.Path(folder) / "inside"))
        expected["verify"] = findings_of(unpack(archive, pathlib.Path(folder) / "verified"))
        expected["entries"] = entries_in(unpack(archive, pathlib.Path(folder) / "entries"))
        with (
            broker_on(unpack(archive, pathlib.Path(folder) / "copy")) as broker,
            Asker(broker.address) as asker,
        ):
            expected["overview"] = asker.overview(runs=True)
            check(expected["overview"], _as_durable(life.seen), f"{name}: recovered, and before the end")
            expected["answers"] = asker.ask(life.questions)
            after, before = asker.overview(), expected["overview"]["destinations"]
            changed = {
                name: shown for name, shown in after["destinations"].items() if shown != before.get(name)
            }
            expected["overview_after"] = after | {"destinations": changed}
        life.close()
        save(name, expected)
    sys.stdout.write(
        f"{name}: {archive.stat().st_size} bytes, {len(life.questions)} questions, {expected['entries']}\n"
    )


def directories() -> None:
    from spark_tests.compat import worn_v1 as worn

    for make in (
        empty,
        journal_only,
        snapshot_and_journal,
        clean_stop,
        worn.moved_in_the_journal,
        worn.moved_in_the_snapshot,
        worn.quarantined_in_the_snapshot,
        worn.quarantined_in_the_journal,
    ):
        keep(make.__name__, make)


def checkpoints() -> None:
    from spark_tests.compat.queries_v1 import keep_checkpoints

    keep_checkpoints()


if __name__ == "__main__":
    refuse_other_versions()
    for what in sys.argv[1:]:
        {"directories": directories, "checkpoints": checkpoints}[what]()
