"""`client.optimizer: muon`: torch's Muon on matrices and AdamW on the rest, to the bit; what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_config, make_runner
from ranks import run_ranks
from torch import nn
from toy import Quadratic
from zero_engines import gpt2, loss, plain_engine, steps

from fedtorch.comm.base import Communicator
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.schema import ClientConfig, Config, EngineConfig
from fedtorch.core.errors import ConfigError
from fedtorch.train.loop import train
from fedtorch.train.optim import make_optimizer, misfit, state_of, steps_by_muon

HP = ClientConfig(optimizer="muon", lr=0.01, weight_decay=0.1, no_decay=("*bias", "*ln_*"), betas=(0.9, 0.95))


def by_hand(model: nn.Module, hp: ClientConfig) -> list[torch.optim.Optimizer]:
    """torch's optimisers over the model's own parameters."""
    named = dict(model.named_parameters())
    matrices = [p for n, p in named.items() if p.ndim == 2 and n.startswith("transformer.h.")]
    assert len(matrices) == 4 and not any("wte" in n for n, p in named.items() if any(p is m for m in matrices))
    others = {n: p for n, p in named.items() if not any(p is m for m in matrices)}
    spared = [p for n, p in others.items() if n.endswith("bias") or "ln_" in n]
    rest = [p for p in others.values() if not any(p is s for s in spared)]
    muon = torch.optim.Muon(matrices, lr=hp.lr, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    groups: list[dict[str, Any]] = [{"params": rest}, {"params": spared, "weight_decay": 0.0}]
    return [muon, torch.optim.AdamW(groups, lr=hp.lr, betas=hp.betas, eps=hp.eps, weight_decay=0.1, fused=True)]


def test_a_client_steps_as_torchs_two_optimisers(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, model = plain_engine(gpt2), gpt2()
    engine.start(engine.initial_shared.clone(), None, HP, steps=4, seed=0)
    train(engine, steps(0, 4), loss)
    optimizers = by_hand(model, HP)
    for step in steps(0, 4):
        for batch in step.batches:
            value, count = loss(model, batch)
            (value / count / step.divisor).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, engine.module.get_parameter(name)), name


def test_a_second_client_begins_afresh_and_a_kept_state_goes_on() -> None:
    engine = plain_engine(gpt2)

    def run(count: int, first: int = 0, **start: Any) -> torch.Tensor:
        engine.start(start.pop("weights", engine.initial_shared.clone()), None, HP, steps=count, seed=0, **start)
        train(engine, steps(first, count), loss)
        return engine.flat.detach().clone()

    whole = run(4)
    half, state = run(2), engine.optimizer_state()
    run(3, first=900)  # another client
    assert torch.equal(run(2, first=20, weights=half, optimizer_state=state), whole)
    assert not torch.equal(run(2, first=20, weights=half), whole)
    shapes = {name: tuple(p.shape) for name, p in engine.trained_by_name().items()}
    assert misfit("muon", shapes, torch.float32, {**state[0], **state[1]}) == ""
    assert "which is not what adamw keeps" in misfit("adamw", shapes, torch.float32, {**state[0], **state[1]})


def test_which_parameters_are_muons() -> None:
    assert steps_by_muon("transformer.h.0.mlp.c_fc.weight", (4, 8), HP)
    for name, shape in (("transformer.h.0.ln_1.weight", (4,)), ("transformer.wte.weight", (9, 4)), ("head.w", (2, 2))):
        assert not steps_by_muon(name, shape, HP)
    assert steps_by_muon("head.w", (2, 2), replace(HP, muon_for=("head*",)))
    assert not steps_by_muon("transformer.h.0.mlp.c_fc.weight", (4, 8), replace(HP, optimizer="adamw"))


def test_matrices_alone_and_a_parameter_that_is_spared() -> None:
    parameters = [nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(3, 2))]
    hp = replace(HP, muon_for=("*",), no_decay=("b",))
    optimizer = make_optimizer(["a", "b"], parameters, hp)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert torch.equal(parameters[0], torch.full((2, 3), 1 - 0.01 * 0.1)) and torch.equal(
        parameters[1], torch.ones(3, 2)
    )
    assert [group["lr"] for group in optimizer.param_groups] == [0.01, 0.01]
    assert state_of(optimizer, ["a", "b"], parameters) == ({}, {})  # all zero


class Matrix(nn.Module):
    """A matrix of a numbered layer, and a vector."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(3, 2)])
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator)


class Fits(Quadratic):
    """Both are pulled to what rows say."""

    def build_model(self, seed: int) -> nn.Module:
        return Matrix()

    def loss(self, model: nn.Module, batch: torch.Tensor) -> tuple[torch.Tensor, int]:
        point = torch.cat([parameter.view(-1) for parameter in model.parameters()])
        return (0.5 * batch[:, :1] * (point - batch[:, 1:]) ** 2).sum(), len(batch)

    def predict(self, model: nn.Module, examples: Any, batch_size: int) -> list[float]:
        return [0.0 for _ in examples]


CLIENTS = {"a": (1.0, 1.0, 6), "b": (2.0, -1.0, 9)}
TASK = Fits(clients=CLIENTS, noise=0.5, double=False)
CLIENT = replace(HP, batch_size=2, optimizer_state="keep", schedule="cosine", schedule_span="run")


def config_of(folder: Path, **changes: Any) -> Config:
    return make_config(folder, TASK, **{"client": CLIENT, "rounds": 3, **changes})


def digest(folder: str, comm: Communicator | None = None) -> str:
    return make_runner(config_of(Path(folder)), comm).run().digest


def on_ranks(folder: str) -> str:
    with DistributedCommunicator.join(tuple(CLIENTS), timeout_s=30) as comm:
        return digest(folder, comm)


@pytest.mark.processes
def test_the_same_bits_on_three_ranks(tmp_path: Path) -> None:
    assert run_ranks(on_ranks, 3, str(tmp_path / "ranks"))[0] == digest(str(tmp_path / "one"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"client": replace(CLIENT, muon_for=("other*",))}, r"client.muon_for is \['other\*'\], which fits no matrix"),
        ({"engine": EngineConfig(kind="deepspeed")}, "client.optimizer is muon, which needs whole matrices"),
    ],
)
def test_what_muon_cannot_step_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        make_runner(config_of(tmp_path, **changes))


def test_keys_of_muon_alone_are_refused_elsewhere() -> None:
    with pytest.raises(ConfigError, match="client.muon_momentum is 0.9 but client.optimizer is adamw"):
        ClientConfig(optimizer="adamw", muon_momentum=0.9)
