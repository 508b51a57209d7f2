"""The engine equals a plain PyTorch loop, and nothing of one client is left for the next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from harness import SGD, make_config, make_runner
from torch import nn
from toy import Quadratic
from transformers import T5Config, T5ForConditionalGeneration
from transformers.optimization import Adafactor

from fedtorch.config.schema import ClientConfig
from fedtorch.core.errors import FedtorchError
from fedtorch.core.mechanism import RoundFacts
from fedtorch.core.weights import Partition
from fedtorch.train.engine import Engine
from fedtorch.train.loop import Step, train

CPU = torch.device("cpu")


def t5(dropout: float = 0.1) -> T5ForConditionalGeneration:
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=40, d_model=16, d_ff=24, d_kv=8, num_heads=2, num_layers=1, dropout_rate=dropout,
        decoder_start_token_id=0, pad_token_id=0,
    )  # fmt: skip
    return T5ForConditionalGeneration(config)


def batch(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, 40, (4, 9), generator=generator)
    return {"input_ids": ids, "labels": ids[:, :5].contiguous()}


def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, int]:
    return model(**batch).loss * 20, 20


OPTIMIZERS = [
    ClientConfig(optimizer="sgd", lr=0.1, momentum=0.9, max_grad_norm=1.0),
    ClientConfig(optimizer="adam", lr=1e-3),
    ClientConfig(optimizer="adamw", lr=1e-3, weight_decay=0.1, schedule="linear"),
    ClientConfig(optimizer="adafactor", lr=1e-3, schedule="linear", warmup_steps=1, max_grad_norm=1.0),
]


# with torch's and transformers' own classes, and the rate of each of three steps as a share of `lr`
PLAIN: dict[str, tuple[Callable[[list[nn.Parameter]], torch.optim.Optimizer], list[float]]] = {
    "sgd": (lambda parts: torch.optim.SGD(parts, lr=0.1, momentum=0.9), [1, 1, 1]),
    "adam": (lambda parts: torch.optim.Adam(parts, lr=1e-3), [1, 1, 1]),
    "adamw": (lambda parts: torch.optim.AdamW(parts, lr=1e-3, weight_decay=0.1), [1, 2 / 3, 1 / 3]),
    "adafactor": (
        lambda parts: Adafactor(parts, lr=1e-3, scale_parameter=False, relative_step=False),
        [0, 1, 1 / 2],  # from 0 within the one step of warm-up, then down to 0 after the last one
    ),
}


@pytest.mark.parametrize("hp", OPTIMIZERS, ids=lambda hp: hp.optimizer)
def test_the_engine_equals_a_plain_loop(hp: ClientConfig) -> None:
    plain = t5()
    make, shares = PLAIN[hp.optimizer]
    optimizer = make(list(plain.parameters()))
    torch.manual_seed(5)
    plain.train()
    expected = []
    for i, share in enumerate(shares):
        for group in optimizer.param_groups:
            group["lr"] = hp.lr * share
        value = plain(**batch(i)).loss
        value.backward()
        if hp.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(plain.parameters(), hp.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        expected.append(value.item())
    engine = Engine(t5(), Partition(), CPU)
    engine.start(engine.initial_shared, None, hp, steps=3, seed=5)
    curve = train(engine, [Step([batch(i)], 1, 0) for i in range(3)], loss)
    # the loss is multiplied and divided by its count, which costs at most the last bit
    assert list(curve.losses) == pytest.approx(expected, rel=1e-6)
    for name, parameter in plain.named_parameters():
        assert torch.allclose(engine.module.get_parameter(name), parameter, rtol=1e-5, atol=1e-7), name


class Losses:
    """In place of a tracker: the loss of every client and round."""

    def __init__(self) -> None:
        self.found: dict[tuple[int, str], float] = {}

    def round(self, round: int, facts: RoundFacts) -> None:
        self.found |= {(round, report.client): report.loss_first for report in facts.reports or ()}

    def evaluation(self, *_: object, **__: object) -> None: ...

    def working(self, text: str) -> None: ...

    def end(self, *_: object) -> None: ...


def test_dropout_is_another_in_every_round_and_for_every_client(tmp_path: Path) -> None:
    # clients alike and a rate that moves no weight: what differs is which of 20 powers of two are dropped
    powers = tuple(2.0**i for i in range(20))
    task = Quadratic({"a": (1.0, 0.0, 2), "b": (1.0, 0.0, 2)}, start=powers, dropout=0.5)

    def losses(folder: Path) -> dict[tuple[int, str], float]:
        track = Losses()
        make_runner(make_config(folder, task, rounds=3, client=replace(SGD, lr=1e-30)), tracker=track).run()
        return track.found

    found = losses(tmp_path / "one")
    assert len(found) == 6 == len(set(found.values()))
    assert losses(tmp_path / "two") == found


@pytest.mark.parametrize("hp", OPTIMIZERS, ids=lambda hp: hp.optimizer)
def test_a_client_trains_alike_after_any_other(hp: ClientConfig) -> None:
    def run(engine: Engine, seed: int) -> torch.Tensor:
        engine.start(engine.initial_shared, None, hp, steps=2, seed=seed)
        train(engine, [Step([batch(seed)], 1, 0), Step([batch(seed + 1)], 1, 0)], loss)
        return engine.flat.detach().clone()

    engine = Engine(t5(), Partition(), CPU)
    first = run(engine, 1)
    run(engine, 2)
    assert torch.equal(run(engine, 1), first)


@pytest.mark.parametrize("hp", OPTIMIZERS, ids=lambda hp: hp.optimizer)
def test_a_kept_optimiser_state_continues_as_if_never_stopped(hp: ClientConfig) -> None:
    hp = replace(hp, schedule="constant", warmup_steps=0)
    steps = [Step([batch(i)], 1, 0) for i in range(4)]
    engine = Engine(t5(dropout=0.0), Partition(), CPU)
    engine.start(engine.initial_shared, None, hp, steps=4, seed=0)
    train(engine, steps, loss)
    whole = engine.flat.detach().clone()
    engine.start(engine.initial_shared, None, hp, steps=2, seed=0)
    train(engine, steps[:2], loss)
    half, state = engine.flat.detach().clone(), engine.optimizer_state()
    engine.start(engine.initial_shared, None, hp, steps=2, seed=9)  # somebody else in between
    train(engine, steps[:1], loss)
    engine.start(half, None, hp, steps=2, seed=0, optimizer_state=state)
    train(engine, steps[2:], loss)
    assert torch.equal(engine.flat, whole)


def test_tied_tensors_stay_tied_and_are_laid_out_once() -> None:
    model = t5()
    engine = Engine(model, Partition(), CPU)
    assert engine.shared.size == sum(p.numel() for p in model.parameters())
    engine.load(torch.arange(engine.shared.size, dtype=torch.float32))
    assert model.lm_head.weight.data_ptr() == model.get_input_embeddings().weight.data_ptr()
    assert engine.module.get_parameter("shared.weight")[0, 0] == engine.shared.offsets[0]


class Moves(nn.LSTM):
    """Does on the CPU what an LSTM does on a GPU: moved, even to where it is, it puts its weights somewhere else."""

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
        super()._apply(fn, recurse)
        for parameter in self.parameters():
            parameter.data = parameter.data.clone()
        return self


@pytest.mark.parametrize(
    "partition",
    [
        Partition(),
        Partition(private=("*hh*",)),
        Partition(frozen=("*ih*",)),
        Partition(private=("*ih*",), frozen=("*b*",)),
    ],
    ids=["shared", "private", "frozen", "all three"],
)
def test_weights_stay_in_the_flat_vectors_where_a_module_puts_them_elsewhere_as_it_is_moved(
    partition: Partition,
) -> None:
    torch.manual_seed(0)
    module = Moves(3, 2)
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    engine = Engine(module, partition, CPU)
    engine.load(torch.full_like(engine.flat, 7.0), torch.full_like(engine.flat_private, 5.0))
    for name, parameter in module.named_parameters():
        value = 7.0 if name in engine.shared.names else 5.0
        expected = before[name] if name in engine.frozen.names else torch.full_like(parameter, value)
        assert parameter.equal(expected), name
    assert torch.equal(engine.flat_frozen, engine.frozen.flatten(before))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1)
    assert engine.flat.eq(8).all() and engine.flat_private.eq(6).all()
    assert torch.equal(engine.flat_frozen, engine.frozen.flatten(before) + 1)


def test_floating_buffers_return_to_what_they_were() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    engine = Engine(model, Partition(), CPU)
    engine.start(engine.initial_shared, None, SGD, steps=1, seed=0)
    train(engine, [Step([torch.randn(4, 2)], 1, 0)], lambda m, b: (m(b).square().sum(), 8))
    assert model[1].running_mean.abs().sum() > 0
    engine.load(engine.initial_shared)
    assert model[1].running_mean.abs().sum() == 0


def test_frozen_parameters_are_neither_trained_nor_laid_out() -> None:
    engine = Engine(t5(), Partition(frozen=("shared.*",)), CPU)
    before = engine.module.get_parameter("shared.weight").clone()
    engine.start(engine.initial_shared, None, replace(SGD, lr=1.0), steps=1, seed=0)
    train(engine, [Step([batch(0)], 1, 0)], loss)
    assert torch.equal(engine.module.get_parameter("shared.weight"), before)
    assert "shared.weight" not in engine.shared.names


def test_two_micro_batches_give_the_step_of_their_mean() -> None:
    engine = Engine(t5(dropout=0.0), Partition(), CPU)
    engine.start(engine.initial_shared, None, replace(SGD, lr=0.1), steps=1, seed=0)
    split = train(engine, [Step([batch(0), batch(1)], 2, 0)], loss)
    apart = engine.flat.detach().clone()
    engine.start(engine.initial_shared, None, replace(SGD, lr=0.1), steps=1, seed=0)
    both = {key: torch.cat([batch(0)[key], batch(1)[key]]) for key in batch(0)}
    together = train(engine, [Step([both], 1, 0)], lambda m, b: (m(**b).loss * 40, 40))
    # other sizes of matrix products, other rounding
    assert torch.allclose(apart, engine.flat, atol=1e-6)
    assert split.losses[0] == pytest.approx(together.losses[0], rel=1e-5)


def test_the_initial_weights_are_copied_only_where_others_are_about_to_take_their_place() -> None:
    engine = Engine(t5(), Partition(private=("encoder.block.0.layer.0.SelfAttention.q*",)), CPU)
    engine.adopt_initial()
    assert engine.initial()[0].data_ptr() == engine.flat.data_ptr()
    first = engine.flat.clone()
    received = engine.flat + 1.0
    engine.load(received)
    assert torch.equal(engine.flat, received) and torch.equal(engine.initial_shared, first)
    forgetful = Engine(t5(), Partition(), CPU)
    forgetful.adopt_initial()
    forgetful.forget_initial()
    forgetful.load(torch.zeros_like(forgetful.flat))
    assert not forgetful.flat.any()
    with pytest.raises(FedtorchError, match="let go of"):
        forgetful.initial()


def test_training_from_the_initial_weights_does_not_change_them() -> None:
    engine = Engine(t5(), Partition(), CPU)
    first = engine.flat.clone()
    start = engine.initial_shared
    engine.start(start, None, ClientConfig(optimizer="sgd", lr=0.1), steps=1, seed=0)
    engine.step(loss, [batch(0)], 1)
    assert torch.equal(start, first) and torch.equal(engine.initial_shared, first)
    assert not torch.equal(engine.flat, first)


def test_weights_that_are_loaded_already_are_copied_again_only_after_others_or_a_training() -> None:
    engine = Engine(t5(0.0), Partition(), CPU)
    first, second = engine.initial_shared.clone(), engine.initial_shared + 1
    version, copies, upload = object(), list[int](), engine._copier.upload

    def counted(host: torch.Tensor, device: torch.Tensor) -> None:
        copies.append(host.data_ptr())
        upload(host, device)

    engine._copier.upload = counted  # type: ignore[method-assign]
    step = ([batch(0)], 1)
    for change in (
        lambda: None,
        lambda: engine.load(first, version=version),
        lambda: engine.load(second),
        lambda: engine.load(second, version=object()),
        lambda: (engine.start(first, None, SGD, steps=1, seed=0), engine.step(loss, *step)),
    ):
        change()
        engine.load(first, version=version)
        assert engine.flat.equal(first)
    taken = [place for place in copies if place in (first.data_ptr(), second.data_ptr())]
    # none for the second load of the same; one before and one after each of the others
    assert taken == [first.data_ptr()] + 2 * [second.data_ptr(), first.data_ptr()] + 2 * [first.data_ptr()]
