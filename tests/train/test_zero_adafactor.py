"""Adafactor of slices equals transformers' of whole matrices, wherever the cuts are and whatever the stage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import run_ranks
from torch import Tensor, nn
from transformers import T5Config, T5ForConditionalGeneration
from transformers.optimization import Adafactor

pytest.importorskip("deepspeed")

from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.schema import ClientConfig, EngineConfig
from fedtorch.core.weights import Partition
from fedtorch.main import main
from fedtorch.train.deepspeed import DeepSpeedEngine
from fedtorch.train.engine import Engine
from fedtorch.train.loop import Step, train
from fedtorch.train.zero_adafactor import Piece, SlicedAdafactor

pytestmark = pytest.mark.long

CPU = torch.device("cpu")
SHAPES = [(5, 7), (3,), (2, 3, 4), (1, 6), (4, 1), (11,)]
SETTINGS: list[dict[str, Any]] = [
    {"lr": 0.01, "relative_step": False, "scale_parameter": False},
    {"lr": 0.01, "relative_step": False, "scale_parameter": True, "weight_decay": 0.1, "clip_threshold": 0.5},
    {"lr": None, "relative_step": True, "scale_parameter": True},
]


def pieces_of(cut: int, upto: int) -> list[Piece]:
    """Of all parameters laid end to end, what lies between the two places."""
    found, begin = [], 0
    for number, shape in enumerate(SHAPES):
        size = torch.Size(shape).numel()
        first, last = max(cut, begin), min(upto, begin + size)
        place = (first - begin, first - cut, last - first) if first < last else (0, 0, 0)
        found.append(Piece(str(number), torch.Size(shape), *place))
        begin += size
    return found


@pytest.mark.parametrize("keys", SETTINGS)
@settings(max_examples=12)
@given(cuts=st.lists(st.integers(0, 90), max_size=3), seed=st.integers(0, 99))
def test_cuts_anywhere_give_the_steps_of_whole_matrices(keys: dict[str, Any], cuts: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    whole = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]
    size = sum(p.numel() for p in whole)
    ends = [0, *sorted(min(cut, size) for cut in cuts), size]
    flats = [
        nn.Parameter(torch.cat([p.detach().flatten() for p in whole])[a:b])
        for a, b in zip(ends, ends[1:], strict=False)
    ]
    plain, ranks = Adafactor(whole, **keys), [SlicedAdafactor([flat], **keys) for flat in flats]
    for rank, flat, first, last in zip(ranks, flats, ends, ends[1:], strict=False):
        rank.pieces = {id(flat): pieces_of(first, last)}
    for _ in range(3):
        gradients = torch.randn(size, generator=generator)
        for p, part in zip(whole, gradients.split([p.numel() for p in whole]), strict=True):
            p.grad = part.view(p.shape).clone()
        plain.step()
        for flat, first, last in zip(flats, ends, ends[1:], strict=False):
            flat.grad = gradients[first:last].clone()
        step_together(ranks)
        expected = torch.cat([p.detach().flatten() for p in whole])
        torch.testing.assert_close(torch.cat([flat.detach() for flat in flats]), expected, rtol=1e-5, atol=1e-6)


def step_together(ranks: list[SlicedAdafactor]) -> None:
    """What `summed` adds up is computed first with every rank's share alone, then again with the sums of all.

    A step asks for two sums, so three passes are made; the states of before are put back in between.
    """
    known: list[Tensor] = []
    for number in range(3):
        before = [
            ({k: {n: v.clone() if isinstance(v, Tensor) else v for n, v in s.items()} for k, s in rank.state.items()},
             [p.detach().clone() for group in rank.param_groups for p in group["params"]])
            for rank in ranks
        ]  # fmt: skip
        shares: list[list[Tensor]] = []
        for rank in ranks:
            asked: list[Tensor] = []

            def answer(values: Tensor, asked: list[Tensor] = asked) -> Tensor:
                asked.append(values.clone())
                return known[len(asked) - 1].clone() if len(asked) <= len(known) else values

            rank.summed = answer
            rank.step()
            shares.append(asked)
        if number < 2:
            known.append(sum(asked[number] for asked in shares))  # type: ignore[arg-type]
            for rank, (state, values) in zip(ranks, before, strict=True):
                rank.state.clear()
                rank.state.update(state)  # type: ignore[arg-type]
                for p, value in zip((p for g in rank.param_groups for p in g["params"]), values, strict=True):
                    p.data.copy_(value)


# Under DeepSpeed

HP = ClientConfig(optimizer="adafactor", lr=1e-2, weight_decay=0.01, max_grad_norm=0.5, scale_parameter=True)


def t5() -> nn.Module:
    """Of odd sizes, which two ranks cannot halve."""
    torch.manual_seed(0)
    sizes = {"d_model": 15, "d_kv": 5, "d_ff": 21, "num_layers": 1, "num_heads": 3, "dropout_rate": 0.0}
    return T5ForConditionalGeneration(T5Config(vocab_size=41, decoder_start_token_id=0, **sizes))


def batch(seed: int) -> dict[str, Tensor]:
    ids = torch.randint(0, 41, (2, 9), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids, "labels": ids.flip(1)}


def loss(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
    return model(**batch).loss * 18, 18


def steps(count: int, seed: int) -> list[Step]:
    return [Step([batch(seed + 10 * i + j) for j in range(2)], 2, 0) for i in range(count)]


def two_rounds(engine: Engine) -> tuple[list[list[float]], dict[str, float]]:
    """Two clients with three and five steps; the first keeps its optimiser, the second begins anew each round."""
    weights, state, found = engine.initial_shared.clone(), None, []
    for _ in range(2):
        engine.start(weights, None, HP, steps=3, seed=0, optimizer_state=state)
        train(engine, steps(3, 0), loss)
        first, state = engine.flat.detach().cpu().clone(), engine.optimizer_state()
        engine.start(weights, None, HP, steps=5, seed=1)
        train(engine, steps(5, 500), loss)
        weights = (first + engine.flat.detach().cpu()) / 2
        found.append(weights.tolist())
    assert state is not None
    return found, {name: float(torch.as_tensor(value).double().norm()) for name, value in (state[0] | state[1]).items()}


def one_worker(which: list[EngineConfig], ranks: tuple[int, ...]) -> list[Any]:
    with DistributedCommunicator.join(("c",), timeout_s=60) as comm:
        worker, results = comm.join_worker(ranks), []
        for chosen in which:
            engine = DeepSpeedEngine(t5(), Partition(), CPU, settings=chosen, hp=HP, make_module=t5)
            engine.join(worker)
            results.append(two_rounds(engine))
        return results


STAGES = [EngineConfig(kind="deepspeed", stage=stage) for stage in (1, 2, 3)]
STAGES += [EngineConfig(kind="deepspeed", stage=3, offload_optimizer=True)]


@pytest.mark.processes
@pytest.mark.timeout(280)
def test_two_rounds_of_two_clients_equal_plain_adafactor_at_every_stage() -> None:
    engine = Engine(t5(), Partition(), CPU)
    expected, expected_state = two_rounds(engine)
    moved = float((torch.tensor(expected[1]) - engine.initial_shared).norm())
    for chosen, first, second in zip(STAGES, *run_ranks(one_worker, 2, STAGES, (0, 1), timeout=240), strict=True):
        assert first == second, chosen  # both ranks know all of it
        for found, plain in zip(first[0], expected, strict=True):
            distance = float((torch.tensor(found) - torch.tensor(plain)).norm())
            assert distance < 1e-4 * moved, (chosen, distance / moved)
        assert first[1] == pytest.approx(expected_state, rel=1e-3), chosen  # what the first client keeps


def final_losses(folder: Path, *configs: str) -> dict[str, float]:
    assert main(["--config", *configs, "--set", f"run.dir={folder}", "track.tensorboard=false"]) == 0
    clients = json.loads((folder / "results.json").read_text())["clients"]
    return {name: row["loss"] for name, row in clients.items()}


@pytest.mark.slow
@pytest.mark.parametrize("stage", [2, 3])
def test_a_row_of_lorar_trains_under_deepspeed_as_without(stage: int, tmp_path: Path) -> None:
    plain = final_losses(tmp_path / "plain", "smoke/fedopt_lorar")
    split = final_losses(tmp_path / "split", "smoke/fedopt_lorar", f"overlays/zero{stage}")
    assert split == pytest.approx(plain, rel=1e-4)
