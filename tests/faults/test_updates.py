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

from fedtorch.config.schema import ClientConfig, ClientsConfig, SystemConfig
from fedtorch.core.errors import ConfigError
from fedtorch.core.update import Report
from fedtorch.main import main
from fedtorch.rounds.aggregation import filter_reports

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


@pytest.mark.long
@pytest.mark.parametrize("kind", ["nan", "explode", "raise"])
@pytest.mark.parametrize("client", CLIENTS)
def test_one_clients_bad_update_is_left_out_and_named(kind: str, client: str, run: Any) -> None:
    where = ",phase=train" if kind == "raise" else ""
    code, ended = run(f"{kind}:client={client},round=1{where}", "clients.max_update_norm=1000")
    reason = {"nan": "its update or its loss is not finite", "explode": "norm", "raise": "failed:InjectedError"}[kind]
    assert code == 0
    assert re.search(f"round 2: client {client} is left out: .*{reason}", ended.log(0))
    assert ended.log(0).count("is left out") == 1


@pytest.mark.processes
def test_an_update_far_above_the_rounds_median_counts_as_failed_on_any_number_of_ranks(
    run: Any, tmp_path: Path
) -> None:
    limit, where = "clients.max_norm_to_median=20", "client=c,round=1"
    code, exploded = run(f"explode:{where}", limit)
    assert code == 0
    assert re.search(r"round 2: client c is left out: .* 20 times the round's median", exploded.log(0))
    assert exploded.log(0).count("is left out") == 1
    digest = exploded.digest
    _, failed = run(f"raise:{where}", limit, f"run.dir={tmp_path / 'failed'}")
    assert Ended(tmp_path / "failed").digest == digest
    _, whole = run("", limit, f"run.dir={tmp_path / 'whole'}")
    assert Ended(tmp_path / "whole").digest != digest and "is left out" not in Ended(tmp_path / "whole").log(0)
    shared = supervise(
        toy_config(tmp_path / "ranks", clients="{per_round: all}"), faults=f"explode:{where}", sets=(limit,)
    )
    assert shared.codes == [[0, 0, 0]] and shared.digest == digest


def test_a_median_needs_three_norms_that_are_not_zero() -> None:
    def left(*norms: float) -> list[float]:
        reports = [Report(f"c{i}", norm=norm, max_abs=norm) for i, norm in enumerate(norms)]
        return [report.norm for report in filter_reports(reports, None, 10)[0]]

    assert left(1, 50) == [1, 50] and left(0, 0, 1, 50) == [0, 0, 1, 50]
    assert left(1, 2, 50) == [1, 2]
    assert left(1, 2, 20) == [1, 2, 20]
    assert left(0, 0, 0, 1, 2, 50) == [0, 0, 0, 1, 2]
    assert left(1, 2, float("nan"), 50) == [1, 2]


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["clients.max_norm_to_median=1"], "clients.max_norm_to_median"),
        (["clients.max_norm_to_median=5", "clients.per_round=2"], "clients.per_round is 2"),
        (["clients.max_norm_to_median=5", "clients.per_round=all", "paradigm=local"], "paradigm is local"),
    ],
)
def test_a_median_limit_that_could_never_work_is_refused(
    sets: list[str], message: str, tmp_path: Path, capsys: Any
) -> None:
    assert main(["--config", str(toy_config(tmp_path)), "--set", *sets]) == 2
    assert message in capsys.readouterr().err
    with pytest.raises(ConfigError, match="max_norm_to_median is set but the task `.*` has 2 clients"):
        make_runner(make_config(tmp_path, FLAT, clients=ClientsConfig(max_norm_to_median=5)))


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
    assert "client b could not be evaluated after round 1: InjectedError; training goes on" in again.log(0)
    assert "injected" not in "".join(line for line in again.log(0).splitlines() if "WARNING" in line)


FLAT = Quadratic(clients={"a": (1.0, 1.0, 13), "b": (2.0, -1.0, 8)}, start=(0.3, -0.7), noise=0.5)


def final_weights(folder: Path, task: Quadratic, **system: Any) -> tuple[torch.Tensor, dict[str, str]]:
    client = ClientConfig(optimizer="sgd", lr=0.1, batch_size=5, accumulation=2)
    runner = make_runner(make_config(folder, task, client=client, system=SystemConfig(**system)))
    runner.run()
    return runner.context.server.weights.clone(), {r.client: r.status for r in runner.context.server.accepted}


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


@pytest.mark.processes
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
    from fedtorch.tracking import records

    losses: dict[int, dict[str, float]] = {}
    for record in records.read(ended.folder / records.NAME):
        if record["kind"] == "client":
            losses.setdefault(record["round"] - 1, {})[record["client"]] = record["loss_mean"]
    return losses
