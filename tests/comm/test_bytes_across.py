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
from fedtorch.algorithms.fednova import FedNova
from fedtorch.algorithms.fedprox import FedProx
from fedtorch.algorithms.scaffold import Scaffold
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.sums.checks import projection
from fedtorch.config.schema import ClientConfig, ClientsConfig, EvalConfig, ServerConfig
from fedtorch.config.system import SystemConfig
from fedtorch.core import devices
from fedtorch.privacy.settings import PrivacyConfig

POISSON = ClientsConfig(sampling="poisson", rate=1.0)
NOISED = PrivacyConfig(kind="client", clip=0.5, noise_multiplier=1.0, delta=1e-2, simulate=True, seed=1)
NAMES = tuple("abcdef")
WIDTH = 140_001  # numbers of a vector: more than one chunk of a norm, and a rest
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
    "each its best": (FedAvg(), {"eval": EvalConfig(every=1, best="per_client")}),
    "fedprox": (FedProx(mu=0.1), {}),
    "fednova": (FedNova(mu=0.1), {}),
    "server's adam": (FedAvg(), {"server": ServerConfig(optimizer="adam", lr=0.1)}),
    "kept momentum": (FedAvg(), {"client": replace(SGD, momentum=0.9, optimizer_state="keep")}),
    "ditto": (Ditto(), {}),
    "scaffold": (Scaffold(), {}),
    "sent one by one": (FedAvg(), {"exchange": "send"}),
    "noised": (FedAvg(weights="equal"), {"clients": POISSON, "privacy": NOISED}),
    "no room": (FedAvg(), {"free": 20 * WIDTH}),
    "room for a part": (FedAvg(), {"megabytes": 1}),
}
OF_SYSTEM = ("exchange", "megabytes", "free")
MOVED = {
    # vectors up and down: at the server's rank, which trains two clients, and at each of the workers
    "fedavg": ((1, 1), (0, 0)),
    "evaluated": ((1, 1), (0, 0)),
    "each its best": ((1, 2), (0, 1)),  # a client's best model is kept in its state
    "fedprox": ((1, 1), (0, 0)),
    "fednova": ((1, 1), (0, 0)),
    "server's adam": ((1, 1), (0, 0)),
    "kept momentum": ((3, 3), (2, 2)),
    "ditto": ((3, 3), (2, 2)),
    # through the host: what lies there, or is looked at there
    "scaffold": ((6, 10), (8, 4)),
    "sent one by one": ((3, 6), (4, 3)),
    "noised": ((3, 6), (4, 3)),
    "no room": ((3, 6), (4, 3)),
    "room for a part": ((2, 2), (1, 1)),
}


def trained(folder: str, case: str, comm: Any) -> tuple[str, dict[str, int]]:
    """The digest of a run of three rounds, and the bytes that the last of them moved across."""
    algorithm, changes = CASES[case]
    settings = {"client": SGD, **{key: value for key, value in changes.items() if key not in OF_SYSTEM}}
    config = make_config(Path(folder), TASK, algorithm, rounds=3, **settings)
    system = SystemConfig(
        server_works=True,
        exchange=changes.get("exchange", "auto"),
        update_memory_mb=changes.get("megabytes", 1024),
    )
    config = replace(config, system=system)
    runner = pinned(make_runner(config, comm))
    one_round, seen = runner._one_round, [dict(crossed)]

    def watched() -> None:
        one_round()
        seen.append(dict(crossed))

    runner._one_round = watched  # type: ignore[method-assign]
    digest = str(runner.run().digest)
    return digest, {way: seen[-1].get(way, 0) - seen[-2].get(way, 0) for way in ("up", "down")}


def a_round(folder: str, ports: list[int]) -> dict[str, tuple[str, tuple[float, float]]]:
    """Case -> digest after three rounds, and vectors that a third round moves up to this rank's device, and down."""
    device, found, left = install_nccl(), {}, iter(ports)
    projection(torch.zeros(1, dtype=torch.float64, device=device))  # whose factors go there once
    for case, (_, changes) in CASES.items():
        devices.free_bytes = lambda device, free=changes.get("free", 0): (free, free)  # type: ignore[misc]
        os.environ["MASTER_PORT"] = str(next(left))
        with DistributedCommunicator.join(NAMES, timeout_s=30, device=device, grace_s=0.5) as comm:
            comm.preflight({"config": "same"})
            digest, moved = trained(f"{folder}/{case}", case, comm)
        found[case] = digest, (round(moved["up"] / (4 * WIDTH), 1), round(moved["down"] / (4 * WIDTH), 1))
    return found


def alone() -> dict[str, str]:
    """The digests of one process on the CPU."""
    found = {}
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            found[case], _ = trained(folder, case, None)
    return found


@pytest.mark.processes
@pytest.mark.timeout(200)
def test_vectors_of_a_round_stay_on_the_device_and_have_the_bits_of_one_process(tmp_path: Path) -> None:
    server, *workers = run_ranks(a_round, 3, str(tmp_path), [free_port() for _ in CASES], timeout=180)
    (bits,) = run_ranks(alone, 1)
    assert {case: digest for case, (digest, _) in server.items()} == bits
    assert len({*bits.values()}) == 8  # FedAvg is there five times, and with equal steps FedNova is FedProx
    for worker in workers:
        assert {case: (server[case][1], worker[case][1]) for case in CASES} == MOVED
