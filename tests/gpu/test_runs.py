"""Whole runs on a GPU: against the CPU, against themselves, and of several ranks."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import SGD, make_config, make_runner
from ranks import run_ranks
from smoke_runs import CONFIGS, SMOKE, run_config
from toy import Quadratic

from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.fedprox import FedProx
from fedtorch.algorithms.scaffold import Scaffold
from fedtorch.config.schema import ClientConfig, EvalConfig, SystemConfig

TASK = Quadratic({"a": (1.0, 2.0, 7), "b": (0.5, -1.0, 5)}, start=(0.0, 1.0), noise=0.3, double=False)
ADAMW = ClientConfig(optimizer="adamw", lr=0.1, batch_size=2, max_grad_norm=0.5, optimizer_state="keep")


def final_weights(folder: Path, device: torch.device, algorithm: Algorithm, hp: ClientConfig, dropout: float) -> Any:
    """(digest, the server's weights) after three rounds."""
    system: Any = SystemConfig(device=device.type)  # type: ignore[arg-type]
    task = replace(TASK, dropout=dropout)
    config = make_config(folder, task, algorithm, client=hp, rounds=3, system=system, eval=EvalConfig(every=1))
    runner = make_runner(config)
    result = runner.run()
    return result.digest, runner.context.server.weights.clone()


@pytest.mark.parametrize(
    ("algorithm", "hp"),
    [
        (FedAvg(), ADAMW),
        (FedAvg(), replace(SGD, batch_size=2, optimizer="adafactor", lr=0.1, scale_parameter=False)),
        (FedProx(mu=0.5), replace(SGD, batch_size=2)),
        (Scaffold(option="I"), replace(SGD, batch_size=2)),
    ],
    ids=["fedavg", "adafactor", "fedprox", "scaffold"],
)
def test_a_run_ends_where_it_ends_on_the_cpu(
    algorithm: Algorithm, hp: ClientConfig, device: torch.device, tmp_path: Path
) -> None:
    _, expected = final_weights(tmp_path / "cpu", torch.device("cpu"), algorithm, hp, 0.0)
    _, found = final_weights(tmp_path / "device", device, algorithm, hp, 0.0)
    assert found.device.type == "cpu"
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)  # other kernels round in another order


def test_two_runs_with_dropout_give_the_same_bits(device: torch.device, tmp_path: Path) -> None:
    digests = {final_weights(tmp_path / str(n), device, FedAvg(), ADAMW, 0.3)[0] for n in range(2)}
    other = final_weights(tmp_path / "without", device, FedAvg(), ADAMW, 0.0)[0]
    assert len(digests) == 1 and other not in digests


def ranks_of_a_run(folder: str, device: str, backend: str) -> Any:
    """Digest and traffic of a small federation, and this rank's log."""
    results = run_config(
        CONFIGS / "smoke" / "fedavg.yaml", Path(folder), f"system.device={device}", f"system.backend={backend}"
    )
    log = Path(folder) / "runs" / "fedavg" / f"log.rank{os.environ['RANK']}.txt"
    return results["digest"], results["traffic"], log.read_text()


def prepared(folder: Path) -> Path:
    """A folder with the synthetic data, which several ranks must not make at once."""
    from fedtorch.data import synthetic

    synthetic.prepare(folder / "data" / "synthetic")
    return folder


@pytest.mark.processes
@pytest.mark.timeout(600)
def test_two_ranks_share_a_gpu_over_gloo_and_say_so_once(device: torch.device, tmp_path: Path) -> None:
    environ = {"LOCAL_WORLD_SIZE": "2", "CUDA_VISIBLE_DEVICES": "0"}
    arguments = (str(prepared(tmp_path)), device.type, "auto")
    found = run_ranks(ranks_of_a_run, 2, *arguments, environ=environ, timeout=500)
    assert found[0][0] == found[1][0]
    said = [log.count("2 ranks of this node share 1 GPU;") for _, _, log in found]
    assert said == ([1, 0] if device.type == "cuda" else [0, 0])


@pytest.mark.processes
@pytest.mark.gpus(2)
@pytest.mark.timeout(600)
def test_nccl_and_gloo_give_the_same_digest(device: torch.device, tmp_path: Path) -> None:
    environ = {"LOCAL_WORLD_SIZE": "2"}
    wanted = "nccl" if device.type == "cuda" else "auto"
    found = []
    for backend in (wanted, "gloo"):
        folder = tmp_path / backend
        folder.mkdir()
        arguments = (str(prepared(folder)), device.type, backend)
        digest, traffic, _ = run_ranks(ranks_of_a_run, 2, *arguments, environ=environ, timeout=250)[0]
        # those up hold reports, whose seconds are not always as long
        found.append((digest, traffic["bytes_down"], traffic["physical_down"], traffic["messages_up"]))
    assert found[0] == found[1]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", SMOKE, ids=lambda path: path.stem)
def test_a_round_of_every_papers_smoke_config(path: Path, device: torch.device, tmp_path: Path) -> None:
    results = run_config(path, tmp_path, f"system.device={device.type}")
    assert results["trained"] and len(results["digest"]) == 64
    for name, (status, loss, norm) in results["trained"].items():
        assert status == "ok" and loss == loss and norm == norm, name
    assert all(average["count"] for average in results["averages"].values())
