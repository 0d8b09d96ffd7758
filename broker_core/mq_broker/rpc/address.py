"""The address that a broker listens on."""

from __future__ import annotations

import socket

from mq_wire.errors import InvalidOption


def check_address(host: str, port: int) -> None:
    """Checks that a server can listen on an address. For `::` it checks all IPv4 and IPv6 addresses, as gRPC
    listens on both.

    Raises:
        InvalidOption: no server can listen there.
    """
    if host == "::":
        check_address("0.0.0.0", port)
    try:
        places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise unusable(f"{bracketed(host)}:{port}", error) from None
    failure: OSError | None = None
    for family, kind, protocol, _, place in places:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(place)
                probe.listen(1)
            return  # one of the addresses is enough
        except OSError as error:
            failure = error
    raise unusable(f"{bracketed(host)}:{port}", failure)


def unusable(address: str, error: BaseException | None) -> InvalidOption:
    """Returns the error for an address that no server can listen on."""
    return InvalidOption(
        f"cannot listen on {address}: {error}; choose another host or port, or stop the program that uses it"
    )


def bracketed(host: str) -> str:
    """Returns a host as it is written before a port: IPv6 addresses are put in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
