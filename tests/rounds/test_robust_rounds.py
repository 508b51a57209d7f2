"""A whole run with a robust rule: what the server steps along, what is recorded, what is reported, over ranks too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness import make_config, make_runner
from ranks import run_ranks
from toy import Quadratic

from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.comm.base import Communicator
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.load import to_yaml
from fedtorch.config.schema import CheckpointConfig, ClientConfig
from fedtorch.report.find_runs import find_runs
from fedtorch.report.robust import robust_markdown
from fedtorch.rounds.aggregation import Decision, reports_for_log

CLIENTS = {"a": (1.0, 1.0, 10), "b": (1.0, 2.0, 10), "c": (1.0, 3.0, 10), "d": (1.0, 400.0, 10), "e": (1.0, 2.5, 20)}
TASK = Quadratic(clients=CLIENTS, start=(0.0, 1.0, 5.0))


def test_the_server_steps_along_the_rules_result(tmp_path: Path) -> None:
    """One step of rate 0.1 from 0: the clients move 0.1, 0.2, 0.3, 40 and, twice the size, 0.25."""
    runner = make_runner(make_config(tmp_path, TASK, FedAvg(robust="median"), rounds=1))
    runner.run()
    assert runner.context.server.weights[0].item() == pytest.approx(0.25, rel=1e-12)


def test_what_each_client_kept_is_in_its_report(tmp_path: Path) -> None:
    runner = make_runner(make_config(tmp_path, TASK, FedAvg(robust={"name": "krum"}), rounds=1))
    found: list[Decision] = []
    step = runner._step
    runner._step = lambda decision: (found.append(decision), step(decision))[1]  # type: ignore[method-assign]
    runner.run()
    kept = {report.client: report.numbers()["kept"] for report in reports_for_log(found[0])}
    assert sorted(kept.values()) == [0, 0, 0, 0, 1] and kept["d"] == 0
    assert found[0].figures == {"robust/left_out": 4, "robust/shrunk": 0}


@pytest.mark.parametrize(
    "rule", [{"name": "krum", "bucket": 2, "attackers": 0}, {"name": "centred_clipping"}], ids=["krum", "centred"]
)
def test_a_resumed_run_with_a_rule_has_the_bits_of_one_in_one_go(rule: dict[str, Any], tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "checkpoint": CheckpointConfig(every=1),
        "client": ClientConfig(optimizer="adamw", lr=0.05, batch_size=4, optimizer_state="keep"),
    }

    def runner(folder: str, rounds: int) -> Any:
        return make_runner(make_config(tmp_path / folder, TASK, FedAvg(robust=rule), rounds=rounds, **settings))

    expected = runner("whole", 4).run()
    runner("parts", 2).run()
    resumed = runner("parts", 4).run(2)
    assert resumed.digest == expected.digest and resumed.rounds == 4


def run_rules(folder: Path, comm: Communicator | None = None) -> dict[str, list[float]]:
    rules: dict[str, dict[str, Any]] = {"median": {}, "krum": {}, "clip": {}, "geometric_median": {"bucket": 2}}
    found = {}
    for name, fields in rules.items():
        task = Quadratic(clients=CLIENTS, start=(0.0, 1.0, 5.0))
        runner = make_runner(make_config(folder / name, task, FedAvg(robust={"name": name, **fields}), rounds=3), comm)
        runner.run()
        found[name] = runner.context.server.weights.tolist()
    return found


def on_a_rank(folder: str) -> dict[str, list[float]]:
    with DistributedCommunicator.join(tuple(CLIENTS), timeout_s=30) as comm:
        comm.preflight({"config": "same"})
        return run_rules(Path(folder), comm)


@pytest.mark.processes
def test_runs_over_ranks_have_the_bits_of_one_process(tmp_path: Path) -> None:
    assert run_ranks(on_a_rank, 3, str(tmp_path / "many"))[0] == run_rules(tmp_path / "one")


def test_the_report_counts_what_was_left_out(tmp_path: Path) -> None:
    config = make_config(tmp_path, TASK, FedAvg(robust={"name": "krum"}))
    config.folder.mkdir(parents=True, exist_ok=True)
    (config.folder / "config.yaml").write_text(to_yaml(config))
    rows = [(1, "a", 1), (1, "b", 0), (2, "a", 0.5), (2, "b", 0)]
    lines = [f'{{"kind":"client","round":{r},"client":"{c}","examples":7,"kept":{k}}}\n' for r, c, k in rows]
    (config.folder / "metrics.jsonl").write_text("".join(lines))
    text = robust_markdown(find_runs([config.folder]).runs)
    assert "| a | 7 | 2 | 0 | 1 | 0.750 |" in text and "| b | 7 | 2 | 2 | 0 | 0.000 |" in text
