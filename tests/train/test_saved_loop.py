"""A training that goes on from a saved moment ends with the bits of one that was never interrupted, on every engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor
from zero_engines import ADAMW, Zero, gpt2, label, loss, plain_engine, steps, t5, zero_engine

from fedtorch.core.state_keys import part_of
from fedtorch.core.weights import Partition, unshared
from fedtorch.train.batches import StepPlan
from fedtorch.train.engine import Engine
from fedtorch.train.loop import LossCurve
from fedtorch.train.moment import OPTIMIZER, PRIVATE, SHARED, Moment
from fedtorch.train.precision import has_fp16
from fedtorch.train.saved_loop import SavedLoop
from fedtorch.train.settings import ClientConfig

COUNT = 5
PLANS = [StepPlan(((0,),), 1, epoch) for epoch in (0, 0, 0, 1, 1)]
SGD = ClientConfig(optimizer="sgd", lr=0.05, momentum=0.9, schedule="linear")
ADAFACTOR = ClientConfig(optimizer="adafactor", lr=1e-3, schedule="cosine", warmup_steps=2)
COSINE = replace(ADAMW, schedule="cosine", warmup_ratio=0.2)
MUON = replace(COSINE, optimizer="muon")
HP = {"sgd": SGD, "adamw": COSINE, "adafactor": ADAFACTOR, "muon": MUON}


@dataclass
class Kept:
    """Saves every moment, as bytes; `found` is where the training goes on."""

    found: Moment | None = None
    moments: list[Moment] = field(default_factory=list)

    def take(self) -> Moment | None:
        return self.found

    def is_due(self, step: int, planned: int) -> bool:
        return True

    def stops(self, error: Exception) -> bool:
        return False

    def save(self, moment: Moment) -> None:
        kept = load(save(unshared({name: t.contiguous() for name, t in moment.tensors.items()})))
        self.moments.append(Moment(kept, dict(moment.numbers), moment.step))


def trained(engine: Engine, hp: ClientConfig, saved: Kept | None, held: dict[str, Tensor] | None = None) -> LossCurve:
    held = {} if held is None else held

    def start(found: Moment | None) -> None:
        weights, private, kept = engine.initial_shared.clone(), None, None
        if found is not None:
            weights, private = found.tensors[SHARED], found.tensors.get(PRIVATE)
            kept = part_of(found.tensors, OPTIMIZER), part_of(found.numbers, OPTIMIZER)
        taken = 0 if found is None else found.step
        engine.start(weights, private, hp, steps=COUNT, taken=taken, seed=3, optimizer_state=kept)
        if found is not None:
            engine.go_on(found)

    def count(engine: Engine) -> None:
        for tensor in held.values():
            tensor.add_(1)

    def left(plans: Sequence[StepPlan]) -> Any:
        return [replace(step, epoch=plan.epoch) for step, plan in zip(steps(7, COUNT)[-len(plans) or COUNT :], plans)]

    loop = SavedLoop(engine, loss, hp, held, COUNT)
    return loop.train(PLANS, left, start, saved, before_step=count, after_step=lambda n: None)


def same_bits(make: Callable[[], Engine], hp: ClientConfig) -> None:
    expected_held, kept = {"h": torch.zeros(3)}, Kept()
    whole = make()
    curve = trained(whole, hp, kept, expected_held)
    weights = whole.flat.detach().cpu().clone(), whole.flat_private.detach().cpu().clone()
    assert len(kept.moments) == COUNT and curve.epochs == (0, 0, 0, 1, 1)
    again = make()
    for moment in kept.moments:
        held = {"h": torch.zeros(3)}
        found = trained(again, hp, Kept(moment), held)
        assert found == curve, moment.step
        assert torch.equal(again.flat.detach().cpu(), weights[0]) and torch.equal(held["h"], expected_held["h"])
        assert torch.equal(again.flat_private.detach().cpu(), weights[1])
        assert SavedLoop(again, loss, hp, held, COUNT).fault(moment) == ""


@pytest.mark.long
@pytest.mark.parametrize("hp", HP.values(), ids=HP)
@pytest.mark.parametrize("model", [partial(t5, 0.2), partial(gpt2, 0.2)], ids=["t5", "gpt2"])
def test_the_plain_engine(model: Any, hp: ClientConfig) -> None:
    same_bits(lambda: plain_engine(model), hp)


def test_private_weights_go_on_too() -> None:
    same_bits(lambda: Engine(t5(0.2), Partition(private=("shared*",)), torch.device("cpu")), COSINE)


needs_fp16 = pytest.mark.skipif(not has_fp16(torch.device("cpu")), reason="this CPU has no fp16")


@pytest.mark.parametrize("power", [4, 60])  # with the second the first steps are left out
@needs_fp16
def test_half_precision_with_its_loss_scale(power: int) -> None:
    def make() -> Engine:
        return Engine(t5(0.2), Partition(), torch.device("cpu"), precision="fp16", scale_power=power)

    same_bits(make, COSINE)


MIXED = [
    Zero(1, "bf16"),
    pytest.param(Zero(2, "fp16"), marks=needs_fp16),
    pytest.param(Zero(3, "fp16", initial_scale_power=60), marks=needs_fp16),
]


@pytest.mark.long
@pytest.mark.parametrize("zero", [Zero(0), Zero(1), Zero(2), Zero(3), *MIXED], ids=label)
@pytest.mark.parametrize("name", ["adamw", pytest.param("sgd", marks=pytest.mark.slow)])
def test_deepspeed(zero: Zero, name: str) -> None:
    same_bits(lambda: zero_engine(zero, partial(t5, 0.2), HP[name]), HP[name])


def test_a_moment_of_something_else_is_named() -> None:
    engine, kept = plain_engine(), Kept()
    trained(engine, COSINE, kept)
    loop, moment = SavedLoop(engine, loss, COSINE, {}, COUNT), kept.moments[1]
    assert loop.fault(moment) == ""

    def with_(**tensors: Tensor) -> Moment:
        return replace(moment, tensors={**moment.tensors, **tensors})

    short = {SHARED: moment.tensors[SHARED][1:]}
    assert "belongs" in loop.fault(with_(**short)) and "shared" in loop.fault(with_(**short))
    assert "as losses" in loop.fault(with_(losses=moment.tensors["losses"][:1]))
    assert "as more" in loop.fault(with_(more=torch.zeros(1)))
    assert "is of step 9, of 5 that are planned" in loop.fault(replace(moment, step=9))
    assert "which is of no parameter" in loop.fault(with_(**{"optimizer/none/exp_avg": torch.zeros(1)}))
    lacking = {name: t for name, t in moment.tensors.items() if name != "own/generator"}
    assert "has nothing as own/generator" in loop.fault(replace(moment, tensors=lacking))
