"""`eval.overlap`: a round's scores are gathered after the next round's training, and nothing else differs."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness import make_config, make_runner
from ranks import run_ranks
from toy import Quadratic

import fedtorch
from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.scaffold import Scaffold
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.schema import CheckpointConfig, Config, EvalConfig
from fedtorch.core.errors import ConfigError
from fedtorch.rounds.evaluation import Evaluation
from fedtorch.rounds.local_training import ClientTrainer
from fedtorch.rounds.result import Result
from fedtorch.rounds.runner import Runner
from fedtorch.setup.build import build

TASK = Quadratic({"a": (1.0, -1.0, 4), "b": (2.0, 3.0, 2), "c": (0.5, 8.0, 6)}, noise=0.5)


def config_of(folder: Path, overlap: bool, algorithm: Algorithm | None = None, **evaluation: Any) -> Config:
    return make_config(
        folder,
        TASK,
        algorithm,
        rounds=5,
        eval=EvalConfig(overlap=overlap, **evaluation),
        checkpoint=CheckpointConfig(every=1),
    )


def outcome(result: Result) -> tuple[Any, ...]:
    return result.digest, result.best_round, result.scores


def run_on_ranks(folder: Path, overlap: bool) -> tuple[Any, ...]:
    with DistributedCommunicator.join(list(TASK.clients), timeout_s=60) as comm:
        return outcome(make_runner(config_of(folder, overlap), comm).run())


@pytest.mark.parametrize("evaluation", [{}, {"every": 2}, {"on_start": True}, {"merge": False}], ids=str)
def test_results_are_the_same(evaluation: dict[str, Any], tmp_path: Path) -> None:
    plain, late = (
        outcome(make_runner(config_of(tmp_path / str(overlap), overlap, **evaluation)).run())
        for overlap in (False, True)
    )
    assert plain == late
    assert plain[1] is not None


@pytest.mark.processes
def test_results_are_the_same_on_several_ranks(tmp_path: Path) -> None:
    alone = outcome(make_runner(config_of(tmp_path / "alone", False)).run())
    together = run_ranks(run_on_ranks, 3, tmp_path / "ranks", True)
    assert together[0] == alone


def test_scores_wait_until_the_next_clients_are_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def noted(method: Any) -> Any:
        def instead(self: Any) -> Any:
            seen.append(f"{method.__name__} {self.context.round}")
            return method(self)

        return instead

    for owner, name in ((Evaluation, "begin"), (Evaluation, "finish"), (ClientTrainer, "train_cohort")):
        monkeypatch.setattr(owner, name, noted(getattr(owner, name)))
    make_runner(replace(config_of(tmp_path, True), rounds=2)).run()
    # the last one waits for nothing
    assert seen == ["train_cohort 0", "begin 1", "train_cohort 1", "finish 1", "begin 2", "finish 2"]


def evaluated(folder: Path) -> list[tuple[int, str, str, str]]:
    """(round, label, client, metrics) of every recorded evaluation, in a fixed order."""
    (path,) = folder.rglob("metrics.jsonl")
    records = map(json.loads, path.read_text().splitlines())
    kinds = [r for r in records if r["kind"] in ("eval", "eval_total")]
    return sorted((r["round"], r["label"], r.get("client", ""), json.dumps(r["metrics"])) for r in kinds)


def settings(folder: Path) -> dict[str, Any]:
    few = {"task.max_train": 6, "task.max_dev": 2, "task.max_test": 2, "task.output_max_length": 4}
    return {"run.dir": str(folder), "rounds": 4, "eval.overlap": folder.name != "plain", "checkpoint.every": 1, **few}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    """The run without overlap, and its folder."""
    folder = tmp_path_factory.mktemp("overlap") / "plain"
    return fedtorch.run("smoke/fedavg", settings(folder)), folder


@pytest.mark.long
def test_a_job_with_scores_on_the_way_ends_as_without(plain: tuple[Result, Path], tmp_path: Path) -> None:
    whole = fedtorch.run("smoke/fedavg", settings(tmp_path / "whole"))
    assert whole.digest == plain[0].digest
    assert evaluated(plain[1]) == evaluated(tmp_path / "whole")


@pytest.mark.long
@pytest.mark.parametrize(
    ("owner", "method"), [(Evaluation, "finish"), (Evaluation, "_keep_best"), (Runner, "_step")], ids=str
)
def test_a_run_that_dies_with_scores_on_the_way_is_resumed_to_the_same(
    plain: tuple[Result, Path], owner: type, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = getattr(owner, method)

    def cut(self: Any, *args: Any) -> Any:
        if self.context.round == 2:
            monkeypatch.setattr(owner, method, original)
            raise RuntimeError("the power fails")
        return original(self, *args)

    monkeypatch.setattr(owner, method, cut)
    with pytest.raises(RuntimeError, match="the power fails"):
        fedtorch.run("smoke/fedavg", settings(tmp_path / "cut"))
    resumed = fedtorch.run("smoke/fedavg", settings(tmp_path / "cut"))
    assert resumed.digest == plain[0].digest
    found = evaluated(tmp_path / "cut")
    assert found == evaluated(plain[1])
    assert set(Counter(found).values()) == {1}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"patience": 2}, "eval.overlap is true but eval.patience is 2"),
        ({"best": "per_client"}, "eval.overlap is true but eval.best is per_client"),
        ({"point": "trained"}, "set eval.overlap to false or eval.point to received"),
    ],
)
def test_what_needs_the_scores_before_the_next_round_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        EvalConfig(overlap=True, **changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"algorithm": Scaffold()}, "clients keep a state"),
        ({"paradigm": "local"}, "clients send nothing"),
    ],
)
def test_clients_that_keep_something_are_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    config = config_of(tmp_path, True, changes.pop("algorithm", FedAvg()))
    with pytest.raises(ConfigError, match=f"eval.overlap is true but {said}"):
        build(replace(config, **changes), num_ranks=1, rank=0)
