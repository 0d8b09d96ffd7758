"""Bugs that show where something happens to the data directory of a running broker."""

from __future__ import annotations

from typing import Final

from mq_broker.journal.directory import DataDirectory
from mq_broker.journal.lock import DirectoryLock
from spark_tests.support.planting import Bug, Change

DIRECTORY: Final = (
    Bug(
        "the lock is a file alone",
        "who removes it lets a second broker in",
        (Change(DirectoryLock.hold_folder, "self._lock(folder)", "pass"),),
        "directory",
    ),
    Bug(
        "what stands in the place of a lost folder is taken for it",
        "a new, empty directory under the old name is not noticed",
        (
            Change(
                DirectoryLock.check,
                "os.path.samestat(path.stat(), os.fstat(descriptor))",
                "path.stat() is not None",
            ),
        ),
        "directory",
    ),
    Bug(
        "files of the journal may go",
        "only folders are looked at",
        (Change(DataDirectory.check, "if path.name != in_hand():", "if True:"),),
        "directory",
    ),
    Bug(
        "files of the journal may be cut",
        "only their names are looked at",
        (Change(DataDirectory.check, "if path.name == name and size < before:", "if False:"),),
        "directory",
    ),
)
