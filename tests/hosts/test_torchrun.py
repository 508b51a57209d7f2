"""The commands of docs/cluster.md for two machines, whose own names mean a loopback address."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hosts import Network
from silos import digest, write_config

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
STATIC = ["--node-rank={number}", "--master-addr=10.83.0.1", "--master-port=29500"]
C10D = ["--rdzv-backend=c10d", "--rdzv-endpoint=10.83.0.1:29500", "--rdzv-conf", "is_host={is_host}"]


@pytest.mark.slow
@pytest.mark.parametrize("rendezvous", [STATIC, C10D], ids=["static", "c10d"])
def test_two_machines_under_torchrun(rendezvous: list[str], network: Callable[..., Network], alone: str) -> None:
    hosts = network()
    words = write_config(hosts)
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support")])
    environ = {**os.environ, "PYTHONPATH": path, "FEDTORCH_JOB_SECRET": "known to all ranks of the test"}
    agents = []
    for number, name in enumerate(hosts.hosts):
        told = [word.format(number=number, is_host=int(number == 0)) for word in rendezvous]
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc_per_node=2", *told]
        agents.append(hosts.popen(name, [*torchrun, "-m", "fedtorch.main", *words], env=environ))
    try:
        assert [agent.wait(200) for agent in agents] == [0, 0]
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()
    run = hosts.hosts["a"].disk / "run"
    assert digest(run) == alone
    told = json.loads((run / "status.json").read_text())["command"]
    options = [word.format(number=0, is_host=1) for word in rendezvous]
    assert told.startswith(
        shlex.join(["torchrun", "--nnodes=2", "--nproc_per_node=2", *options, "-m", "fedtorch.main"])
    )


@pytest.mark.slow
def test_agents_that_cannot_tell_who_hosts_the_store_wait_for_each_other(network: Callable[..., Network]) -> None:
    """Why `is_host` is in the documents: without it neither finds its own name at the endpoint's address."""
    hosts = network()
    told = ["--nnodes=2", "--nproc_per_node=1", *C10D[:2], "--rdzv-conf", "read_timeout=5,timeout=5"]
    words = [sys.executable, "-m", "torch.distributed.run", *told, "-m", "no_such_module"]
    agents = [hosts.popen(name, words, stderr=subprocess.PIPE) for name in hosts.hosts]
    said = [agent.communicate(timeout=150)[1] for agent in agents]
    assert all(agent.returncode for agent in agents) and all("RendezvousConnectionError" in text for text in said)
