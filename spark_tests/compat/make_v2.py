"""Makes the directories that version 0.2.0 leaves behind, for the record: it must be run with the version
that it is named after, and refuses others.

    python -m spark_tests.compat.make_v2 [name of a directory ...]

In a checkout of that version this folder has to be put in the place of its own.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Final

from spark_tests.compat import worn_v1, worn_v2
from spark_tests.compat.asking import Asker, Json
from spark_tests.compat.brokers_v1 import as_seen, broker_on, manifests
from spark_tests.compat.inside import entries_in, state_of
from spark_tests.compat.kept import V2, check, pack, save, unpack
from spark_tests.compat.life_v1 import Life
from spark_tests.compat.life_v2 import LifeOfTwo
from spark_tests.compat.make_v1 import findings_of
from spark_tests.support.tree import PROJECT
from spark_tests.support.waiting import wait_until

#: The sources that these directories are of.
COMMIT: Final = "fb6408e"


def refuse_other_versions() -> None:
    """Ends where these are not the sources of version 0.2.0."""
    sources = ["proto", "connector", "broker_core", "setup.py"]
    same = subprocess.run(["git", "diff", "--quiet", COMMIT, "--", *sources], cwd=PROJECT, check=False)
    if same.returncode:
        raise SystemExit(
            f"make_v2 writes what commit {COMMIT} writes, and these sources are others: what it has "
            f"written is kept, in {V2}"
        )


def empty(data: pathlib.Path) -> Life:
    """A broker that nobody ever called."""
    broker = broker_on(data).start()
    life = LifeOfTwo(broker.address)
    life.questions.append({"ask": "browse", "why": "there is none", "destination": "nothing"})
    broker.stop()
    return life


def journal_only(data: pathlib.Path) -> Life:
    """Everything once, and SIGKILL: no snapshot."""
    broker = broker_on(data).start()
    life = LifeOfTwo(broker.address)
    life.begin("one")
    life.go_on("one")
    as_seen(life, broker)
    life.hang("one.work")
    broker.kill()
    assert not manifests(data)
    return life


def snapshot_and_journal(data: pathlib.Path) -> Life:
    """A half of everything in the snapshot, the other half behind it. Then SIGKILL."""
    broker = broker_on(data, snapshot_s=1).start()
    life = LifeOfTwo(broker.address)
    life.begin("two")
    wait_until(lambda: manifests(data), 20)
    broker.stop()  # takes the last snapshot, which everything so far is in
    newest = manifests(data)
    again = broker_on(data, port=int(broker.address.rpartition(":")[2])).start()
    life.reach("two.orders")
    life.go_on("two")
    as_seen(life, again)
    life.hang("two.work")
    again.kill()
    assert manifests(data) == newest
    return life


def snapshot_only(data: pathlib.Path) -> Life:
    """Everything once, and a clean stop: the snapshot has everything."""
    broker = broker_on(data, snapshot_s=1).start()
    life = LifeOfTwo(broker.address)
    life.begin("one")
    wait_until(lambda: manifests(data), 20)
    life.go_on("one")
    as_seen(life, broker)
    life.hang("one.work")
    assert broker.stop() == 0
    return life


MAKERS: Final[tuple[Callable[[pathlib.Path], Life], ...]] = (
    empty,
    journal_only,
    snapshot_and_journal,
    snapshot_only,
    worn_v1.moved_in_the_journal,
    worn_v1.moved_in_the_snapshot,
    worn_v1.quarantined_in_the_journal,
    worn_v1.quarantined_in_the_snapshot,
    worn_v2.grown_from_format_1,
    worn_v2.grown_and_stopped,
    worn_v2.forgotten_in_the_journal,
    worn_v2.forgotten_in_the_snapshot,
    worn_v2.repaired,
)


def keep(make: Callable[[pathlib.Path], Life]) -> None:
    """Makes a directory, packs it, and writes down what this version says of a copy of it."""
    name = make.__name__
    with tempfile.TemporaryDirectory(prefix="mq-compat-") as folder:
        data = pathlib.Path(folder) / "data"
        life = make(data)
        archive = V2 / f"{name}.tar.xz"
        pack(data, archive)
        expected: Json = {
            "kind": (make.__doc__ or "").strip(),
            "version": "0.2.0",
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
            if life.seen:
                check(expected["overview"], life.seen, f"{name}: recovered, and before the end")
            expected["answers"] = asker.ask(life.questions)
            after, before = asker.overview(), expected["overview"]["destinations"]
            changed = {
                name: shown for name, shown in after["destinations"].items() if shown != before.get(name)
            }
            expected["overview_after"] = after | {"destinations": changed}
        life.close()
        save(name, expected, V2)
    sys.stdout.write(
        f"{name}: {archive.stat().st_size} bytes, {len(life.questions)} questions, {expected['entries']}\n"
    )


if __name__ == "__main__":
    refuse_other_versions()
    V2.mkdir(exist_ok=True)
    for maker in MAKERS:
        if maker.__name__ in sys.argv[1:] or not sys.argv[1:]:
            keep(maker)
