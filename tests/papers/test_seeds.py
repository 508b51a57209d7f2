"""FedKSeed, its Pro form and DeComFL: every number of the hand example, and limits in which they are something else."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import make_config, make_runner
from seeds_by_hand import ByHand, Optima, seed_of
from torch import nn
from toy import Point

from fedtorch.algorithms.seeds import history
from fedtorch.algorithms.seeds.draws import drawn
from fedtorch.algorithms.seeds.fedkseed import DeComFL, FedKSeed
from fedtorch.algorithms.seeds.probes import whole
from fedtorch.config.schema import ClientConfig, EngineConfig
from fedtorch.core.directions import numbers
from fedtorch.core.errors import ConfigError
from fedtorch.core.server import ServerState
from fedtorch.core.weights import Partition
from fedtorch.rounds.runner import Runner
from fedtorch.rounds.scalar_record import NAME, Reader
from fedtorch.train.engine import Engine
from fedtorch.train.loop import Step

STEPS = ClientConfig(optimizer="sgd", lr=0.1, steps=2, batch_size=1)
UNIT = 2.0**24  # of A: 16 bits of a number, 8 of the server


def finished(folder: Path, algorithm: FedKSeed, task: Any = None, **changes: Any) -> Runner:
    settings = {"rounds": 2, "client": STEPS, **changes}
    runner = make_runner(make_config(folder, task or Optima(double=False), algorithm, **settings))
    runner.run()
    return runner


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """The lines of rounds."""
    return [json.loads(line) for line in (folder / NAME).read_text().splitlines()[1:]]


def ends(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[float], list[float]]]:
    """(client, where it ended, what it sent) of every training that is still to come."""
    found = []
    update = type(runner.context.algorithm).client_update

    def noted(self: Any, job: Any) -> Any:
        report = update(self, job)
        sent = job.outgoing["sums"].tolist()
        found.append((job.client.name, job.engine.on_cpu().tolist(), sent))
        return report

    monkeypatch.setattr(type(runner.context.algorithm), "client_update", noted)
    return found


def test_the_hand_example_from_the_record_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = make_runner(make_config(tmp_path, Optima(double=False), ByHand(), rounds=2, client=STEPS))
    found = ends(runner, monkeypatch)
    runner.run()
    clients, where, sent = zip(*found)
    assert clients == ("a", "b", "a", "b")
    close = {"abs": 2e-5}  # numbers are rounded to 16 bits
    assert where[0] == pytest.approx([0.2, 0.0], **close) and sent[0] == [-1.0, -1.0, 0.0]
    assert where[1] == pytest.approx([0.0, 0.4], **close) and sent[1] == [-2.0, 0.0, -2.0]
    assert where[2] == pytest.approx([0.28, 0.16], **close) and sent[2] == pytest.approx([-0.7, 0.0, 1.1], **close)
    assert where[3] == pytest.approx([-0.242, 0.542], **close) and sent[3] == pytest.approx([0.0, 3.42, 0.0], **close)
    lines = [json.loads(line) for line in (tmp_path / NAME).read_text().splitlines()]
    assert [line.get("round") for line in lines] == [None, 1, 2]
    first = [place + sum(lines[1]["gaps"][:n]) for n, place in enumerate(lines[1]["gaps"])]
    assert first == [0, 1, 2] and lines[1]["sums"] == [-1.5 * UNIT, -0.5 * UNIT, -1.0 * UNIT]
    for rounds, sums, weights in [
        (1, (-1.5, -0.5, -1.0), (0.1, 0.2)),
        (2, (-1.85, 1.21, -0.45), (0.019, 0.351)),
    ]:
        reader = Reader(tmp_path / NAME)
        for _ in reader.up_to(rounds):
            pass
        assert (reader.sums / UNIT).tolist() == pytest.approx(sums, **close)
        z = np.stack([numbers("sign", runner.context.algorithm.seed(j), 0, 2) for j in range(3)])
        assert (-0.1 * (reader.sums / UNIT) @ z).tolist() == pytest.approx(weights, **close)
    w = runner.context.vectors.weights
    assert w.tolist() == pytest.approx([0.019, 0.351], **close)
    assert [(where[2][i] + where[3][i]) / 2 for i in range(2)] == pytest.approx(w.tolist(), abs=1e-7)
    losses = [0.5 * sum((a - b) ** 2 for a, b in zip(w.tolist(), optimum)) for optimum in ((1, 0), (0, 2))]
    assert losses == pytest.approx([0.542781, 1.359781], **close)


def test_chances_of_the_hand_example() -> None:
    server = ServerState({})
    histories = [(0.0, 1.0, -0.5), (0.0, -2.0), (0.0,)]
    sums = torch.tensor([sum(map(abs, each)) for each in histories], dtype=torch.float64)
    draws = np.array([0, 0, 1])  # besides the initial 0
    history.add(server, sums / 4.0, [(draws, 4.0)])
    means = server.tensors[history.MAGNITUDES] / (server.tensors[history.TIMES] + 1)
    assert means.tolist() == [0.5, 1.0, 0.0]
    assert history.chances(server).tolist() == pytest.approx([0.307196, 0.506480, 0.186324], abs=5e-7)


def test_only_differences_of_means_make_chances() -> None:
    server = ServerState({})
    history.add(server, torch.tensor([3.0, 6.0]), [(np.array([0, 0, 1, 1]), 1.0)])
    assert (server.tensors[history.MAGNITUDES] / (server.tensors[history.TIMES] + 1)).tolist() == [1.0, 2.0]
    assert history.chances(server).tolist() == pytest.approx([1 / (1 + math.e), math.e / (1 + math.e)])


def test_no_seed_is_more_than_e_times_as_likely_as_another() -> None:
    sums = torch.zeros(4096, dtype=torch.float64)
    sums[17] = 1e9
    server = ServerState({})
    history.add(server, sums, [(np.array([17]), 1.0)])
    found = history.chances(server)
    assert float(found[17]) == pytest.approx(6.63e-4, abs=1e-6) and float(found[0]) == pytest.approx(2.44e-4, abs=1e-6)
    assert float(found[17] / found[0]) == pytest.approx(math.e)
    even = ServerState({})
    history.add(even, torch.zeros(4), [(np.array([1]), 1.0)])
    assert history.chances(even).tolist() == [0.25] * 4


def test_draws_go_by_chances_and_are_the_same_everywhere() -> None:
    even = drawn(3, "a", 5, count=4000, of=8)
    assert even.tolist() == drawn(3, "a", 5, count=4000, of=8).tolist() and np.bincount(even, minlength=8).min() > 400
    assert even.tolist() != drawn(3, "b", 5, count=4000, of=8).tolist() != drawn(3, "a", 6, count=4000, of=8).tolist()
    chances = np.array([0.5, 0.0, 0.25, 0.25])
    counts = np.bincount(drawn(3, "a", 5, count=4000, of=4, chances=chances), minlength=4)
    assert counts[1] == 0 and counts[0] == pytest.approx(2000, abs=150)
    larger = np.bincount(drawn(3, "a", 5, count=4000, of=4, chances=8 * chances), minlength=4)
    assert larger.tolist() == counts.tolist()  # what they come to together has no meaning
    assert drawn(3, "a", 5, count=3, of=1).tolist() == [0, 0, 0]


def test_clients_of_decomfl_share_their_draws_from_a_pool_too(tmp_path: Path) -> None:
    for algorithm, is_shared in ((DeComFL(seeds=100), True), (FedKSeed(seeds=100, perturbations=5), False)):
        config = make_config(tmp_path, Optima(double=False), algorithm, client=STEPS)
        bound = make_runner(config).context.algorithm
        assert isinstance(bound, FedKSeed)
        one, other = (bound.drawn(name, 3).tolist() for name in "ab")
        assert (one == other) is is_shared and len(one) == 10
        assert one != bound.drawn("a", 4).tolist()


def test_pro_draws_by_what_was_measured_and_sends_it_up(tmp_path: Path) -> None:
    client = replace(STEPS, steps=4)
    runner = finished(tmp_path, FedKSeed(seeds=8, eps=0.1, pro=True), client=client, rounds=3)
    tensors = runner.context.server.tensors
    assert float(tensors[history.TIMES].sum()) == 2 * 4 * 3
    assert float(tensors["chances"].sum()) == pytest.approx(1) and len(set(tensors["chances"].tolist())) > 2
    assert float(tensors["chances"].max() / tensors["chances"].min()) <= math.e * (1 + 1e-12)


@pytest.mark.parametrize("eps", [1e-2, 1e-4])
def test_the_slope_of_a_fourth_power_is_4_and_4_eps_squared(eps: float) -> None:
    ahead, behind = (1 + eps) ** 4, (1 - eps) ** 4
    assert (ahead - behind) / (2 * eps) == pytest.approx(4 + 4 * eps**2, rel=1e-9)
    narrow = float(np.float32(1 + eps) ** np.float32(4)) - float(np.float32(1 - eps) ** np.float32(4))
    assert narrow / (2 * eps) == pytest.approx({1e-2: 4.0004, 1e-4: 4.00096}[eps], abs=2e-3)


def test_one_step_along_one_new_direction_is_minus_eta_z_z_times_the_gradient(tmp_path: Path) -> None:
    task = Optima({"a": (1.0, 2.0, -3.0)}, start=(0.5, 0.0, 1.0), double=True)
    client = replace(STEPS, steps=1)
    algorithm = DeComFL(perturbations=1, eps=1e-4, bits=20)
    runner = finished(tmp_path, algorithm, task, rounds=1, client=client)
    z, start = numbers("sign", 0, 0, 3), np.array([0.5, 0.0, 1.0])
    gradient = start - np.array([1.0, 2.0, -3.0])
    expected = start - 0.1 * z * (z @ gradient)
    # (f(x + μz) − f(x)) / μ has μ/2 zᵀHz = 1.5e-4 beside the gradient's part, on a quadratic
    assert runner.context.vectors.weights.tolist() == pytest.approx((expected - 0.1 * z * 1.5e-4).tolist(), abs=1e-6)


def test_over_many_directions_a_step_is_on_average_minus_eta_times_the_gradient(tmp_path: Path) -> None:
    task = Optima({"a": (1.0, -2.0, 0.5, 3.0)}, start=(0.0,) * 4, double=True)
    algorithm = FedKSeed(seeds="round", perturbations=2000, eps=0.1)
    runner = finished(tmp_path, algorithm, task, rounds=1, client=replace(STEPS, steps=1))
    found, size = np.array(runner.context.vectors.weights.tolist()), math.sqrt(1 + 4 + 0.25 + 9)
    assert np.abs(found - 0.1 * np.array([1.0, -2.0, 0.5, 3.0])).max() < 0.1 * size * 4 / math.sqrt(2000)


def test_unit_vectors_as_directions_are_coordinate_descent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """K = d: here directions that add to twice a unit vector each, so that two steps move along one coordinate."""
    task = Optima({"a": (1.0, 2.0)}, start=(0.0, 0.0), double=True)
    monkeypatch.setattr(ByHand, "drawn", lambda self, client, round, chances=None: np.array([0, 1]))
    runner = finished(tmp_path, ByHand(bits=20), task, rounds=1, client=replace(STEPS, lr=0.5))
    # z_0 ⟂ z_1: steps along two orthogonal directions of length √2 at rate ½ end at the optimum of the plane
    assert runner.context.vectors.weights.tolist() == pytest.approx([1.0, 2.0], abs=1e-5)


def test_one_seed_moves_along_one_line_and_one_client_is_rebuilt_as_it_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Optima({"a": (1.0, -2.0, 0.5)}, start=(0.2, 0.1, 0.0), double=False)
    line = finished(tmp_path / "line", FedKSeed(seeds=1), task, client=replace(STEPS, steps=1), rounds=4)
    moved = line.context.vectors.weights - torch.tensor([0.2, 0.1, 0.0])
    assert (moved.abs() - moved.abs()[0]).abs().max() < 1e-7 < float(moved.abs()[0])
    runner = make_runner(
        make_config(
            tmp_path / "one", task, FedKSeed(seeds=64, eps=1e-2), rounds=1, client=replace(STEPS, steps=50, lr=0.02)
        )
    )
    found = ends(runner, monkeypatch)
    runner.run()
    assert found[0][1] == pytest.approx(runner.context.vectors.weights.tolist(), abs=1e-6)


def test_a_schedule_is_exact_as_numbers_have_its_share_of_the_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Optima({"a": (1.0, -2.0, 0.5)}, start=(0.2, 0.1, 0.0), double=False)
    client = replace(STEPS, steps=30, lr=0.05, schedule="linear", warmup_steps=3)
    runner = make_runner(make_config(tmp_path, task, FedKSeed(seeds=64, eps=1e-2), rounds=1, client=client))
    found = ends(runner, monkeypatch)
    runner.run()
    assert found[0][1] == pytest.approx(runner.context.vectors.weights.tolist(), abs=1e-6)
    other = make_runner(
        make_config(
            tmp_path / "k", task, FedKSeed(seeds=64, eps=1e-2), rounds=1, client=replace(client, warmup_steps=0)
        )
    )
    other.run()
    assert other.context.vectors.weights.tolist() != runner.context.vectors.weights.tolist()


def told(folder: Path, algorithm: FedKSeed, task: Any = None, **changes: Any) -> tuple[Runner, list[dict[str, float]]]:
    """A finished run, and what its clients' reports said beside the usual, one after the other."""
    reports: list[dict[str, float]] = []

    class Told(type(algorithm)):  # type: ignore[misc]
        def client_update(self, job: Any) -> Any:
            report = super().client_update(job)
            reports.append(dict(report.extra))
            return report

    names = {field.name: getattr(algorithm, field.name) for field in fields(algorithm)}
    return finished(folder, Told(**names), task, **changes), reports


