"""What a fork leaves to the child: nothing that works, and a gRPC of its own.

Threads do not survive a fork, locks that they held stay locked, and sequences that two processes count would
be given twice. So everything that was open is told (`forked`), refuses from then on, and is left alone when
the child ends.

gRPC's core does not survive it either: its pollers are gone, and its epoll set is still the parent's. gRPC's
own fork handlers help some of the time and abort the child at others, so they are switched off. The child
loads a copy of the core.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import itertools
import os
import sys
import tempfile
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Protocol

# Read when the first channel is made. Who has set it keeps what was set.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc

from mq_wire.errors import ClientClosed, Unsupported

_CORE: Final = "grpc._cython.cygrpc"
_CHANNEL: Final = "grpc._channel"
#: Either is loaded when a process begins to use gRPC.
_IN_USE: Final = (_CHANNEL, "grpc._server")


class Inheritable(Protocol):
    """Something open that a fork would double."""

    def forked(self, parent: int) -> None:
        """Called in the child: refuses everything from now on. Waits for no lock; makes new ones where its
        methods use them.
        """
        ...


class _State:
    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.core_is_inherited = False
        self.numbers = itertools.count()
        self.watched: dict[int, weakref.ref[Inheritable]] = {}


_state: Final = _State()


def watch(thing: Inheritable) -> None:
    """Has `thing.forked` called in every child that is forked while `thing` exists."""
    number = next(_state.numbers)
    watched = _state.watched
    watched[number] = weakref.ref(thing, lambda _: watched.pop(number, None))


def inherited(what: str, parent: int) -> ClientClosed:
    """Returns the error for using in a child what its parent made."""
    return ClientClosed(
        f"{what} was made before a fork and belongs to process {parent}, this is process {os.getpid()}: "
        f"make it in the child"
    )


def keep_for_ever(thing: object) -> None:
    """Never lets `thing` be destroyed: its destructor would go into the parent's gRPC."""
    if thing is not None:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def open_channel(endpoint: str, options: Sequence[tuple[str, Any]]) -> grpc.Channel:
    """Returns a new channel, of a gRPC that belongs to this process.

    Raises:
        Unsupported: this is a forked process, and no copy of gRPC can be loaded here.
    """
    with _state.lock:
        if _state.core_is_inherited:
            _renew_core()
            _state.core_is_inherited = False
    return grpc.insecure_channel(endpoint, options=options)


def _renew_core() -> None:
    """Loads gRPC's core and its module of channels once more, in the place of those that came with the
    fork.
    """
    old = sys.modules[_CORE]
    keep_for_ever(old)
    keep_for_ever(sys.modules.get(_CHANNEL))
    try:
        core = _copy_of(old)
    except (ImportError, OSError) as error:
        sys.modules[_CORE] = old
        raise Unsupported(
            f"gRPC was in use before this process was forked, and cannot begin anew in it ({error}): start "
            f"the process with "
            "multiprocessing.get_context('spawn'), or use pyspark_mq in children only"
        ) from error
    sys.modules[_CORE] = core
    package: Any = sys.modules["grpc._cython"]
    package.cygrpc = core
    sys.modules.pop(_CHANNEL, None)
    spec = importlib.util.find_spec(_CHANNEL)
    assert spec is not None
    assert spec.loader is not None
    channels = importlib.util.module_from_spec(spec)
    sys.modules[_CHANNEL] = channels
    spec.loader.exec_module(channels)
    whole: Any = grpc
    whole._channel, whole._cygrpc = channels, core


def _copy_of(module: ModuleType) -> ModuleType:
    assert module.__spec__ is not None
    assert module.__spec__.origin is not None
    original = Path(module.__spec__.origin).read_bytes()
    # The dynamic linker knows libraries by their path, so that each copy needs one of its own. The copy stays
    # loaded without its file.
    if hasattr(os, "memfd_create"):
        descriptor, path = os.memfd_create("cygrpc"), ""
    else:
        descriptor, path = tempfile.mkstemp(suffix=".so")
    with os.fdopen(descriptor, "wb") as file:
        file.write(original)
        file.flush()
        try:
            place = path or f"/proc/{os.getpid()}/fd/{descriptor}"
            loader = importlib.machinery.ExtensionFileLoader(_CORE, place)
            spec = importlib.util.spec_from_file_location(_CORE, place, loader=loader)
            assert spec is not None
            copy = importlib.util.module_from_spec(spec)
            # Parts of the core import it by its name.
            sys.modules[_CORE] = copy
            loader.exec_module(copy)
            assert copy.__spec__ is not None
            copy.__spec__.origin = module.__spec__.origin  # for the next fork
        finally:
            if path:
                os.unlink(path)
    return copy


def _in_child() -> None:
    parent, _state.pid = _state.pid, os.getpid()
    _state.lock = threading.Lock()
    _state.core_is_inherited = _state.core_is_inherited or any(name in sys.modules for name in _IN_USE)
    watched = list(_state.watched.values())
    _state.watched.clear()
    for reference in watched:
        thing = reference()
        if thing is not None:
            thing.forked(parent)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
