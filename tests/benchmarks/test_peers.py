"""The comparison with peers: fedtorch's side of it against a plain loop, and what it makes of the weights."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks/ is not part of the package

from benchmarks import peer_experiment, peers
from benchmarks.peer_experiment import SIZES, network, read, read_weights, train, write_weights
from benchmarks.peer_fedtorch import METHODS, cohorts, run


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "experiment.npz"
    peer_experiment.write(path, cohorts())
    return path


def plain_fedavg(file: Path) -> dict[str, Tensor]:
    """The weighted mean of what the clients' plain loops end with, round after round."""
    experiment = read(file)
    weights = {name: value.clone() for name, value in experiment.start.items()}
    for cohort in experiment.cohorts:
        total, mean = sum(SIZES[client] for client in cohort), {n: torch.zeros_like(v) for n, v in weights.items()}
        for client in cohort:
            module = network()
            module.load_state_dict(weights)
            train(module, experiment.rows[client])
            for name, value in module.named_parameters():
                mean[name] += value.detach() * (SIZES[client] / total)
        weights = mean
    return weights


def test_fedtorch_ends_where_a_plain_loop_does_and_not_where_it_began(file: Path, tmp_path: Path) -> None:
    write_weights(tmp_path / "plain.npz", plain_fedavg(file))
    plain, ours = read_weights(tmp_path / "plain.npz"), read_weights(run(file, tmp_path / "runs", "fedavg"))
    assert abs(plain - ours).max() < 1e-6  # fp32, means taken in other ways
    write_weights(tmp_path / "start.npz", read(file).start)
    assert abs(ours - read_weights(tmp_path / "start.npz")).max() > 0.1


def test_every_comparison_is_of_a_method_and_peer_that_there_are() -> None:
    assert {one.ours for one in peers.COMPARISONS} <= set(METHODS)
    for one in peers.COMPARISONS:
        assert f'"{one.theirs}":' in (peers.HERE / f"peer_{one.peer}.py").read_text()
    asked = peers.packages("pfl", None)
    assert asked[0] == "pfl==0.6.0" and asked[1].startswith("torch==")
    assert peers.packages("pfl", Path("there")) == ["pfl==0.6.0"]


@pytest.mark.processes
@pytest.mark.parametrize(("moved", "code", "said"), [(0.0, 0, True), (1e-3, 1, False)])
def test_a_method_that_should_agree_and_does_not_is_exit_code_one(
    moved: float, code: int, said: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_peer(peer: str, python: Path, file: Path, folder: Path) -> None:
        weights = plain_fedavg(file)
        write_weights(folder / f"{peer}_fedavg.npz", {name: value + moved for name, value in weights.items()})

    def run_ours(methods: Sequence[str], file: Path, folder: Path) -> None:
        for method in methods:
            write_weights(folder / f"fedtorch_{method}.npz", plain_fedavg(file))

    monkeypatch.setattr(peers, "environment", lambda peer, *_: Path(sys.executable))
    monkeypatch.setattr(peers, "run_ours", run_ours)
    monkeypatch.setattr(peers, "run_peer", run_peer)
    monkeypatch.setattr(peers, "COMPARISONS", (peers.Comparison("flower", "fedavg", "fedavg"),))
    words = ["--dir", str(tmp_path), "--only", "flower", "--json", str(tmp_path / "figures.json")]
    assert peers.main(words) == code
    (row,) = json.loads((tmp_path / "figures.json").read_text())
    assert row["agrees"] is said and row["difference"] == pytest.approx(moved, abs=1e-6) and row["way"] > 0.1


@pytest.mark.processes
def test_an_environment_that_is_there_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "env-pfl"
    place.mkdir()
    (place / "done").write_text("pfl==0.6.0")
    made: list[Path] = []
    monkeypatch.setattr(peers.venv, "create", lambda path, **_: made.append(path))
    monkeypatch.setattr(peers.subprocess, "run", lambda *_, **__: None)
    assert peers.environment("pfl", tmp_path, tmp_path) == place / "bin" / "python" and not made
    (place / "lib" / "python3.x" / "site-packages").mkdir(parents=True)
    (place / "done").write_text("pfl==0.5.0")
    peers.environment("pfl", tmp_path, tmp_path)
    assert made == [place] and (place / "done").read_text() == "pfl==0.6.0"
