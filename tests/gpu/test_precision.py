"""Mixed precision on a GPU: training, overflow and decoding, of models whose layers autocast treats apart.

On the CPU the same is in tests/train/test_precision.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, T5Config, T5ForConditionalGeneration

from fedtorch.config.schema import ClientConfig
from fedtorch.core.weights import Partition
from fedtorch.models.esim import Esim
from fedtorch.models.networks.esim import EsimNetwork
from fedtorch.models.networks.hydranet import HydraNet, row_losses
from fedtorch.models.networks.re2 import Re2Network
from fedtorch.models.re2 import Re2
from fedtorch.models.t5 import generate_greedily
from fedtorch.models.word_model import WordModel
from fedtorch.train.engine import Engine
from fedtorch.train.loop import LossCurve, Step, train

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")]

ADAMW = ClientConfig(optimizer="adamw", lr=1e-3, max_grad_norm=1.0)
Loss = Callable[[nn.Module, Any], tuple[Tensor, int]]


def tokens(seed: int) -> Tensor:
    return torch.randint(2, 40, (4, 8), generator=torch.Generator().manual_seed(seed))


def language(model: nn.Module, ids: Tensor) -> tuple[Tensor, int]:
    return model(input_ids=ids, labels=ids, use_cache=False).loss.float() * ids.numel(), ids.numel()


def hydra(model: nn.Module, ids: Tensor) -> tuple[Tensor, int]:
    mask = torch.ones_like(ids)
    mask[:, 6:] = 0
    labels = torch.tensor([[1, 0, 2, 1, 3, 0, 4]], device=ids.device).expand(len(ids), -1)
    outputs = model({"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)})
    return torch.stack(list(row_losses(outputs, labels).values())).sum(), len(ids)


def matching(model: nn.Module, ids: Tensor) -> tuple[Tensor, int]:
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[1, 5:] = False
    scores = model(question_ids=ids, question_mask=mask, answer_ids=ids.flip(0), answer_mask=mask.flip(0))
    return (1 - scores).square().sum(), len(ids)


def t5() -> nn.Module:
    sizes = {"d_model": 16, "d_ff": 32, "d_kv": 8, "num_heads": 2, "num_layers": 1, "dropout_rate": 0.0}
    return T5ForConditionalGeneration(T5Config(vocab_size=40, decoder_start_token_id=0, pad_token_id=0, **sizes))


def gpt2() -> nn.Module:
    rates = dict.fromkeys(("embd_pdrop", "attn_pdrop", "resid_pdrop"), 0.0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=40, n_embd=16, n_layer=1, n_head=2, n_positions=16, **rates))


def hydranet() -> nn.Module:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    rates = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    return HydraNet(BertModel(BertConfig(vocab_size=40, **sizes, **rates)), dropout=0.0, attention=True)


def network(kind: type[nn.Module], sizes: WordModel) -> nn.Module:
    return kind(sizes, nn.Embedding(40, sizes.embedding, padding_idx=0))


MODELS: dict[str, tuple[Callable[[], nn.Module], Loss]] = {
    "t5": (t5, language),
    "gpt2": (gpt2, language),
    "hydranet": (hydranet, hydra),
    "esim": (lambda: network(EsimNetwork, Esim(embedding=8, hidden=8, dropout=0.0)), matching),
    "re2": (lambda: network(Re2Network, Re2(embedding=8, hidden=8, dropout=0.0)), matching),
}


def engine_of(name: str, precision: str) -> Engine:
    torch.manual_seed(0)
    return Engine(MODELS[name][0](), Partition(), torch.device("cuda", 0), precision=precision)


def trained(engine: Engine, loss: Loss, steps: int = 8) -> tuple[Tensor, LossCurve]:
    engine.start(engine.initial_shared, None, ADAMW, steps=steps, seed=0)
    curve = train(engine, [Step([tokens(i)], 1, 0) for i in range(steps)], loss)
    return engine.flat.detach().cpu().clone(), curve


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("name", MODELS)
def test_training_stays_close_to_fp32_with_fp32_weights(name: str, precision: str) -> None:
    loss, plain, mixed = MODELS[name][1], engine_of(name, "fp32"), engine_of(name, precision)
    (expected, curve), (found, found_curve) = trained(plain, loss), trained(mixed, loss)
    assert found_curve.losses == pytest.approx(curve.losses, rel=0.03)
    assert (found - expected).norm() < 0.5 * (expected - plain.initial_shared).norm()  # Adam: mostly signs of gradients
    state, _ = mixed.optimizer_state()
    assert {tensor.dtype for tensor in (found, *state.values(), *mixed.module.parameters())} == {torch.float32}
    assert found_curve.left_out == 0


def test_an_overflow_leaves_the_step_out_and_the_next_client_starts_afresh() -> None:
    def explosive(model: nn.Module, batch: tuple[Tensor, float]) -> tuple[Tensor, int]:
        total, count = language(model, batch[0])
        return total * batch[1], count

    engine = engine_of("gpt2", "fp16")
    engine.start(engine.initial_shared, None, ADAMW, steps=2, seed=0)
    curve = train(engine, [Step([(tokens(0), 1e36)], 1, 0)], explosive)
    assert torch.equal(engine.flat.cpu(), engine.initial_shared) and curve.left_out == 1
    train(engine, [Step([(tokens(0), 1.0)], 1, 0)], explosive)
    assert not torch.equal(engine.flat.cpu(), engine.initial_shared) and engine.left_out() == 1
    scale = engine._precision.scale
    assert scale is not None and scale.get_scale() == 2.0**11
    engine.start(engine.initial_shared, None, ADAMW, steps=2, seed=0)
    assert engine._precision.scale is not None and engine._precision.scale.get_scale() == 2.0**12


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_greedy_decoding_runs_in_every_precision(precision: str) -> None:
    engine = engine_of("t5", precision)
    engine.module.eval()
    with engine.autocast():
        outputs = generate_greedily(engine.module, tokens(0).tolist(), batch_size=2, max_length=5)
    assert len(outputs) == 4 and all(len(row) <= 5 for row in outputs)


def test_a_pass_without_gradients_takes_none_from_the_pass_after_it() -> None:
    def after_a_teacher(model: nn.Module, ids: Tensor) -> tuple[Tensor, int]:
        with torch.no_grad():
            model(input_ids=ids)
        return language(model, ids)

    found = []
    for loss in (language, after_a_teacher):
        engine = engine_of("gpt2", "bf16")
        found.append(trained(engine, loss, steps=1)[0] - engine.initial_shared)
    assert (found[0] - found[1]).norm() < 0.1 * found[0].norm() and found[0].norm() > 0
