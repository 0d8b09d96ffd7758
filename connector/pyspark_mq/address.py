"""Broker addresses: `mq://host:port`, or several, comma-separated, to be tried in turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, urlsplit

from mq_wire.errors import InvalidOption, Unsupported
from mq_wire.limits import DEFAULT_ADDRESS, DEFAULT_PORT

__all__ = ["DEFAULT_ADDRESS", "Address"]

_SCHEME: Final = "mq"
_TLS_SCHEME: Final = "mq+tls"
_LOOPBACK_HOSTS: Final = frozenset({"localhost", "::1"})


@dataclass(frozen=True, slots=True)
class Address:
    """One or more brokers' endpoints, in the order in which they are tried.

    Attributes:
        endpoints: `host:port` each; IPv6 hosts in brackets.
    """

    endpoints: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Address:
        """Reads `mq://a:7654,b:7654` or `mq://a,mq://b`. A missing port is 7654.

        Raises:
            InvalidOption: another scheme, no host, a bad port, user info, a path or a query.
            Unsupported: `mq+tls://`.
        """
        scheme, separator, rest = text.strip().partition("://")
        if separator and scheme == _TLS_SCHEME:
            raise Unsupported(
                f"address {_without_user_info(text)!r}: {_TLS_SCHEME}:// is not in this version: use {_SCHEME}:// on a trusted network"
            )
        if not separator or scheme != _SCHEME:
            raise InvalidOption(f"address {_without_user_info(text)!r} does not begin with {_SCHEME}://: write it like {DEFAULT_ADDRESS!r}")
        return cls(tuple(_endpoint(part.strip().removeprefix(f"{_SCHEME}://"), text) for part in rest.split(",")))

    def __str__(self) -> str:
        return f"{_SCHEME}://{','.join(self.endpoints)}"

    @property
    def is_loopback(self) -> bool:
        """Whether only processes of this machine can mean the same broker by this address."""
        hosts = [endpoint.rpartition(":")[0].strip("[]") for endpoint in self.endpoints]
        return all(host in _LOOPBACK_HOSTS or host.startswith("127.") for host in hosts)


def _endpoint(part: str, text: str) -> str:
    try:
        url: SplitResult = urlsplit(f"//{part}")
        port = DEFAULT_PORT if url.port is None else url.port
        host = url.hostname
    except ValueError as error:
        raise InvalidOption(f"address {_without_user_info(text)!r}: {error}: write it like {DEFAULT_ADDRESS!r}") from None
    if url.username is not None or url.password is not None:
        raise InvalidOption(
            f"address {_without_user_info(text)!r} holds user info before '@': it would show in plans and logs; leave it out of the address"
        )
    if not host or not 0 < port < 65536 or url.path or url.query or url.fragment:
        raise InvalidOption(f"address {text!r}: {part!r} is not host:port: write it like {DEFAULT_ADDRESS!r}")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _without_user_info(text: str) -> str:
    """For error messages: everything before an '@' may be a secret."""
    scheme, separator, rest = text.partition("://")
    shown = ",".join(part.rpartition("@")[2] for part in (rest if separator else scheme).split(","))
    return f"{scheme}://{shown}" if separator else shown
