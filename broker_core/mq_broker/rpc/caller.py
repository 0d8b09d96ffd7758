"""Who calls: what the client says of itself with every call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import grpc

from mq_broker.core.handlers.sessions import CLIENT_CHARACTERS
from mq_wire.service import CLIENT_ID_KEY

if TYPE_CHECKING:
    from collections.abc import Sequence

_UNPRINTABLE: Final = "?"


def client_of(context: grpc.ServicerContext) -> str:
    """Returns the client's word about itself; "" where it says nothing. It is shortened, and characters that
    could disturb a log or a terminal are replaced.
    """
    metadata: Sequence[tuple[str, str | bytes]] = context.invocation_metadata() or ()
    for key, value in metadata:
        if key == CLIENT_ID_KEY:
            text = value if isinstance(value, str) else value.decode("ascii", "replace")
            return printable(text[:CLIENT_CHARACTERS])
    return ""


def printable(text: str) -> str:
    """Returns `text` with all characters replaced that are not printed as one character."""
    return "".join(letter if letter.isprintable() else _UNPRINTABLE for letter in text)
