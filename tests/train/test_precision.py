"""Mixed precision of the plain engine: passes in 16 bits, everything else in fp32; fp16's loss scale."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_config
from smoke_runs import BRIEF, SMOKE, run_config
from torch import Tensor, nn
from toy import Quadratic

from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.fedassistant import FedAssistant
from fedtorch.algorithms.fedprox import proximal
from fedtorch.algorithms.metaweighting import MetaWeighting
from fedtorch.algorithms.scaffold import Scaffold
from fedtorch.config.schema import ClientConfig, EngineConfig
from fedtorch.core.errors import ConfigError
from fedtorch.core.weights import Partition
from fedtorch.models.consistency import squared_distance
from fedtorch.models.networks.hydranet import MASKED, Decoder
from fedtorch.planning.dry_run import describe
from fedtorch.rounds.scoring import evaluate
from fedtorch.setup.build import build
from fedtorch.setup.plan import Plan
from fedtorch.setup.rules.engine import the_algorithm_takes_the_precision
from fedtorch.train.batches import SplitBatch
from fedtorch.train.engine import Engine
from fedtorch.train.loop import LossCurve, Step, train
from fedtorch.train.precision import LossScale, asking, has_fp16

CPU = torch.device("cpu")
SGD = ClientConfig(optimizer="sgd", lr=0.1)
ADAMW = ClientConfig(optimizer="adamw", lr=1e-2)
needs_fp16 = pytest.mark.skipif(not has_fp16(CPU), reason="this CPU has no fp16")
MIXED = ["bf16", pytest.param("fp16", marks=needs_fp16)]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def engine_of(precision: str, module: nn.Module | None = None, **changes: Any) -> Engine:
    return Engine(network() if module is None else module, Partition(), CPU, precision=precision, **changes)


def batch(seed: int, size: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, 8, generator=generator), torch.randint(4, (size,), generator=generator)


def loss(module: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, int]:
    return nn.functional.cross_entropy(module(batch[0]), batch[1], reduction="sum"), len(batch[1])


def trained(engine: Engine, hp: ClientConfig = ADAMW, steps: int = 20, **options: Any) -> tuple[Tensor, LossCurve]:
    engine.start(engine.initial_shared, None, hp, steps=steps, seed=0)
    curve = train(engine, [Step([batch(i)], 1, 0) for i in range(steps)], loss, **options)
    return engine.flat.detach().clone(), curve


def by_hand(precision: str, data: tuple[Tensor, Tensor], scale: float = 1.0) -> Tensor:
    """The gradient of the mean loss, flat."""
    module = network()
    with torch.autocast("cpu", {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]):
        total, count = loss(module, data)
    (total / count * scale).backward()
    return torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None]) / scale


def gradients_of(engine: Engine) -> Tensor:
    return torch.cat([gradient.flatten() for gradient in engine.shared_gradients()])


@pytest.mark.parametrize("precision", MIXED)
def test_training_stays_close_to_fp32_and_weights_stay_fp32(precision: str) -> None:
    plain, mixed = engine_of("fp32"), engine_of(precision)
    (expected, curve), (found, found_curve) = trained(plain), trained(mixed)
    assert found_curve.losses == pytest.approx(curve.losses, rel=2e-2)
    assert found_curve.losses != curve.losses
    assert (found - expected).norm() < 0.2 * (expected - plain.initial_shared).norm()
    state, _ = mixed.optimizer_state()
    assert {t.dtype for t in (found, *state.values(), *mixed.module.parameters())} == {torch.float32}
    assert not torch.equal(found, found.bfloat16().float())


def test_updates_below_the_resolution_of_bf16_are_not_lost() -> None:
    module = nn.Linear(1, 1, bias=False)
    nn.init.ones_(module.weight)
    engine = engine_of("bf16", module)
    engine.start(engine.initial_shared, None, replace(SGD, lr=2.0**-20), steps=1000, seed=0)
    data = [Step([torch.ones(1, 1)], 1, 0)] * 1000
    train(engine, data, lambda model, batch: (model(batch).sum(), 1))
    assert torch.ones(1).bfloat16() - 1000 * 2.0**-20 == 1  # all steps together are less than bf16 can tell from 1
    assert engine.flat.item() == 1 - 1000 * 2.0**-20


@pytest.mark.parametrize("precision", MIXED)
def test_gradients_are_those_of_autocast_by_hand_and_hooks_see_them_unscaled(precision: str) -> None:
    engine, seen = engine_of(precision), []
    engine.start(engine.initial_shared, None, SGD, steps=1, seed=0)
    before = engine.flat.clone()
    (value, _) = engine.step(loss, [batch(0)], 1, lambda one: seen.append(gradients_of(one)))
    scale = 2.0**12 if precision == "fp16" else 1.0
    assert torch.equal(seen[0], by_hand(precision, batch(0), scale))
    assert torch.allclose(engine.flat, before - 0.1 * seen[0], rtol=1e-6, atol=1e-7)  # one multiply-add, or two
    assert value.item() == pytest.approx(loss(network(), batch(0))[0].item() / 6, rel=1e-2)  # without the scale
    unscaled = by_hand(precision, batch(0))
    assert torch.allclose(seen[0], unscaled, rtol=0.02, atol=1e-3)


@pytest.mark.parametrize("precision", MIXED)
def test_clipping_sees_unscaled_gradients(precision: str) -> None:
    norm = float(by_hand(precision, batch(0), 2.0**12 if precision == "fp16" else 1.0).norm())
    free, _ = trained(engine_of(precision), SGD, steps=1)
    above, _ = trained(engine_of(precision), replace(SGD, max_grad_norm=2 * norm), steps=1)
    engine = engine_of(precision)
    half, _ = trained(engine, replace(SGD, max_grad_norm=norm / 2), steps=1)
    assert torch.equal(free, above)
    assert (half - engine.initial_shared).norm() == pytest.approx(0.1 * norm / 2, rel=1e-3)


@pytest.mark.parametrize("precision", MIXED)
def test_the_proximal_pull_has_the_size_it_has_in_fp32(precision: str) -> None:
    pulls = []
    for kind in ("fp32", precision):
        engine = engine_of(kind)
        centre = engine.initial_shared + 1.0
        with_pull, curve = trained(engine, SGD, steps=1, before_step=proximal(engine, centre, 0.5))
        pulls.append(with_pull - trained(engine, SGD, steps=1)[0])
        assert curve.penalties[0] == pytest.approx(0.25 * engine.shared.size, rel=1e-4)
    assert torch.allclose(pulls[0], pulls[1], atol=1e-6) and pulls[1].mean().item() == pytest.approx(0.05, rel=1e-3)


@pytest.mark.parametrize("precision", MIXED)
def test_a_micro_batch_in_parts_has_the_gradient_of_the_whole(precision: str) -> None:
    inputs, labels = batch(0)
    parts = SplitBatch(((inputs[:4], labels[:4]), (inputs[4:], labels[4:])))
    results = []
    for data in ((inputs, labels), parts):
        engine = engine_of(precision)
        engine.start(engine.initial_shared, None, SGD, steps=1, seed=0)
        value, _ = engine.step(loss, [data], 1)
        results.append((engine.flat - engine.initial_shared, value.item()))
    (whole, one), (added, other) = results
    assert (whole - added).norm() < 0.02 * whole.norm() and one == pytest.approx(other, rel=1e-2)


def test_a_pass_without_gradients_takes_none_from_the_pass_after_it() -> None:
    """A teacher reads the student's own weights first; a cast of them that is kept must not be one without a graph."""

    def after_a_teacher(module: nn.Module, data: Any) -> tuple[Tensor, int]:
        with torch.no_grad():
            module(data[0])
        return loss(module, data)

    found = []
    for objective in (loss, after_a_teacher):
        engine = engine_of("bf16")
        engine.start(engine.initial_shared, None, SGD, steps=1, seed=0)
        engine.step(objective, [batch(0)], 1)
        found.append(engine.flat.clone())
    assert torch.equal(*found)


