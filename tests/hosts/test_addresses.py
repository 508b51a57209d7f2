"""Machines whose own names mean a loopback address, as Debian has it, find the one that others reach."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hosts import Network, _as_rank
from ranks import start_ranks
from supervisor import TOY

from fedtorch.main import main

pytestmark = pytest.mark.processes

STATELESS = TOY.replace(", optimizer_state: keep", "")


def write_config(hosts: Network, text: str = STATELESS) -> list[str]:
    """Words for `fedtorch.main`; the run is on each host's own disk."""
    path = hosts.root / "toy.yaml"
    path.write_text(text.replace("DIR", str(hosts.disk / "run")))
    return ["--config", str(path), "--set", "system.timeout=15"]


@pytest.fixture
def stateless(tmp_path: Path) -> str:
    """The digest of the run in one process."""
    path = tmp_path / "alone.yaml"
    path.write_text(STATELESS.replace("DIR", str(tmp_path / "alone")))
    assert main(["--config", str(path)]) == 0
    return digest(tmp_path / "alone")


def digest(run: Path) -> str:
    found: str = json.loads((run / "results.json").read_text())["digest"]
    return found


def test_two_hosts_whose_names_mean_loopback_give_the_bits_of_one_process(
    network: Callable[..., Network], stateless: str
) -> None:
    hosts = network()
    ended = hosts.start(["a", "b", "b"], write_config(hosts)).join()
    assert [outcome.exit_code for outcome in ended] == [0, 0, 0], ended
    assert digest(hosts.hosts["a"].disk / "run") == stateless


def test_the_network_of_the_config_is_taken_and_the_users_own_interface_before_it(
    network: Callable[..., Network], stateless: str
) -> None:
    hosts = network(has_common_disk=True)
    for name, host in hosts.hosts.items():  # a second network, which the config asks for, on the same interface
        number = host.address.rpartition(".")[2]
        hosts.command(name, f"ip addr add 10.84.0.{number}/24 dev eth0")
    words = [*write_config(hosts), "system.interface=10.84.0.0/16"]
    assert [outcome.exit_code for outcome in hosts.start(["a", "b"], words).join()] == [0, 0]
    assert "this rank is reached at 10.84.0.2 (eth0)" in hosts.log("b", 1)
    words[-1:] = ["system.interface=eth7", "--resume", "never"]
    ended = hosts.start(["a", "b"], words, {"GLOO_SOCKET_IFNAME": "eth0"}).join()
    assert [outcome.exit_code for outcome in ended] == [0, 0]
    assert digest(hosts.hosts["a"].disk / "run") == stateless


@pytest.mark.parametrize(
    ("setting", "environ", "message"),
    [
        (
            "system.interface=lo",
            {},
            "rank 0 on host `a` at 127.0.0.1 (lo) would announce the loopback address, which no other host reaches; "
            "rank 1 on host `b` at 127.0.0.1 (lo) would announce the loopback address, which no other host reaches; "
            "set system.interface to the interface or the network that the hosts share, such as `eth1` or `10.0.0.0/8`",
        ),
        ("system.interface=null", {"GLOO_SOCKET_IFNAME": "lo"}, "rank 1 on host `b` at 127.0.0.1 (lo) would announce"),
        (
            "system.interface=172.16.0.0/12",
            {},
            "rank 1 on host `b`: there is no interface or address `172.16.0.0/12` (system.interface or "
            "GLOO_SOCKET_IFNAME), only lo 127.0.0.1, eth0 10.83.0.2",
        ),
    ],
)
def test_an_address_that_others_cannot_reach_is_refused(
    setting: str, environ: dict[str, str], message: str, network: Callable[..., Network]
) -> None:
    hosts = network()
    ended = hosts.start(["a", "b"], [*write_config(hosts), setting], environ).join()
    assert [outcome.exit_code for outcome in ended] == [4, 4]
    assert message in json.loads((hosts.hosts["a"].disk / "run" / "status.json").read_text())["reason"]


def test_two_silos_that_reach_the_server_but_not_each_other_are_named(network: Callable[..., Network]) -> None:
    hosts = network(names=("a", "b", "c"))
    hosts.block("b", "c")
    hosts.block("c", "b")
    assert [outcome.exit_code for outcome in hosts.start(["a", "b", "c"], write_config(hosts)).join()] == [4, 4, 4]
    reason = json.loads((hosts.hosts["a"].disk / "run" / "status.json").read_text())["reason"]
    assert "rank 1 on host `b` at 10.83.0.2 (eth0) cannot connect to 10.83.0.3 (" in reason
    assert "rank 2 on host `c` at 10.83.0.3 (eth0) cannot connect to 10.83.0.2 (" in reason
    assert "open the ports between the hosts to each other" in reason and "sign of life" not in reason


def announcing_loopback(pids: list[int], folder: str, words: list[str]) -> None:
    """A rank whose address was found and tried, and whose ports are then closed."""
    from fedtorch.comm import distributed

    def bind(store: Any, *_: object, **__: object) -> tuple[str, ...]:
        store.address = "127.0.0.1"
        return ("a", "b")

    distributed.bind = bind
    _as_rank([(pid, 0, 1) for pid in pids], folder, words)


@pytest.mark.slow
def test_no_rank_is_called_silent_for_a_connection_that_could_not_be_made(network: Callable[..., Network]) -> None:
    hosts = network()
    pids = [host.pid for host in hosts.hosts.values()]
    ended = start_ranks(
        announcing_loopback,
        2,
        pids,
        str(hosts.disk),
        [*write_config(hosts), "system.timeout=4"],  # for a connection gloo waits five times as long
        environ={"MASTER_ADDR": "10.83.0.1"},
    ).join()
    assert [outcome.exit_code for outcome in ended] == [7, 7]
    logs = [hosts.log("a", 0), hosts.log("b", 1)]
    assert any(f"rank {rank} at 127.0.0.1 (lo) and another one could not connect" in logs[rank] for rank in (0, 1))
    assert not any("sign of life" in log for log in logs)
