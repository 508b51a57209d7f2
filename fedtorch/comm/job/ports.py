"""Ports to listen at within a range, so that a firewall can know them.

A socket of our own is bound to one. The gloo in torch 2.13 takes no port: it binds its listener to port 0, and the
kernel gives it any port of `net.ipv4.ip_local_port_range`. So devices are made until one has a port of the range. That
takes 5 to 10 ms a try (*measured*, the end of a device's thread), so some seconds where the range has a hundred ports
of the kernel's 28232, and a fraction of a second where it has thousands.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch.distributed as dist

from fedtorch.core.errors import PreflightError

_KERNELS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_DESCRIPTORS = Path("/proc/self/fd")
_LIMIT_S = 60.0
_LEAST = 16  # ports that gloo's and the kernel's ranges must have in common
Ports = tuple[int, int]  # first and last


def check_ports(ports: Ports) -> None:
    """Can gloo get a port of the range on this machine?

    Raises:
        PreflightError: the kernel gives out none of them, or too few.
    """
    try:
        first, last = map(int, _KERNELS.read_text().split())
    except OSError:
        raise PreflightError("system.ports needs Linux, where the kernel says which ports it gives out") from None
    common = min(last, ports[1]) - max(first, ports[0]) + 1
    if common < _LEAST:
        raise PreflightError(
            f"system.ports is {ports[0]}-{ports[1]}, but the kernel here gives out the ports {first}-{last} "
            f"(net.ipv4.ip_local_port_range), and gloo takes what it gives; choose {_LEAST} or more of these, or "
            "change its range"
        )


def listen(host: str, ports: Ports | None, backlog: int) -> socket.socket:
    """A socket that listens at `host`, at a free port of the range; None: at any.

    Raises:
        OSError: none is free.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if ports is None:
        return socket.create_server((host, 0), family=family, backlog=backlog)
    for port in range(ports[1], ports[0] - 1, -1):
        with suppress(OSError):
            return socket.create_server((host, port), family=family, backlog=backlog)
    raise PreflightError(f"no port of system.ports = {ports[0]}-{ports[1]} is free at {host}; choose more of them")


def gloo_device(address: str, ports: Ports | None) -> Any:
    """A device of gloo that listens at `address`, at a port of the range; None: at any.

    Raises:
        PreflightError: no such port was given out in a minute.
    """
    gloo: Any = dist.ProcessGroupGloo  # whose devices are missing in torch 2.13's type stubs
    give_up_at = time.monotonic() + _LIMIT_S
    while True:
        before = set(os.listdir(_DESCRIPTORS)) if ports is not None else set()
        device = gloo.create_device(hostname=address)
        if ports is None:
            return device
        opened = set(os.listdir(_DESCRIPTORS)) - before
        if any(ports[0] <= port <= ports[1] for port in map(_listens_at, opened)):
            return device
        if time.monotonic() > give_up_at:
            raise PreflightError(
                f"the kernel gave gloo no port of system.ports = {ports[0]}-{ports[1]} in {_LIMIT_S:g} s: they are in "
                "use, or too few; choose more of them"
            )


def _listens_at(descriptor: str) -> int:
    """The port at which a descriptor of this process listens; -1: it does not."""
    with suppress(OSError, ValueError):
        if os.readlink(_DESCRIPTORS / descriptor).startswith("socket:"):
            with socket.socket(fileno=os.dup(int(descriptor))) as copy:
                if copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    return int(copy.getsockname()[1])
    return -1