def test_fp32_enters_no_autocast() -> None:
    seen = []

    def watched(module: nn.Module, data: Any) -> tuple[Tensor, int]:
        seen.append(torch.is_autocast_enabled("cpu"))
        return loss(module, data)

    for precision in ("fp32", "bf16"):
        engine = engine_of(precision)
        engine.start(engine.initial_shared, None, SGD, steps=1, seed=0)
        engine.step(watched, [batch(0)], 1)
    assert seen == [False, True]


# --- the loss scale


def explosive(module: nn.Module, data: tuple[tuple[Tensor, Tensor], float]) -> tuple[Tensor, int]:
    """The same times a factor; 1e36 times 2**12 is too large for fp32."""
    total, count = loss(module, data[0])
    return total * data[1], count


@needs_fp16
@pytest.mark.parametrize("hp", [SGD, ADAMW, replace(SGD, optimizer="adafactor")], ids=lambda hp: hp.optimizer)
@pytest.mark.filterwarnings("error")  # the schedule's, of a step that was not taken
def test_a_step_that_overflows_is_left_out_and_the_next_client_starts_afresh(hp: ClientConfig) -> None:
    engine = engine_of("fp16")
    hp = replace(hp, max_grad_norm=1.0, schedule="linear")
    engine.start(engine.initial_shared, None, hp, steps=3, seed=0)
    curve = train(engine, [Step([(batch(0), 1e36)], 1, 0)] * 2, explosive)
    assert torch.equal(engine.flat, engine.initial_shared) and engine.optimizer_state() == ({}, {})
    assert engine._precision.scale is not None and engine._precision.scale.get_scale() == 2.0**10
    assert (curve.left_out, curve.taken, len(curve)) == (2, 0, 2) and torch.tensor(curve.losses).isfinite().all()
    last = train(engine, [Step([(batch(0), 1.0)], 1, 0)], explosive)
    third = engine.flat.clone()
    assert last.losses[0] == pytest.approx(curve.losses[0] / 1e36, rel=1e-5)
    # the schedule went on: the third step has a third of the rate
    other = engine_of("fp16")
    other.start(other.initial_shared, None, replace(hp, lr=hp.lr / 3, schedule="constant"), steps=1, seed=0)
    train(other, [Step([(batch(0), 1.0)], 1, 0)], explosive)
    assert torch.allclose(third, other.flat, rtol=1e-4, atol=1e-7)
    engine.start(engine.initial_shared, None, hp, steps=3, seed=0)
    assert engine._precision.scale.get_scale() == 2.0**12 and engine.left_out() == 0


