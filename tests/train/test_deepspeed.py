"""DeepSpeed in one process: every stage trains as the plain engine does, and nothing of one client reaches the next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2LMHeadModel, T5ForConditionalGeneration
from zero_engines import (
    ADAMW,
    CPU,
    OFFLOADED,
    STAGES,
    Zero,
    batch,
    gpt2,
    label,
    loss,
    plain_engine,
    some,
    steps,
    t5,
    zero_engine,
)

pytest.importorskip("deepspeed")

from fedtorch.algorithms.fedprox import proximal
from fedtorch.config.schema import ClientConfig
from fedtorch.core.weights import Partition
from fedtorch.train.batches import SplitBatch
from fedtorch.train.deepspeed import DeepSpeedEngine
from fedtorch.train.engine import Engine
from fedtorch.train.loop import LossCurve, Step, train

pytestmark = pytest.mark.long


def two_clients(engine: Engine, hp: ClientConfig = ADAMW, rounds: int = 2) -> tuple[Tensor, list[float]]:
    """FedAvg by hand over two clients that take turns in one engine; the last weights and all losses."""
    weights, losses = engine.initial_shared.clone(), []
    for _ in range(rounds):
        trained = []
        for client in (1, 2):
            engine.start(weights, None, hp, steps=3, seed=client)
            curve = train(engine, steps(100 * client), loss)
            losses += curve.losses
            trained.append(engine.flat.detach().cpu().clone())
        weights = (trained[0] + trained[1]) / 2
    return weights, losses


def moved(engine: Engine, weights: Tensor) -> float:
    return float((weights - engine.initial_shared).norm())


def apart(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm())


@pytest.mark.parametrize("zero", [*STAGES, OFFLOADED[-1]], ids=label)
def test_two_rounds_of_two_t5_clients_equal_the_plain_engine(zero: Zero) -> None:
    equal_the_plain_engine(zero, t5)


@pytest.mark.parametrize("zero", some([*STAGES, *OFFLOADED], STAGES[0], STAGES[3]))
def test_two_rounds_of_two_gpt2_clients_equal_the_plain_engine(zero: Zero) -> None:
    equal_the_plain_engine(zero, gpt2)


def equal_the_plain_engine(zero: Zero, model: Callable[[], nn.Module]) -> None:
    plain = plain_engine(model)
    expected, losses = two_clients(plain)
    found, found_losses = two_clients(zero_engine(zero, model))
    # fp32 throughout; norms are summed in another order, and Adam divides small numbers by small ones
    assert apart(found, expected) < 1e-4 * moved(plain, expected)
    assert found_losses == pytest.approx(losses, rel=1e-5)


@pytest.mark.parametrize("zero", STAGES, ids=label)
def test_loaded_weights_are_not_undone_by_the_next_step(zero: Zero) -> None:
    hp = ClientConfig(optimizer="sgd", lr=0.0)
    engine = zero_engine(zero, hp=hp)
    engine.start(engine.initial_shared, None, hp, steps=1, seed=0)
    train(engine, steps(0, count=1), loss)
    other = engine.initial_shared + torch.randn(engine.shared.size)
    engine.start(other, None, hp, steps=1, seed=0)
    assert torch.equal(engine.flat, other)
    train(engine, steps(0, count=1), loss)  # at rate 0: whatever comes out was in the masters
    assert torch.equal(engine.flat, other)


@pytest.mark.parametrize("zero", some(STAGES, STAGES[2]))
def test_a_hook_changes_the_gradients_of_the_step(zero: Zero) -> None:
    """FedProx: its pull is added to the reduced gradients, before they are clipped."""

    def run(engine: Engine) -> tuple[Tensor, LossCurve]:
        engine.start(engine.initial_shared, None, ADAMW, steps=3, seed=0)
        curve = train(engine, steps(0), loss, before_step=proximal(engine, engine.initial_shared + 0.01, 10.0))
        return engine.flat.detach().clone(), curve

    plain = plain_engine()
    (expected, curve), (found, found_curve) = run(plain), run(zero_engine(zero))
    without, _ = two_clients(plain, rounds=1)
    assert apart(found, expected) < 1e-4 * moved(plain, expected)
    assert found_curve.penalties == pytest.approx(curve.penalties, rel=1e-4)
    assert apart(expected, without) > 0.1 * moved(plain, expected)


@pytest.mark.parametrize("zero", some([*STAGES, OFFLOADED[-1]], STAGES[1], STAGES[3]))
@pytest.mark.parametrize("is_fresh", [True, False], ids=["in a new engine", "after another client"])
def test_a_kept_optimiser_state_continues_as_if_never_stopped(zero: Zero, is_fresh: bool) -> None:
    plain = plain_engine()
    plain.start(plain.initial_shared, None, ADAMW, steps=4, seed=0)
    train(plain, steps(0, count=4), loss)
    first = zero_engine(zero)
    first.start(first.initial_shared, None, ADAMW, steps=2, seed=0)
    train(first, steps(0, count=2), loss)
    half, state = first.flat.detach().clone(), first.optimizer_state()
    second = zero_engine(zero) if is_fresh else first
    if not is_fresh:
        second.start(second.initial_shared, None, ADAMW, steps=1, seed=0)
        train(second, steps(500, count=1), loss)
    second.start(half, None, ADAMW, steps=2, seed=9, optimizer_state=state)
    train(second, steps(20, count=2), loss)
    assert apart(second.flat, plain.flat) < 1e-4 * moved(plain, plain.flat)
    second.start(half, None, ADAMW, steps=2, seed=9)  # reset
    train(second, steps(20, count=2), loss)
    assert apart(second.flat, plain.flat) > 1e-2 * moved(plain, plain.flat)


MIXED = [Zero(1, "bf16"), Zero(2, "bf16"), Zero(3, "bf16"), Zero(2, "bf16", True), Zero(3, "bf16", True, True)]


@pytest.mark.parametrize("zero", some(MIXED, MIXED[1], MIXED[4]))
def test_bf16_stays_close_to_fp32_and_its_masters_are_fp32(zero: Zero) -> None:
    plain = plain_engine()
    expected, losses = two_clients(plain)
    engine = zero_engine(zero)
    found, found_losses = two_clients(engine)
    # bf16 has 8 bits: single losses agree to 1 %, the way gone (Adam: mostly signs of gradients) to a third
    assert found_losses == pytest.approx(losses, rel=1e-2)
    assert apart(found, expected) < 0.35 * moved(plain, expected)
    exact = engine.initial_shared + 1e-5 * torch.randn(engine.shared.size)
    engine.load(exact)
    assert torch.equal(engine.flat, exact)  # bf16 would have rounded it
    assert next(engine.module.parameters()).dtype == torch.bfloat16


@pytest.mark.parametrize("zero", [Zero(2, "fp16"), Zero(3, "fp16")], ids=label)
def test_fp16_stays_close_to_fp32(zero: Zero) -> None:
    if not torch.ops.mkldnn._is_mkldnn_fp16_supported():
        pytest.skip("this CPU has no fp16")
    plain, engine = plain_engine(), zero_engine(zero)
    expected, losses = two_clients(plain)
    found, found_losses = two_clients(engine)
    assert found_losses == pytest.approx(losses, rel=1e-2)
    assert apart(found, expected) < 0.35 * moved(plain, expected)


@pytest.mark.parametrize("zero", some([Zero(2, "fp16"), Zero(3, "fp16")], Zero(2, "fp16")))
def test_an_overflow_in_fp16_means_what_it_means_to_the_plain_engine(zero: Zero) -> None:
    if not torch.ops.mkldnn._is_mkldnn_fp16_supported():
        pytest.skip("this CPU has no fp16")

    def explosive(model: nn.Module, batch: tuple[dict[str, Tensor], float]) -> tuple[Tensor, int]:
        return model(**batch[0]).loss.float() * 36 * batch[1], 36

    hp = replace(ADAMW, schedule="linear")
    plan = [Step([(batch(i), factor)], 1, 0) for i, factor in enumerate((1.0, 1e36, 1.0))]
    for engine in (zero_engine(zero, hp=hp), Engine(t5(), Partition(), CPU, precision="fp16")):
        engine.start(engine.initial_shared, None, hp, steps=3, seed=0)
        weights, rates = [engine.flat.detach().clone()], []
        for step in plan:
            assert engine._schedule is not None
            rates.append(engine._schedule.get_last_lr()[0])
            train(engine, [step], explosive)
            weights.append(engine.flat.detach().clone())
        are_equal = [torch.equal(one, other) for one, other in zip(weights, weights[1:])]
        assert are_equal == [False, True, False] and engine.left_out() == 1
        assert rates == pytest.approx([hp.lr, hp.lr * 2 / 3, hp.lr / 3])  # a step that was left out counts
        scaler = engine._zero.optimizer.loss_scaler if isinstance(engine, DeepSpeedEngine) else engine._precision.scale
        scale = (lambda s: s.cur_scale) if isinstance(engine, DeepSpeedEngine) else (lambda s: s.get_scale())
        assert scale(scaler) == 2.0**11
        engine.start(engine.initial_shared, None, hp, steps=3, seed=0)
        scaler = scaler if isinstance(engine, DeepSpeedEngine) else engine._precision.scale
        assert scale(scaler) == 2.0**12 and engine.left_out() == 0


@pytest.mark.parametrize("zero", some([Zero(2), Zero(3), Zero(3, "bf16")], Zero(3)))
@pytest.mark.parametrize("model", [t5, gpt2], ids=lambda model: model.__name__)
def test_activation_checkpointing_changes_nothing_but_memory(zero: Zero, model: Callable[[], nn.Module]) -> None:
    def dropping() -> nn.Module:
        return model(0.1)

    first, losses = two_clients(zero_engine(zero, dropping), rounds=1)
    calls = []

    class Watched(T5ForConditionalGeneration if model is t5 else GPT2LMHeadModel):  # type: ignore[misc]
        def gradient_checkpointing_enable(self, *args: Any, **kwargs: Any) -> None:
            calls.append(1)
            super().gradient_checkpointing_enable(*args, **kwargs)

    def watched() -> nn.Module:
        made = dropping()
        made.__class__ = Watched
        return made

    second, again = two_clients(zero_engine(replace(zero, activation_checkpointing=True), watched), rounds=1)
    assert calls == [1]
    assert again == losses and torch.equal(first, second)


@pytest.mark.parametrize("zero", some([*STAGES, Zero(2, "bf16"), Zero(3, "bf16")], Zero(1), Zero(3, "bf16")))
def test_an_evaluation_between_two_clients_leaves_no_trace(zero: Zero) -> None:
    def run(engine: Engine, evaluates: bool) -> Tensor:
        for client in (1, 2):
            if evaluates:
                engine.load(engine.initial_shared * 1.01)
                with torch.inference_mode():
                    engine.module.eval()
                    ids = batch(7)["input_ids"]
                    engine.module.generate(input_ids=ids, max_new_tokens=4)
                    loss(engine.module, batch(7))
            engine.start(engine.initial_shared, None, ADAMW, steps=3, seed=client)
            train(engine, steps(100 * client), loss)
        return engine.flat.detach().clone()

    assert torch.equal(run(zero_engine(zero), False), run(zero_engine(zero), True))


@pytest.mark.parametrize("zero", some([*STAGES, Zero(3, "bf16")], Zero(2), Zero(3)))
def test_a_client_that_fails_inside_a_step_leaves_nothing_behind(zero: Zero) -> None:
    def run(engine: Engine, fails: bool) -> Tensor:
        calls = 0

        def failing(module: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
            nonlocal calls
            calls += 1
            if calls == 4:  # the second micro-batch of the second step
                raise ValueError("bad row")
            return loss(module, batch)

        if fails:
            engine.start(engine.initial_shared, None, ADAMW, steps=3, seed=5)
            with pytest.raises(ValueError, match="bad row"):
                train(engine, steps(50), failing)
        engine.start(engine.initial_shared * 1.01, None, ADAMW, steps=3, seed=1)
        train(engine, steps(100), loss)
        return engine.flat.detach().clone()

    assert torch.equal(run(zero_engine(zero), False), run(zero_engine(zero), True))


@pytest.mark.parametrize("zero", some([*STAGES, Zero(3, "bf16")], Zero(2)))
def test_micro_batches_in_parts_give_the_step_of_the_whole(zero: Zero) -> None:
    """Parts of unequal counts, and one micro-batch that could not be cut."""

    def halves(whole: dict[str, Tensor]) -> SplitBatch:
        return SplitBatch(
            tuple({key: value[rows] for key, value in whole.items()} for rows in (slice(1), slice(1, None)))
        )

    def weighed(module: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
        count = batch["labels"].numel()
        return module(**batch).loss * count, count

    def run(cut: bool) -> tuple[Tensor, tuple[float, ...]]:
        engine = zero_engine(zero)
        engine.start(engine.initial_shared, None, ADAMW, steps=3, seed=5)
        wanted = [
            Step([halves(step.batches[0]), *step.batches[1:]], step.divisor, step.epoch) if cut else step
            for step in steps(50)
        ]
        curve = train(engine, wanted, weighed)
        return engine.flat.detach().clone(), curve.losses

    (whole, losses), (parts, again) = run(False), run(True)
    close = {"rtol": 0.0, "atol": 2e-3} if zero.precision == "bf16" else {"rtol": 1e-4, "atol": 2e-5}
    assert again == pytest.approx(losses, rel=2e-2 if zero.precision == "bf16" else 1e-5)
    assert torch.allclose(whole, parts, **close)
