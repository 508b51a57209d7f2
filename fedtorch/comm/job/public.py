"""Which addresses may be used without saying so: what travels between ranks is not encrypted."""

from __future__ import annotations

import ipaddress
import socket
from contextlib import suppress

from fedtorch.core.errors import PreflightError

_NOT_PUBLIC = tuple(
    map(
        ipaddress.ip_network,
        (
            *("127.0.0.0/8", "::1/128"),  # loopback
            *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"),  # private: RFC 1918, RFC 4193
            *("169.254.0.0/16", "fe80::/10"),  # of one link
            "100.64.0.0/10",  # behind a carrier's NAT, and what overlay networks give out
        ),
    )
)
_ADVICE = (
    "which anybody on the way can read and change: join the machines by WireGuard and use the addresses in it, see "
    "docs/silos.md; or set `system.trust_network: true`, if nobody but you reaches that network"
)


def is_public(address: str) -> bool:
    """Can a numeric address be reached, as far as its number tells, from outside of networks of one's own?"""
    found: ipaddress.IPv4Address | ipaddress.IPv6Address
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return not any(found in network for network in _NOT_PUBLIC)


def problem_of(address: str) -> str:
    """Say what is wrong with announcing an address that is public; empty where it is not."""
    return f"{address} is a public address, {_ADVICE}" if is_public(address) else ""


def refuse_public(host: str, source: str) -> None:
    """Before anything listens or connects there.

    host: a name or an address. source: who asks for it, for the message.

    Raises:
        PreflightError: it is, or means, a public address.
    """
    for address in _addresses(host):
        if is_public(address):
            means = "" if address == host else f", which means {address}"
            raise PreflightError(f"{source} is {host}{means}: a public address, {_ADVICE}")


def _addresses(host: str) -> list[str]:
    with suppress(OSError, UnicodeError):  # a name that means nothing: whoever connects says so
        return [str(place[0]) for *_, place in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    return []