def test_steps_that_differ_too_much_are_left_out_and_numbers_that_are_too_large_are_cut(tmp_path: Path) -> None:
    _, reports = told(tmp_path / "left", replace(ByHand(), grad_clip=1.5))
    # the losses of b differ by 2 in the first round, by 1.95 in the second, so it stays where it is
    assert [report.get("left_out", 0) for report in reports] == [0, 2, 0, 2]
    far = Optima({"a": (3000.0, 500.0)}, double=False)
    cut, (report,) = told(tmp_path / "cut", FedKSeed(seeds=2), far, rounds=1)
    assert report["cut"] == 2 and float(cut.context.server.tensors["sums"].abs().max()) == (2**24 - 1) * 2.0**8
    endless = Optima({"a": (math.inf, 0.0)}, double=False)
    nothing, (report,) = told(tmp_path / "nan", FedKSeed(seeds=2), endless, rounds=1)
    assert report["left_out"] == 2 and nothing.context.vectors.weights.tolist() == [0.0, 0.0]
    assert whole(math.nan, 16) is None and whole(math.inf, 16) is None and whole(2.5 * 2.0**-16, 16) == 2


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_thousand_probes_leave_the_weights_as_they_are(precision: str) -> None:
    from fedtorch.algorithms.seeds.probes import Probes

    torch.manual_seed(0)
    module = nn.Linear(40, 10)
    engine = Engine(module, Partition(), torch.device("cpu"), precision=precision)
    start = engine.snapshot()

    class Task:
        def loss(self, model: nn.Module, batch: torch.Tensor) -> tuple[torch.Tensor, int]:
            return model(batch).float().pow(2).sum(), len(batch)

    engine.module.eval()
    probes = Probes(engine, Task(), start.clone(), "sign", 5e-4)  # type: ignore[arg-type]
    step, seen = Step([torch.randn(3, 40)], 1, 0), set()
    for seed in range(1000):
        probes.begin_step()
        probes.slope(step, seed)
        seen.add(float(engine.flat[0]))
    probes.load()
    assert torch.equal(engine.on_cpu(), start) and torch.equal(probes.weights, start) and len(seen) > 1


