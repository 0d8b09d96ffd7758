"""Work on a thread of its own that moves only when it is told to: from one step of the disk to the next."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Aside:
    """At any moment either this work runs or everything else, so a schedule with it is as repeatable as one
    without.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        # Released by one thread, acquired by the other: cheaper than semaphores.
        self._may_go, self._has_paused = threading.Lock(), threading.Lock()
        self._may_go.acquire()
        self._has_paused.acquire()
        self.done = False
        self._thread = threading.Thread(target=self._run, name="simulated-snapshot", daemon=True)
        self._thread.start()

    def advance(self) -> None:
        """Lets it go on to its next pause, or to its end."""
        self._may_go.release()
        self._has_paused.acquire()
        if self.done:
            self._thread.join()

    def finish(self) -> None:
        """Lets it go on to its end."""
        while not self.done:
            self.advance()

    def pause(self) -> None:
        """Called by the work itself; elsewhere it does nothing."""
        if threading.current_thread() is self._thread:
            self._has_paused.release()
            self._may_go.acquire()

    def _run(self) -> None:
        self._may_go.acquire()
        try:
            self._work()
        finally:
            self.done = True
            self._has_paused.release()
