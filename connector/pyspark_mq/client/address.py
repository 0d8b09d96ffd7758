"""Broker addresses: `mq://host:port`, or several, comma-separated, to be tried in turn."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, urlsplit

from mq_wire.errors import InvalidOption, Unsupported
from mq_wire.limits import DEFAULT_ADDRESS, DEFAULT_PORT

__all__ = ["DEFAULT_ADDRESS", "Address", "is_loopback", "proxy_of"]

_SCHEME: Final = "mq"
_TLS_SCHEME: Final = "mq+tls"
_LOOPBACK_HOSTS: Final = frozenset({"localhost", "::1"})
_PROXY_VARIABLES: Final = ("grpc_proxy", "https_proxy", "http_proxy")
_NO_PROXY_VARIABLES: Final = ("no_grpc_proxy", "no_proxy")


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
                f"address {_without_user_info(text)!r}: {_TLS_SCHEME}:// is not in this version: use "
                f"{_SCHEME}:// on a trusted network"
            )
        if not separator or scheme != _SCHEME:
            shown = _without_user_info(text)
            is_queue = not separator and not any(mark in text for mark in ":/,@")
            hint = (
                f"; if {shown!r} is a queue, write queue={shown!r}: the queue is missing" if is_queue else ""
            )
            raise InvalidOption(
                f"address {shown!r} does not begin with {_SCHEME}://: write it like {DEFAULT_ADDRESS!r}{hint}"
            )
        return cls(
            tuple(_endpoint(part.strip().removeprefix(f"{_SCHEME}://"), text) for part in rest.split(","))
        )

    def __str__(self) -> str:
        return f"{_SCHEME}://{','.join(self.endpoints)}"

    @property
    def is_loopback(self) -> bool:
        """Whether only processes of this machine can mean the same broker by this address."""
        return all(is_loopback(endpoint) for endpoint in self.endpoints)


def is_loopback(endpoint: str) -> bool:
    """Returns whether `host:port` is on this machine."""
    host = _host(endpoint)
    return host in _LOOPBACK_HOSTS or host.startswith("127.")


def proxy_of(endpoint: str) -> str | None:
    """Returns which HTTP proxy gRPC goes through to reach `host:port`, such as `http://proxy:3128
    (https_proxy)`; None = straight there.
    """
    if is_loopback(endpoint):
        return None
    # The first that is set counts, as in gRPC; it reads small letters only.
    variable = next((name for name in _PROXY_VARIABLES if os.environ.get(name)), None)
    if variable is None:
        return None
    exceptions = next((text for name in _NO_PROXY_VARIABLES if (text := os.environ.get(name))), "")
    if any(_host(endpoint).endswith(suffix.strip()) for suffix in exceptions.split(",") if suffix.strip()):
        return None
    return f"{_without_user_info(os.environ[variable])} ({variable})"


def _host(endpoint: str) -> str:
    return endpoint.rpartition(":")[0].strip("[]")


def _endpoint(part: str, text: str) -> str:
    try:
        url: SplitResult = urlsplit(f"//{part}")
        port = DEFAULT_PORT if url.port is None else url.port
        host = url.hostname
    except ValueError as error:
        raise InvalidOption(
            f"address {_without_user_info(text)!r}: {error}: write it like {DEFAULT_ADDRESS!r}"
        ) from None
    if url.username is not None or url.password is not None:
        raise InvalidOption(
            f"address {_without_user_info(text)!r} holds user info before '@': it would show in plans and "
            f"logs; leave it out of the address"
        )
    if not host or not 0 < port < 65536 or url.path or url.query or url.fragment:
        raise InvalidOption(f"address {text!r}: {part!r} is not host:port: write it like {DEFAULT_ADDRESS!r}")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _without_user_info(text: str) -> str:
    """For error messages: everything before an '@' may be a secret."""
    scheme, separator, rest = text.partition("://")
    shown = ",".join(part.rpartition("@")[2] for part in (rest if separator else scheme).split(","))
    return f"{scheme}://{shown}" if separator else shown