@needs_fp16
def test_small_gradients_do_not_vanish() -> None:
    """1e-8 is below the smallest number of fp16, 2**12 times as much is not."""

    def faint(module: nn.Module, data: Tensor) -> tuple[Tensor, int]:
        return module(data).sum() * 1e-8, 1  # fp16, so that its gradient is

    moved = []
    for power in (0, 12):
        module = nn.Linear(8, 1, bias=False)
        engine = engine_of("fp16", module, scale_power=power)
        engine.start(engine.initial_shared, None, SGD, steps=1, seed=0)
        engine.step(faint, [torch.ones(1, 8)], 1)
        moved.append(float((engine.flat - engine.initial_shared).abs().max() + 0))
    gradient = 1e-8
    assert moved[0] == 0 and moved[1] == pytest.approx(0.1 * gradient, abs=2e-8)


@needs_fp16
def test_a_loss_beyond_fp16_is_reported_and_changes_nothing() -> None:
    engine = engine_of("fp16")
    engine.start(engine.initial_shared, None, SGD, steps=1, seed=0)
    inputs, labels = batch(0)
    curve = train(engine, [Step([(inputs * 1e6, labels)], 1, 0)], loss)
    assert torch.equal(engine.flat, engine.initial_shared)
    assert not torch.tensor(curve.losses).isfinite().any() and curve.left_out == 1


