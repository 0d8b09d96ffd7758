"""Names of destinations, producers and consumers."""

from __future__ import annotations

import re
from typing import Final

from mq_wire.errors import InvalidName
from mq_wire.limits import NAME_BYTES_MAX

_ALLOWED: Final = re.compile(r"[A-Za-z0-9_\-]+(\.[A-Za-z0-9_\-]+)*")
_FREE_TEXT_FORBIDDEN: Final = re.compile(r"[\x00-\x1f\x7f/\\]|\.\.")


def check_destination(name: str) -> str:
    """Returns `name` if it is a valid destination name: words of ASCII letters, digits, `_` and `-`, joined
    by single dots.

    Raises:
        InvalidName: the name breaks a rule, which the error names. `*` and `>` are kept for patterns.
    """
    return _check(
        name,
        "destination",
        _ALLOWED,
        "use words of letters, digits, '_' and '-', joined by single dots, such as 'orders.eu'",
    )


def check_client_name(name: str, kind: str) -> str:
    r"""Returns `name` if it is a valid producer or consumer name: text without control characters, '/', '\'
    and '..'.

    Raises:
        InvalidName: the name breaks a rule.
    """
    if (
        len(name.encode("utf-8", "surrogatepass")) > NAME_BYTES_MAX
        or not name
        or _FREE_TEXT_FORBIDDEN.search(name)
    ):
        raise InvalidName(
            f"{kind} name {_shown(name)} is not allowed: use 1 to {NAME_BYTES_MAX} bytes of text without "
            "control characters, '/', '\\' or '..'"
        )
    return name


def _check(name: str, kind: str, allowed: re.Pattern[str], remedy: str) -> str:
    if len(name.encode("utf-8", "surrogatepass")) > NAME_BYTES_MAX:
        raise InvalidName(f"{kind} name {_shown(name)} has more than {NAME_BYTES_MAX} bytes: shorten it")
    if not allowed.fullmatch(name):
        raise InvalidName(f"{kind} name {_shown(name)} is not allowed: {remedy}")
    return name


def _shown(name: str) -> str:
    return repr(name if len(name) <= 80 else name[:80] + "...")
