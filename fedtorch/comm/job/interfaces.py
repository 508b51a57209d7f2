"""The addresses of this machine, and which of them is used on the way to another one."""

from __future__ import annotations

import ipaddress
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")
"""What a job whose ranks are all on one machine calls it."""
_ANY_PORT = 9  # nothing is sent there
_FAMILIES = (socket.AF_INET, socket.AF_INET6)


class Interface(NamedTuple):
    """A network interface with one of its addresses."""

    name: str
    """As `ip link` shows it; empty where it is not known."""
    address: str
    """IPv4 or IPv6."""

    @property
    def is_loopback(self) -> bool:
        """Does the address lead back to this machine from everywhere?"""
        return is_loopback(self.address)

    def __str__(self) -> str:
        return f"{self.address} ({self.name})" if self.name else self.address


def is_loopback(address: str) -> bool:
    """Does a numeric address mean the machine that uses it?"""
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def network_name() -> str:
    """Name that all processes with the same network interfaces share, such as those of a machine outside containers."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/net')}"
    except OSError:
        return socket.gethostname()


def interfaces() -> list[Interface]:
    """Every address of this machine, IPv4 first; those that count on one link only are left out."""
    found = [
        (of.family, Interface(name, of.address.partition("%")[0]))
        for name, addresses in psutil.net_if_addrs().items()
        for of in addresses
        if of.family in _FAMILIES and not ipaddress.ip_address(of.address.partition("%")[0]).is_link_local
    ]
    return [interface for family in _FAMILIES for of, interface in found if of == family]


def is_own(address: str) -> bool:
    """Is it an address, and no name, that an interface of this machine has?"""
    return any(found.address == address for found in interfaces())


def towards(host: str) -> Interface | None:
    """The interface by which this machine reaches `host`, a name or an address; None if it knows no way."""
    with suppress(OSError, UnicodeError):
        for family, _, _, _, place in socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM):
            with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as sock:
                sock.connect(place)  # sends nothing: the kernel looks up the route
                return named(sock.getsockname()[0])
    return None


def named(address: str) -> Interface:
    """An address of this machine with the interface that has it."""
    return next((found for found in interfaces() if found.address == address), Interface("", address))


def find(wanted: str) -> Interface | None:
    """The first address of the interface `wanted`, or the first in the network `wanted`, such as 10.0.0.0/8."""
    try:
        network = ipaddress.ip_network(wanted, strict=False)
    except ValueError:
        return next((found for found in interfaces() if found.name == wanted), None)
    return next((found for found in interfaces() if ipaddress.ip_address(found.address) in network), None)
