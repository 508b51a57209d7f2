"""DiLoCo (2311.08105): the outer step by hand and beside torch's, its limits, and configs with its values."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from hashlib import sha256
from math import log
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_config, make_runner
from toy import Quadratic

from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.local import Local
from fedtorch.config.schema import ClientConfig, ServerConfig
from fedtorch.core import state_keys as keys
from fedtorch.core.server import ServerOptimizer, ServerState
from fedtorch.rounds.runner import Runner

ROOT = Path(__file__).parents[2]
OUTER = ServerConfig(optimizer="sgd", lr=0.7, momentum=0.9, nesterov=True)
PLAIN = ServerConfig(optimizer="sgd", lr=1.0)
INNER = ClientConfig(
    optimizer="adamw", lr=4e-3, betas=(0.9, 0.95), weight_decay=0.1, max_grad_norm=1.0, batch_size=4, steps=5,
    optimizer_state="keep", schedule="cosine", schedule_span="run", warmup_steps=3, schedule_floor=0.05,
)  # fmt: skip
CLIENTS = {"a": (1.0, 1.0, 12), "b": (2.0, -1.0, 12), "c": (0.5, 3.0, 12)}
TASK = Quadratic(clients=CLIENTS, start=(0.3, -0.7, 1.1), noise=0.5, double=False)
ALONE = replace(TASK, clients={"a": (2.0, -1.0, 30)})

GRADIENTS = [(1, 2), ("0.5", -1), (0, 1), (0, 0)]
WEIGHTS = [("-0.33", "-4.66"), ("-1.562", "-4.464"), ("-2.3558", "-6.2476"), ("-3.07022", "-7.22284")]


def ran(folder: Path, task: Quadratic = TASK, algorithm: Algorithm | None = None, **changes: Any) -> Runner:
    runner = make_runner(make_config(folder, task, algorithm or FedAvg(weights="equal"), **changes))
    runner.run()
    return runner


def weights(folder: Path, task: Quadratic = TASK, **changes: Any) -> torch.Tensor:
    return ran(folder, task, **changes).context.server.weights.clone()


def test_outer_steps_by_hand_in_exact_arithmetic_and_in_fp32() -> None:
    rate, momentum = Fraction("0.7"), Fraction("0.9")
    exact, velocity = [Fraction(1), Fraction(-2)], [Fraction(0), Fraction(0)]
    server = ServerState({keys.WEIGHTS: torch.tensor([1.0, -2.0])})
    for gradient, expected in zip(GRADIENTS, WEIGHTS, strict=True):
        g = [Fraction(number) for number in gradient]
        velocity = [momentum * v + one for v, one in zip(velocity, g, strict=True)]
        exact = [w - rate * (one + momentum * v) for w, one, v in zip(exact, g, velocity, strict=True)]
        assert exact == [Fraction(number) for number in expected]
        ServerOptimizer(OUTER).step(server, torch.tensor([float(number) for number in gradient]))
        assert server.weights.tolist() == pytest.approx([float(w) for w in exact], rel=3e-7)  # two units of fp32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("nesterov", [True, False])
def test_twenty_outer_steps_have_the_bits_of_torchs_sgd(dtype: torch.dtype, nesterov: bool) -> None:
    drawn = torch.Generator().manual_seed(0)
    theirs = torch.randn(1001, generator=drawn, dtype=dtype).requires_grad_()
    sgd = torch.optim.SGD([theirs], lr=0.7, momentum=0.9, nesterov=nesterov)
    server = ServerState({keys.WEIGHTS: theirs.detach().clone()})
    rule = ServerOptimizer(replace(OUTER, nesterov=nesterov))
    for _ in range(20):
        theirs.grad = torch.randn(1001, generator=drawn, dtype=dtype)
        rule.step(server, theirs.grad.clone())
        sgd.step()
        assert torch.equal(server.weights, theirs.detach())
        assert torch.equal(server.tensors[keys.MOMENTUM], sgd.state[theirs]["momentum_buffer"])


def test_a_constant_gradient_moves_weights_by_rate_over_one_less_momentum_in_the_end() -> None:
    server = ServerState({keys.WEIGHTS: torch.zeros(1, dtype=torch.float64)})
    moved, before = [], 0.0
    for _ in range(200):
        ServerOptimizer(OUTER).step(server, torch.ones(1, dtype=torch.float64))
        moved.append(before - server.weights.item())
        before = server.weights.item()
    assert moved[:4] == pytest.approx([1.33, 1.897, 2.4073, 2.86657], rel=1e-12)
    assert moved[-1] == pytest.approx(0.7 / (1 - 0.9), rel=1e-8)


def test_a_run_steps_as_the_recurrence_along_the_means_of_its_replicas(tmp_path: Path) -> None:
    # one number, one full-batch step of rate .5 on (w − b)²/2: a replica ends at w + (b − w)/2
    task = Quadratic(clients={"a": (1.0, 1.0, 1), "b": (1.0, 4.0, 3)}, start=(2.0,))
    client = ClientConfig(optimizer="sgd", lr=0.5, batch_size=8, steps=1)
    w, v = 2.0, 0.0
    for rounds in range(1, 6):
        g = sum(w - (w + (b - w) / 2) for b in (1.0, 4.0)) / 2
        v = 0.9 * v + g
        w -= 0.7 * (g + 0.9 * v)
        found = weights(tmp_path / str(rounds), task, client=client, server=OUTER, rounds=rounds)
        assert found.tolist() == pytest.approx([w], rel=1e-6)  # updates travel as fp32


def test_rate_one_without_momentum_is_fedavg(tmp_path: Path) -> None:
    same = {"client": INNER, "rounds": 4}
    assert torch.equal(weights(tmp_path / "1", **same), weights(tmp_path / "2", server=PLAIN, **same))
    assert not torch.equal(weights(tmp_path / "3", **same), weights(tmp_path / "4", server=OUTER, **same))


def test_one_inner_step_of_sgd_is_sgd_on_the_mean_gradient(tmp_path: Path) -> None:
    task = replace(TASK, noise=0.0)
    client = ClientConfig(optimizer="sgd", lr=0.1, batch_size=12, steps=1)
    found = weights(tmp_path, task, client=client, server=PLAIN, rounds=20)
    w = torch.tensor(task.start, dtype=torch.float64)
    for _ in range(20):
        w -= 0.1 * sum(a * (w - b) for a, b, _ in CLIENTS.values()) / len(CLIENTS)
    assert torch.allclose(found.double(), w, rtol=1e-6, atol=1e-6)  # weights of fp32


def test_one_replica_alone_is_one_long_run_whatever_its_rounds(tmp_path: Path) -> None:
    same: dict[str, Any] = {"algorithm": Local(), "paradigm": "local"}
    cut = ran(tmp_path / "1", ALONE, client=INNER, rounds=6, **same)
    whole = ran(tmp_path / "2", ALONE, client=replace(INNER, steps=30), rounds=1, **same)
    one, other = (runner.context.store.get("a").tensors[keys.PERSONAL] for runner in (cut, whole))
    assert torch.equal(one, other)


def test_one_replica_through_the_server_is_one_long_run_but_for_the_rounding_of_differences(tmp_path: Path) -> None:
    cut = weights(tmp_path / "1", ALONE, client=INNER, server=PLAIN, rounds=6)
    whole = weights(tmp_path / "2", ALONE, client=replace(INNER, steps=30), server=PLAIN, rounds=1)
    assert torch.allclose(cut, whole, rtol=1e-6, atol=1e-6)  # w − (w − w_i) is not w_i in fp32


@pytest.fixture
def characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The example that measures long rounds, and a folder of its own with the text to be in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "examples"))
    import characters  # type: ignore[import-not-found]

    (tmp_path / "LICENSE").write_bytes((ROOT / "LICENSE").read_bytes())
    return characters


def test_characters_are_those_of_the_licence_in_four_stretches_and_a_last_tenth(characters: Any) -> None:
    text = characters.letters(Path("LICENSE"))
    assert len(text) == 9879 and sha256(text.encode()).hexdigest().startswith("16e24408b05b")
    task = characters.Characters("LICENSE")
    sizes = task.manifest()
    assert [sizes[f"r{number}"]["train"] for number in range(4)] == [2220, 2221, 2221, 2221]
    contexts, following = task.collate(task.load("r0", "train")[:3], True)
    assert contexts.shape == (3, 8) and contexts[1, -1] == following[0]
    total, terms = task.loss(task.build_model(0), task.collate(task.load("r0", "test"), False))
    assert float(total.detach()) / terms == pytest.approx(log(27), abs=0.15)  # nothing is known yet


@pytest.mark.slow
def test_rounds_of_characters_come_out_in_the_order_of_the_page_and_near_its_figures(characters: Any) -> None:
    found = "\n".join(characters.table("LICENSE"))
    page = (ROOT / "docs" / "long-rounds.md").read_text()
    numbers = [float(number) for number in re.findall(r"\d\.\d{4}", found)]
    published = [float(number) for number in re.findall(r"\d\.\d{4}", page.partition("every step's gradient")[2])]
    assert numbers == pytest.approx(published[: len(numbers)], abs=0.01)  # processors round products differently
    (together, *test), train = numbers[::2], numbers[1::2]
    diloco, reset, mean = (test[column::3] for column in range(3))
    assert diloco[0] < reset[0] < together < mean[0]  # 300 outer steps at a rate that comes to 7
    assert diloco == sorted(diloco) and max(mean) - min(mean) < 0.01  # longer rounds cost, but for the plain mean
    assert all(ours < theirs for ours, theirs in zip(train[1::3], train[3::3], strict=True))
