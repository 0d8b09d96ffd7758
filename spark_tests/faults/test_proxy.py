"""The proxy passes bytes in order or not at all: behind one that is missing nothing comes, also just before
the connection is reset.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from spark_tests.support.proxy import ANSWERS, Proxy
from spark_tests.support.waiting import wait_until


@pytest.fixture
def ends() -> Iterator[tuple[Proxy, socket.socket, socket.socket]]:
    """A proxy with one connection, its client's end and its broker's."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        proxy = stack.enter_context(Proxy(f"mq://127.0.0.1:{listener.getsockname()[1]}"))
        client = stack.enter_context(
            socket.create_connection(("127.0.0.1", int(proxy.address.rpartition(":")[2])), timeout=10)
        )
        broker = stack.enter_context(listener.accept()[0])
        yield proxy, client, broker


@pytest.mark.parametrize(("fault", "arrives"), [("swallow", b""), ("cut_after", b"s")])
def test_nothing_follows_what_was_swallowed(
    ends: tuple[Proxy, socket.socket, socket.socket],
    fault: str,
    arrives: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proxy, client, broker = ends
    broker.sendall(b"first")
    assert client.recv(5, socket.MSG_WAITALL) == b"first"
    monkeypatch.setattr(proxy, "cut", lambda: None)  # it is about to come
    if fault == "swallow":
        proxy.swallow()
    else:
        proxy.cut_after(1, ANSWERS)
    broker.sendall(b"second")
    wait_until(lambda: proxy.swallowed == len(b"second") - len(arrives))
    proxy._swallowing = False
    broker.sendall(b"third")
    wait_until(lambda: proxy.swallowed == len(b"secondthird") - len(arrives))
    assert _received(client) == arrives


def _received(client: socket.socket) -> bytes:
    client.setblocking(False)
    try:
        return client.recv(100)
    except BlockingIOError:
        return b""