@pytest.mark.parametrize("is_told", [True, False])
def test_a_loss_that_draws_at_random_is_refused(is_told: bool, tmp_path: Path, caplog: Any) -> None:
    class Random(Optima):
        draws_in_loss = is_told

        def loss(self, model: nn.Module, batch: torch.Tensor) -> tuple[torch.Tensor, int]:
            assert isinstance(model, Point)
            return ((model.w - batch) ** 2).sum() * torch.rand(()), len(batch)

    if is_told:
        with pytest.raises(ConfigError, match="loss draws at random"):
            finished(tmp_path, FedKSeed(seeds=4), Random(double=False))
    else:
        finished(tmp_path, FedKSeed(seeds=4), Random(double=False))
        assert "the task's loss draws at random, also without dropout" in caplog.text
        assert [line["sums"] for line in lines_of(tmp_path)] == [[], []]  # rounds without a step have lines too


def test_bytes_and_normal_directions_train_too(tmp_path: Path) -> None:
    for kind in ("bytes", "normal"):
        client = replace(STEPS, steps=30, lr=0.02)
        runner = finished(tmp_path / kind, FedKSeed(seeds=30, eps=1e-2, z=kind), client=client, rounds=3)  # type: ignore[arg-type]
        assert runner.context.vectors.weights.tolist() == pytest.approx([0.5, 1.0], abs=0.25)


def test_perturbations_are_measured_at_the_same_weights_and_averaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ByHand, "drawn", lambda self, client, round, chances=None: np.array([0, 1]))
    one = replace(STEPS, steps=1)
    runner = make_runner(
        make_config(tmp_path, Optima(double=False), replace(ByHand(), perturbations=2), rounds=1, client=one)
    )
    found = ends(runner, monkeypatch)
    runner.run()
    assert found[0][2] == [-0.5, -0.5, 0.0]  # −1 along both directions at 0, halved
    assert found[1][2] == [-1.0, 1.0, 0.0]
    assert seed_of((1, 1)) != seed_of((1, -1))


def test_bf16_forward_passes_train(tmp_path: Path) -> None:
    client = replace(STEPS, steps=20, lr=0.02)
    engine = EngineConfig(precision="bf16")
    runner = finished(tmp_path, FedKSeed(seeds=20, eps=5e-2), client=client, engine=engine, rounds=4)
    assert runner.context.vectors.weights.tolist() == pytest.approx([0.5, 1.0], abs=0.4)
