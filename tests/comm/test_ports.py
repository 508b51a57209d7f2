"""Listening within a range of ports, which a firewall can know."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks

from fedtorch.comm.job.ports import _DESCRIPTORS, _listens_at, check_ports, gloo_device, listen
from fedtorch.comm.transport.device import make_group
from fedtorch.config.system import SystemConfig, port_range
from fedtorch.core.errors import ConfigError, PreflightError

RANGE = (41000, 41999)


def listening() -> list[int]:
    """The ports at which this process listens."""
    return [port for name in os.listdir(_DESCRIPTORS) if (port := _listens_at(name)) > 0]


def test_gloo_and_sockets_of_our_own_listen_within_the_range() -> None:
    before = listening()
    devices = [gloo_device("127.0.0.1", RANGE) for _ in range(3)]
    sockets = [listen("127.0.0.1", RANGE, 1) for _ in range(3)]
    found = [port for port in listening() if port not in before]
    assert len(found) == 6 and all(RANGE[0] <= port <= RANGE[1] for port in found)
    for each in sockets:
        each.close()
    del devices


def add_up() -> Any:
    rank = int(os.environ["RANK"])
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=not rank, wait_for_workers=False)
    before = listening()
    group = make_group("gloo", store, rank, 3, 20.0, "127.0.0.1", RANGE)
    numbers = torch.full((4,), float(rank))
    group.allreduce([numbers]).wait()
    return numbers.tolist(), [port for port in listening() if port not in before]


@pytest.mark.processes
def test_ranks_whose_gloo_listens_within_a_range_add_up() -> None:
    for numbers, ports in run_ranks(add_up, 3):
        assert numbers == [3.0] * 4
        assert ports and all(RANGE[0] <= port <= RANGE[1] for port in ports)


def test_a_range_that_is_taken_or_that_the_kernel_does_not_give_out_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PreflightError, match=f"no port of system.ports = {port}-{port} is free at 127.0.0.1"):
            listen("127.0.0.1", (port, port), 1)
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    check_ports((first, last))
    with pytest.raises(PreflightError, match="the kernel here gives out the ports"):
        check_ports((first - 1000, first + 8))


@pytest.mark.parametrize("text", ["", "40000", "41000-40000", "40000-40010", "80-4000", "40000-70000", "a-b", "1-2-3"])
def test_what_is_no_range_of_ports_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="system.ports is .*such as `40000-40999`"):
        SystemConfig(ports=text)
    assert port_range("40000-40999") == (40000, 40999) and port_range(None) is None
