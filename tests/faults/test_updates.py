"""What a client can do wrong in its own work: NaN, an exploding update, an error, no memory, a slow machine."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_config, make_runner
from supervisor import Ended, supervise, toy_config
from toy import Quadratic

from fedtorch.config import ClientConfig, SystemConfig
from fedtorch.main import main

CLIENTS = ("a", "b", "c", "d")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the toy config in this process with faults; (exit code, how it ended)."""

    def start(faults: str, *sets: str) -> tuple[int, Ended]:
        monkeypatch.setenv("FEDTORCH_TESTING", "1")
        monkeypatch.setenv("FEDTORCH_FAULTS", faults)
        config = toy_config(tmp_path, clients="{per_round: all}")
        return main(["--config", str(config), *(["--set", *sets] if sets else [])]), Ended(tmp_path / "run")

    return start


@pytest.mark.parametrize("kind", ["nan", "explode", "raise"])
@pytest.mark.parametrize("client", CLIENTS)
def test_one_clients_bad_update_is_left_out_and_named(kind: str, client: str, run: Any) -> None:
    where = ",phase=train" if kind == "raise" else ""
    code, ended = run(f"{kind}:client={client},round=1{where}", "clients.max_update_norm=1000")
    reason = {"nan": "its update or its loss is not finite", "explode": "norm", "raise": "failed:InjectedError"}[kind]
    assert code == 0
    assert re.search(f"round 2: client {client} is left out: .*{reason}", ended.log(0))
    assert ended.log(0).count("is left out") == 1


@pytest.mark.parametrize("kind", ["nan", "explode"])
def test_bad_updates_of_all_clients_end_the_run_with_the_weights_as_they_were(kind: str, run: Any) -> None:
    code, ended = run(kind, "clients.max_update_norm=1000", "rounds=9")
    assert code == 5 and ended.status["code"] == 5
    assert ended.log(0).count("the server takes no step") == 3
    weights = [torch.Tensor(list(found)) for found in checkpointed_weights(ended)]
    assert weights and all(torch.equal(w, torch.tensor([0.3, -0.7, 1.1])) for w in weights)


def checkpointed_weights(ended: Ended) -> list[Any]:
    from safetensors.torch import load_file

    files = ended.folder.glob("checkpoints/round_*/server.safetensors")
    return [load_file(path)["weights"].tolist() for path in files]


def test_a_bad_update_can_end_the_run(run: Any) -> None:
    assert run("nan:client=c,round=1", "clients.on_failure=stop")[0] == 6


def test_a_metric_that_raises_costs_a_score_and_not_the_training(run: Any) -> None:
    code, plain = run("")
    assert code == 0
    digest = plain.digest
    code, ended = run("raise:phase=evaluate,client=b", f"run.dir={plain.folder.parent / 'again'}")
    again = Ended(plain.folder.parent / "again")
    assert code == 0 and again.digest == digest
    assert "client b could not be judged after round 1: InjectedError; training goes on" in again.log(0)
    assert "injected" not in "".join(line for line in again.log(0).splitlines() if "WARNING" in line)


FLAT = Quadratic(clients={"a": (1.0, 1.0, 13), "b": (2.0, -1.0, 8)}, start=(0.3, -0.7), noise=0.5)


def final_weights(folder: Path, task: Quadratic, **system: Any) -> tuple[torch.Tensor, dict[str, str]]:
    client = ClientConfig(optimizer="sgd", lr=0.1, batch_size=5, accumulation=2)
    runner = make_runner(make_config(folder, task, client=client, system=SystemConfig(**system)))
    runner.run()
    return runner.rank.server.weights.clone(), {r.client: r.status for r in runner.rank.server.accepted}


def test_out_of_memory_is_tried_again_in_halves_with_the_same_mean_gradient(tmp_path: Path, caplog: Any) -> None:
    whole, _ = final_weights(tmp_path / "whole", FLAT)
    halves, accepted = final_weights(tmp_path / "halves", replace(FLAT, memory=3))  # 5 examples as 3 and 2
    assert accepted == {"a": "ok", "b": "ok"}
    # the parts are added up in another order; fp64
    assert torch.allclose(whole, halves, rtol=1e-12, atol=1e-12)
    assert "client a ran out of memory and is tried again with half the micro-batch" in caplog.text


@pytest.mark.parametrize(("memory", "retry"), [(3, False), (2, True)])
def test_out_of_memory_again_or_without_a_retry_is_a_failed_client(
    memory: int, retry: bool, tmp_path: Path, caplog: Any
) -> None:
    weights, accepted = final_weights(tmp_path, replace(FLAT, memory=memory), oom_retry=retry)
    assert accepted == {} and torch.equal(weights, torch.tensor([0.3, -0.7], dtype=torch.float64))
    assert "client a is left out: failed:OutOfMemoryError" in caplog.text


def test_a_retry_leaves_the_dropout_of_other_clients_alone(tmp_path: Path) -> None:
    """`d` comes after `a` on its rank; what it draws depends on its own seed."""
    plain = supervise(toy_config(tmp_path / "plain", clients="{per_round: all}"), 2)
    slow = "oom:phase=train,client=a,round=1,step=1;sleep:phase=train,client=b,round=2,step=1,seconds=1.5"
    retried = supervise(toy_config(tmp_path / "oom", clients="{per_round: all}"), 3, faults=slow)
    assert (plain.codes, retried.codes) == ([[0, 0]], [[0, 0, 0]])
    assert "client a ran out of memory" in "".join(retried.log(rank) for rank in (1, 2))
    losses = [ended_losses(ended) for ended in (plain, retried)]
    assert losses[0][1].keys() == losses[1][1].keys()
    assert {c for c in losses[0][1] if losses[0][1][c] != losses[1][1][c]} == {"a"}
    waited = re.search(r"round 3: waited longest for worker \d \([^)]*b[^)]*\): \S+ s, (\S+) s longer", retried.log(0))
    assert waited and float(waited[1]) > 0.5


def ended_losses(ended: Ended) -> dict[int, dict[str, float]]:
    """Round -> client -> mean loss."""
    from fedtorch import records

    losses: dict[int, dict[str, float]] = {}
    for record in records.read(ended.folder / records.NAME):
        if record["kind"] == "client":
            losses.setdefault(record["round"] - 1, {})[record["client"]] = record["loss_mean"]
    return losses