class OtherRanks:
    """A worker of which another rank says that its gradients overflowed, or not."""

    def __init__(self, overflowed: bool) -> None:
        self.overflowed, self.asked = overflowed, []

    def any(self, flag: bool) -> bool:
        self.asked.append(flag)
        return flag or self.overflowed


@pytest.mark.parametrize("theirs", [False, True])
@pytest.mark.parametrize("has_gradient", [False, True])
def test_an_overflow_on_another_rank_leaves_the_step_out_here(theirs: bool, has_gradient: bool) -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer, scale, worker = torch.optim.SGD([parameter], lr=1.0), LossScale(CPU, 3), OtherRanks(theirs)
    parameter.grad = torch.full((2,), 8.0) if has_gradient else None  # None: this rank's part is frozen
    scale.unscale_gradients(optimizer, worker)  # type: ignore[arg-type]
    scale.take_step(optimizer)
    assert worker.asked == [False] and int(scale.left_out) == theirs
    assert scale.get_scale() == (4.0 if theirs else 8.0)
    assert parameter.tolist() == ([0.0, 0.0] if has_gradient and not theirs else [1.0, 1.0])


# --- evaluation, models, settings


class Watched(Quadratic):
    """Notes what the module would compute in when it predicts, and in the loss of the evaluation."""

    def predict(self, model: nn.Module, examples: Any, batch_size: int) -> list[float]:
        self.__dict__["seen"] = [torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu")]
        return super().predict(model, examples, batch_size)

    def loss(self, model: nn.Module, batch: Tensor) -> tuple[Tensor, int]:
        self.__dict__["seen"].append(torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu"))
        return super().loss(model, batch)


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", False), ("bf16", torch.bfloat16)])
def test_predictions_and_evaluated_losses_are_computed_as_in_training(precision: str, dtype: Any) -> None:
    task = Watched(clients={"a": (1.0, 2.0, 4)})
    evaluate(task, engine_of(precision, task.build_model(0)), task.load("a", "dev"), 2)
    assert task.__dict__["seen"] == [dtype] * 3
    assert not torch.is_autocast_enabled("cpu")


def test_padding_stays_masked_in_hydranets_outputs() -> None:
    """-1e6 is no bf16 number; positions are told from padding by it."""
    torch.manual_seed(0)
    decoder, mask = Decoder(8, dropout=0.0), torch.tensor([[1, 1, 1, 0]])
    with torch.autocast("cpu", torch.bfloat16):
        outputs = decoder(torch.randn(1, 4, 8), torch.randn(1, 8), mask)
    assert {part.dtype for part in outputs.values()} == {torch.float32}
    assert (outputs["start"] > MASKED).tolist() == [[True, True, True, False]]
    others = {name: part + 0.5 * mask if name == "start" else part for name, part in outputs.items()}
    distance = squared_distance(others, outputs, heads=("start",), logits=True, mean=True)
    assert distance.item() == pytest.approx(0.25)  # over three positions


@pytest.mark.parametrize(("precision", "copies"), [("fp32", ""), ("bf16", "weights in bf16 2 MiB, ")])
def test_the_dry_run_counts_the_copies_of_the_weights(precision: Any, copies: str, tmp_path: Any) -> None:
    task = Quadratic(clients={"a": (1.0, 2.0, 4)}, width=2**20, double=False)
    config = make_config(tmp_path, task, client=ADAMW, engine=EngineConfig(precision=precision))
    (line,) = [x for x in describe(build(config, num_ranks=1, rank=0), num_ranks=1).splitlines() if "memory" in x[:6]]
    assert f"weights 8 MiB, gradients and optimiser 12 MiB, {copies}updates" in line


REFUSED: list[Algorithm] = [Scaffold(option="I"), MetaWeighting(), FedAssistant()]


@pytest.mark.parametrize("algorithm", REFUSED, ids=lambda algorithm: type(algorithm).__name__)
def test_gradients_outside_a_step_refuse_fp16_but_not_bf16(algorithm: Algorithm, tmp_path: Any) -> None:
    task = Quadratic(clients={"a": (1.0, 2.0, 4)})
    for precision, is_refused in (("fp16", True), ("bf16", False)):
        config = make_config(tmp_path, task, algorithm, engine=EngineConfig(precision=precision))  # type: ignore[arg-type]
        if is_refused:
            with pytest.raises(ConfigError, match="engine.precision is fp16 but algorithm.name is .* bf16 or fp32"):
                the_algorithm_takes_the_precision(Plan.of(config, num_ranks=1))
        else:
            the_algorithm_takes_the_precision(Plan.of(config, num_ranks=1))


@pytest.mark.parametrize("kind", ["torch", "deepspeed"])
def test_fp16_is_refused_on_a_cpu_without_it(kind: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedtorch.setup.rules.engine.has_fp16", lambda device: False)
    task = Quadratic(clients={"a": (1.0, 2.0, 4)})
    engine = EngineConfig(kind=kind, precision="fp16", stage=2 if kind == "deepspeed" else 0)
    with pytest.raises(ConfigError, match="this CPU does not have; set it to bf16 or fp32"):
        build(make_config(tmp_path, task, engine=engine), num_ranks=1, rank=0)


@pytest.mark.parametrize(("precision", "has", "dtype"), [
    ("fp32", True, torch.float32), ("tf32", True, torch.float32), ("bf16", False, torch.bfloat16),
    ("fp16", True, torch.float16), ("fp16", False, torch.float32),
])  # fmt: skip
def test_a_model_is_asked_in_its_runs_precision_or_fp32_where_the_device_has_no_fp16(
    precision: str, has: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedtorch.train.precision.has_fp16", lambda device: has)
    with asking(precision, CPU):
        assert (torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32) == dtype


def test_the_settings_of_the_plain_engine() -> None:
    assert EngineConfig(precision="fp16", initial_scale_power=8).initial_scale_power == 8
    with pytest.raises(ConfigError, match="initial_scale_power is 8 but engine.precision is bf16"):
        EngineConfig(precision="bf16", initial_scale_power=8)
    with pytest.raises(ConfigError, match="engine.stage is 2 but engine.kind is torch"):
        EngineConfig(precision="bf16", stage=2)


@pytest.mark.long
def test_tf32_is_fp32_on_a_cpu_and_says_so(tmp_path: Path) -> None:
    changes = {p: (BRIEF, f"engine.precision={p}", f"run.name={p}") for p in ("fp32", "tf32")}
    runs = {precision: run_config(SMOKE[0], tmp_path, *each) for precision, each in changes.items()}
    assert runs["fp32"]["digest"] == runs["tf32"]["digest"]
    said = (tmp_path / "runs" / "tf32" / "log.rank0.txt").read_text()
    assert said.count("engine.precision is tf32 but CPUs do not have it, so they compute in fp32") == 1
    assert "engine.precision is" not in (tmp_path / "runs" / "fp32" / "log.rank0.txt").read_text()


@pytest.mark.parametrize(("algorithm", "precision"), [(Scaffold(option="I"), "tf32"), (MetaWeighting(), "tf32")])
def test_tf32_needs_no_loss_scale(tmp_path: Path, algorithm: Algorithm, precision: Any) -> None:
    task = Quadratic({"a": (1.0, 2.0, 7)}, start=(0.0,))
    config = make_config(tmp_path, task, engine=EngineConfig(precision=precision))
    the_algorithm_takes_the_precision(replace(Plan.of(config, 1), algorithm=algorithm))
