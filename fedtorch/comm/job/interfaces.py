"""The addresses of this machine, and which of them is used on the way to another one."""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")
"""What a job whose ranks are all on one machine calls it."""
_ANY_PORT = 9  # nothing is sent there
_DUMP_ADDRESSES = 22  # RTM_GETADDR of <linux/rtnetlink.h>
_NEW_ADDRESS, _DONE, _ERROR = 20, 3, 2
_REQUEST, _DUMP = 0x1, 0x300
_ADDRESS, _LOCAL = 1, 2  # IFA_ADDRESS, which is the other end of a point-to-point link, and IFA_LOCAL


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
    """Every address of this machine, in the kernel's order; empty where there is no Linux to ask."""
    try:
        return list(_from_kernel())
    except (OSError, AttributeError, struct.error):
        return []


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


def _from_kernel() -> Iterator[Interface]:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as sock:  # type: ignore[attr-defined,unused-ignore]
        sock.settimeout(5.0)
        sock.send(struct.pack("=IHHIIB3xI", 24, _DUMP_ADDRESSES, _REQUEST | _DUMP, 1, 0, socket.AF_UNSPEC, 0))
        while True:
            data = sock.recv(1 << 16)
            while len(data) >= 16:
                length, kind = struct.unpack_from("=IH", data)
                if kind in (_DONE, _ERROR):
                    return
                if kind == _NEW_ADDRESS:
                    yield from _address(data[16:length])
                data = data[-(-length // 4) * 4 :]


def _address(message: bytes) -> Iterator[Interface]:
    """Read the address in one message of the kernel; those that count on one link only are left out."""
    family, _, _, _, index = struct.unpack_from("=BBBBI", message)
    found: dict[int, bytes] = {}
    attributes = message[8:]
    while len(attributes) >= 4:
        length, kind = struct.unpack_from("=HH", attributes)
        found[kind] = attributes[4:length]
        attributes = attributes[max(4, -(-length // 4) * 4) :]
    raw = found.get(_LOCAL, found.get(_ADDRESS))
    if raw is not None and family in (socket.AF_INET, socket.AF_INET6):
        address = socket.inet_ntop(family, raw)
        if not ipaddress.ip_address(address).is_link_local:
            yield Interface(socket.if_indextoname(index), address)
