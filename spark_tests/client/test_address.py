"""Addresses: several endpoints, default port, and clear refusals that repeat no secret."""

from __future__ import annotations

import pytest

from mq_wire.errors import InvalidOption, Unsupported
from pyspark_mq.address import Address


@pytest.mark.parametrize(
    ("text", "endpoints"),
    [
        ("mq://127.0.0.1:7654", ("127.0.0.1:7654",)),
        ("mq://broker.example", ("broker.example:7654",)),
        ("mq://a:1,b:2", ("a:1", "b:2")),
        ("mq://a, mq://b:2", ("a:7654", "b:2")),
        ("mq://[::1]:9", ("[::1]:9",)),
    ],
)
def test_endpoints(text: str, endpoints: tuple[str, ...]) -> None:
    assert Address.parse(text).endpoints == endpoints


@pytest.mark.parametrize(
    "text", ["", "localhost:7654", "http://a:1", "mq://", "mq://a:x", "mq://a:0", "mq://a:70000", "mq://a/queue", "mq://a,,b", "mq://a?x=1"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match=r"mq://"):
        Address.parse(text)


def test_user_info_is_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidOption, match="user info") as caught:
        Address.parse("mq://joe:hunter2@a:1")
    assert "hunter2" not in str(caught.value)
    assert "joe" not in str(caught.value)


def test_tls_is_named_as_not_there_yet() -> None:
    with pytest.raises(Unsupported, match=r"mq\+tls"):
        Address.parse("mq+tls://a:1")


@pytest.mark.parametrize(("text", "loopback"), [("mq://127.0.0.1", True), ("mq://localhost,[::1]", True), ("mq://a,localhost", False)])
def test_loopback(text: str, loopback: bool) -> None:
    assert Address.parse(text).is_loopback is loopback
