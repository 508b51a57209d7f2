"""Bytes that a round moves between host and device, over a stand-in for NCCL, in vectors of the model."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_config, make_runner, pinned
from pretended_device import crossed
from pretended_nccl import install_nccl
from ranks import free_port, run_ranks
from toy import Quadratic

from fedtorch.algorithms.ditto import Ditto
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.fedprox import FedProx
from fedtorch.algorithms.scaffold import Scaffold
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.schema import ClientConfig, EvalConfig
from fedtorch.config.system import SystemConfig

NAMES = tuple("abcdef")
WIDTH = 70_001  # numbers of a vector: more than one chunk of a norm, and a rest
TASK = Quadratic(
    {name: (1.0 + place / 7, place - 2.5, 4) for place, name in enumerate(NAMES)},
    start=(0.25,),
    width=WIDTH,
    noise=0.3,
    double=False,
)
SGD = ClientConfig(optimizer="sgd", lr=0.1, batch_size=2)
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "fedavg": (FedAvg(), {}),
    "evaluated": (FedAvg(), {"eval": EvalConfig(every=1)}),
    "fedprox": (FedProx(mu=0.1), {}),
    "scaffold": (Scaffold(), {}),
    "ditto": (Ditto(), {}),
}


def trained(folder: str, rounds: int, case: str, comm: Any) -> str:
    """The digest of a run."""
    algorithm, changes = CASES[case]
    config = make_config(Path(folder), TASK, algorithm, client=SGD, rounds=rounds, **changes)
    config = replace(config, system=replace(SystemConfig(), server_works=True))
    return str(pinned(make_runner(config, comm)).run().digest)


def a_round(folder: str, ports: list[int]) -> dict[str, tuple[str, float, float]]:
    """Case -> digest after three rounds, and vectors that a third round moves up to this rank's device, and down."""
    device, found, left = install_nccl(), {}, iter(ports)
    for case in CASES:
        seen = []
        for rounds in (2, 3):
            os.environ["MASTER_PORT"] = str(next(left))
            crossed.clear()
            with DistributedCommunicator.join(NAMES, timeout_s=30, device=device, grace_s=0.5) as comm:
                comm.preflight({"config": "same"})
                digest = trained(f"{folder}/{case}{rounds}", rounds, case, comm)
            seen.append(dict(crossed))
        up, down = ((seen[1].get(way, 0) - seen[0].get(way, 0)) / (4 * WIDTH) for way in ("up", "down"))
        found[case] = digest, round(up, 1), round(down, 1)
    return found


def alone() -> dict[str, str]:
    """The digests of one process on the CPU."""
    found = {}
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            found[case] = trained(folder, 3, case, None)
    return found


@pytest.mark.processes
@pytest.mark.timeout(200)
def test_what_a_round_moves_between_host_and_device(tmp_path: Path) -> None:
    ranks = run_ranks(a_round, 3, str(tmp_path), [free_port() for _ in range(2 * len(CASES))], timeout=150)
    (bits,) = run_ranks(alone, 1)
    for found in ranks:
        print({case: moved for case, (_, *moved) in found.items()})
        assert {case: digest for case, (digest, *_) in found.items() if digest} in ({}, bits)
