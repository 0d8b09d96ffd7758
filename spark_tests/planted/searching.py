"""Searches for planted bugs in a process of their own: what never ends there, or takes all memory, is ended
and told.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Final

from spark_tests.planted.catalogue import BUGS
from spark_tests.planted.runs import RUNS, Finding, Search, first_seed, search
from spark_tests.support.seeds import session_seed

#: One history takes a second or two; a search that goes on for so long beyond its time hangs in one.
_HANG_S: Final = 90.0
_MEMORY_BYTES: Final = 8 << 30


@dataclass(slots=True)
class Searcher:
    """Searches for one bug after the other, in one process as long as that answers."""

    _process: BaseProcess | None = field(default=None, init=False)
    _pipe: Connection | None = field(default=None, init=False)

    def search(self, name: str, seconds: float) -> Search:
        """Plants the bug of this name and looks for it.

        Args:
            name: of the catalogue.
            seconds: no history is begun afterwards.
        """
        pipe = self._begin()
        pipe.send((name, seconds))
        if pipe.poll(seconds + _HANG_S):
            try:
                found = pipe.recv()
            except EOFError:
                assert self._process is not None
                self._process.join()
                died = Finding("the process died", f"exit code {self._process.exitcode}")
                self.end()
                return Search(died, 1, 0.0)
            if isinstance(found, AssertionError):
                raise found
            assert isinstance(found, Search)
            return found
        self.end()
        return Search(Finding("it never ends", f"no history ended for {_HANG_S:.0f} s"), 1, seconds + _HANG_S)

    def end(self) -> None:
        """Ends the process; the next search begins another."""
        if self._process is not None and self._pipe is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
        self._process = self._pipe = None

    def _begin(self) -> Connection:
        if self._pipe is None:
            context = multiprocessing.get_context("spawn")
            self._pipe, other = context.Pipe()
            self._process = context.Process(target=_searches, args=(other, session_seed()), daemon=True)
            self._process.start()
            other.close()
        return self._pipe


@contextmanager
def searcher() -> Iterator[Searcher]:
    """A searcher whose process ends with the block."""
    made = Searcher()
    try:
        yield made
    finally:
        made.end()


def _searches(pipe: Connection, seed: str) -> None:
    os.environ["MQ_SEED"] = seed
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))
    bugs = {bug.name: bug for bug in BUGS}
    while True:
        try:
            name, seconds = pipe.recv()
        except EOFError:
            return
        bug = bugs[name]
        try:
            with bug.planted():
                pipe.send(search(RUNS[bug.run], first_seed(name), seconds=seconds))
        except AssertionError as error:  # the bug does not fit the product
            pipe.send(AssertionError(str(error)))
