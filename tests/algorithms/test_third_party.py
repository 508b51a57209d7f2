"""A user's algorithm in one file, named in YAML: the examples of the documentation."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_config, make_runner
from ranks import run_ranks
from toy import Quadratic

from fedtorch.algorithms.feddyn import FedDyn
from fedtorch.comm.base import Communicator
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.load import load
from fedtorch.config.schema import CheckpointConfig, ClientsConfig

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
CLIENTS = {"a": (1.0, 1.0, 10), "b": (1.0, 2.0, 10), "c": (1.0, 300.0, 10)}
TASK = Quadratic(clients=CLIENTS)


@pytest.fixture(autouse=True)
def _examples_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


def from_yaml(tmp_path: Path, algorithm: str) -> Any:
    path = tmp_path / "mine.yaml"
    path.write_text(f"task: {{name: text2sql}}\nalgorithm: {algorithm}\n")
    return load(path).algorithm


@pytest.mark.long
def test_clipped_average_by_hand(tmp_path: Path) -> None:
    algorithm = from_yaml(tmp_path, '{name: "clipped_average:ClippedAverage", max_norm: 0.15, weights: equal}')
    runner = make_runner(make_config(tmp_path / "run", TASK, algorithm, rounds=1))
    runner.run()
    # one step of rate 0.1 from 0: a moves 0.1, b 0.2 and c 30, of which 0.15 each counts
    assert runner.context.server.weights.item() == pytest.approx((0.1 + 0.15 + 0.15) / 3, rel=1e-12)


@pytest.mark.parametrize("slices", [1, 2])
def test_median_by_hand(slices: int, tmp_path: Path) -> None:
    algorithm = from_yaml(tmp_path, f'{{name: "median:Median", slices: {slices}}}')
    task = Quadratic(clients=CLIENTS, start=(0.0, 1.0, 5.0))
    runner = make_runner(make_config(tmp_path / "run", task, algorithm, rounds=1))
    runner.run()
    assert runner.context.server.weights.tolist() == pytest.approx([0.2, 1.1, 4.7], rel=1e-12)


def test_half_way_by_hand(tmp_path: Path) -> None:
    algorithm = from_yaml(tmp_path, '{name: "half_way:HalfWay", weights: equal}')
    runner = make_runner(make_config(tmp_path / "run", TASK, algorithm, rounds=1))
    runner.run()
    # one step of rate 0.1 from 0: a moves 0.1, b 0.2 and c 30
    assert runner.context.server.weights.item() == pytest.approx((0.05 + 0.1 + 15) / 3, rel=1e-12)


def test_a_sampler_of_ones_own_by_hand(tmp_path: Path) -> None:
    """a alone, then b, then c: one step of rate 0.1 towards each."""
    config = make_config(tmp_path, TASK, clients=ClientsConfig(per_round=1, sampling="by_turns:ByTurns"), rounds=3)
    runner = make_runner(config)
    runner.run()
    w = 0.0
    for optimum in (1.0, 2.0, 300.0):
        w += 0.1 * (optimum - w)
    assert runner.context.server.weights.item() == pytest.approx(w, rel=1e-12)


def own_classes(folder: Path, comm: Communicator | None = None) -> dict[str, list[float]]:
    """What a run with a rule, and one with a sampler of the examples come to."""
    from median import Median  # type: ignore[import-not-found]

    task = Quadratic(clients=CLIENTS, start=(0.0, 1.0, 5.0))
    turns = ClientsConfig(per_round=2, sampling={"name": "by_turns:ByTurns", "first": 2})
    configs = {
        "median": make_config(folder / "1", task, Median(slices=2), rounds=3),
        "by turns": make_config(folder / "2", task, clients=turns, rounds=3),
    }
    found = {}
    for name, config in configs.items():
        runner = make_runner(config, comm)
        runner.run()
        found[name] = runner.context.vectors.flat.tolist()
    return found


def on_three_ranks(folder: str) -> dict[str, list[float]]:
    sys.path.insert(0, str(EXAMPLES))
    with DistributedCommunicator.join(tuple(CLIENTS), timeout_s=20) as comm:
        return own_classes(Path(folder), comm)


@pytest.mark.processes
def test_the_examples_on_three_ranks_give_the_bits_of_one_process(tmp_path: Path) -> None:
    alone = own_classes(tmp_path)
    for found in run_ranks(on_three_ranks, 3, str(tmp_path / "ranks")):
        assert found == alone
    assert all(torch.tensor(weights).isfinite().all() for weights in alone.values())


def test_feddyn_from_the_page_alone_computes_what_the_packages_does(tmp_path: Path) -> None:
    """With sampling, so that some clients keep their g_i; resumed in the middle, too."""
    from bent import Bent  # type: ignore[import-not-found]

    task = Quadratic(clients=CLIENTS, start=(0.0, 1.0, 5.0))
    found = {}
    for name, rule in (("ours", FedDyn(alpha=0.2)), ("page", Bent(alpha=0.2))):
        taken = ClientsConfig(per_round=2)
        config = make_config(tmp_path / name, task, rule, rounds=5, clients=taken, checkpoint=CheckpointConfig(every=2))
        make_runner(config).run()
        runner = make_runner(config)
        runner.run(resume=4)
        found[name] = runner.context.vectors.flat
    assert torch.allclose(found["ours"], found["page"], rtol=1e-12, atol=0)
    assert not torch.allclose(found["ours"], torch.tensor(task.start, dtype=found["ours"].dtype))
