"""Activations that are computed again: the same gradients to the bit, and less that is kept meanwhile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_config
from pretended_device import install, used
from ranks import run_ranks
from smoke_runs import BRIEF, CONFIGS, run_config
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from toy import Quadratic
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoModelForSequenceClassification

from fedtorch.config.load import load
from fedtorch.config.schema import EngineConfig
from fedtorch.core.errors import ConfigError
from fedtorch.core.weights import Partition
from fedtorch.models.adapters.lora import add_adapter
from fedtorch.models.adapters.settings import Adapter
from fedtorch.planning import activations as planned
from fedtorch.planning.bench import step_key
from fedtorch.planning.dry_run import describe
from fedtorch.setup.build import build
from fedtorch.setup.engine import make_engine
from fedtorch.setup.plan import Plan
from fedtorch.setup.rules.record import vmap_keeps_activations
from fedtorch.train.activations import Kept, checkpointable, compute_activations_again, counted
from fedtorch.train.engine import Engine
from fedtorch.train.unit_gradients import LOOP, UnitGradients

CPU = torch.device("cpu")
ENDS = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2, "decoder_start_token_id": 0, "vocab_size": 40}
ENCODER = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
RATES = {"embd_pdrop": 0.1, "attn_pdrop": 0.1, "resid_pdrop": 0.1}
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "bert": (AutoModelForSequenceClassification, ENCODER),
    "roberta": (AutoModelForSequenceClassification, ENCODER),
    "gpt2": (AutoModelForCausalLM, {"n_embd": 16, "n_layer": 2, "n_head": 2, **RATES}),
    "llama": (AutoModelForCausalLM, {**ENCODER, "num_key_value_heads": 1, "attention_dropout": 0.1}),
    "t5": (AutoModelForSeq2SeqLM, {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}),
}


def model_of(kind: str, *, adapted: bool = False, again: bool = False) -> nn.Module:
    """A model with dropout and two layers, all drawn from a seed."""
    torch.manual_seed(3)
    made, sizes = KINDS[kind]
    model: nn.Module = made.from_config(AutoConfig.for_model(kind, num_labels=2, **ENDS, **sizes)).float()
    if adapted:
        add_adapter(model, Adapter(r=2, dropout=0.1), 0)
    if again:
        compute_activations_again(model)
    return model


def batch_of(kind: str, rows: int = 6, width: int = 9) -> dict[str, Tensor]:
    ids = torch.randint(3, 40, (rows, width), generator=torch.Generator().manual_seed(5))
    return {"input_ids": ids, "labels": ids[:, 0] % 2 if KINDS[kind][0] is AutoModelForSequenceClassification else ids}


def loss(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
    cached = {} if model.config.model_type in ("bert", "roberta") else {"use_cache": False}
    return model(**batch, **cached).loss * len(batch["labels"]), len(batch["labels"])


def gradients(kind: str, precision: str = "fp32", **how: bool) -> tuple[list[Tensor], int, bool]:
    """Gradients of two micro-batches, bytes kept for each, and whether the numbers drawn next are as expected."""
    engine, kept = Engine(model_of(kind, **how), Partition(), CPU, precision=precision), Kept()
    kept.leave_out([*engine.module.parameters(), *engine.module.buffers()])
    torch.manual_seed(7)
    engine.module.train()
    for _ in range(2):
        with counted(kept):
            engine.backward(loss, batch_of(kind), 2)
    return [p.grad for p in engine.trained if p.grad is not None], kept.bytes, torch.rand(1).item()  # type: ignore[return-value]


@pytest.mark.long
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("adapted", [False, True], ids=["whole", "adapter"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_have_the_same_bits_and_less_is_kept(kind: str, adapted: bool, precision: str) -> None:
    """With dropout, of whole models and of adapters on a frozen base; what is drawn afterwards is the same too."""
    plain, kept, after = gradients(kind, precision, adapted=adapted)
    again, less, after_again = gradients(kind, precision, adapted=adapted, again=True)
    assert plain and len(plain) == len(again) and all(g.abs().sum() > 0 for g in plain if g.dim() > 2)
    assert all(torch.equal(one, other) for one, other in zip(plain, again))
    assert after == after_again and less < 0.7 * kept


def test_nothing_is_computed_twice_where_no_gradient_is_asked_for() -> None:
    model = model_of("bert", again=True)
    calls: list[int] = []
    model.bert.encoder.layer[0].attention.register_forward_hook(lambda *_: calls.append(1))  # type: ignore[union-attr]
    for mode in (model.eval, model.train):
        mode()
        with torch.no_grad():
            loss(model, batch_of("bert"))
    assert len(calls) == 2
    loss(model.train(), batch_of("bert"))[0].backward()
    assert len(calls) == 4


def test_units_of_record_privacy_are_taken_one_after_the_other() -> None:
    """torch cannot compute again inside vmap: `auto` finds that out, and has the gradients of the loop."""

    class Rows:
        def collate(self, examples: Any, train: bool) -> dict[str, Tensor]:
            whole = batch_of("bert")
            return {name: value[torch.tensor(examples)] for name, value in whole.items()}

        loss = staticmethod(loss)

    found = []
    for again, how in ((False, LOOP), (True, "auto")):
        engine = Engine(model_of("bert", again=again), Partition(), CPU)
        torch.manual_seed(1)
        taken = UnitGradients(engine, Rows(), how)
        engine.module.eval() if not again else engine.module.train()
        for part in engine.module.modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.0
        found.append(torch.cat([flat for flat, _ in taken.chunks([[0], [1, 2], [3]])]))
        assert taken.how == LOOP
    assert torch.equal(*found)


def record_plan(tmp_path: Path, per_unit: str, again: bool) -> Plan:
    task = Quadratic(clients={"a": (1.0, 0.0, 3)}, start=(1.0,))
    plan = Plan.of(make_config(tmp_path, task, engine=EngineConfig(activation_checkpointing=again)), 1)
    privacy = replace(plan.config.privacy)
    object.__setattr__(privacy, "per_unit", per_unit)
    return replace(plan, config=replace(plan.config, privacy=privacy))


def test_vmap_over_units_is_refused(tmp_path: Path) -> None:
    for per_unit, again in (("auto", True), ("loop", True), ("vmap", False)):
        vmap_keeps_activations(record_plan(tmp_path, per_unit, again))
    with pytest.raises(ConfigError, match=r"per_unit is vmap and engine.activation_checkpointing is true.*set privacy"):
        vmap_keeps_activations(record_plan(tmp_path, "vmap", True))


def test_models_that_do_not_offer_it_are_refused_and_a_server_that_only_serves_need_not(tmp_path: Path) -> None:
    config = make_config(
        tmp_path, Quadratic(clients={"a": (1.0, 0.0, 3)}), engine=EngineConfig(activation_checkpointing=True)
    )
    with pytest.raises(ConfigError, match="activation_checkpointing is true but the model of task .* does not offer"):
        make_engine(config, lambda: nn.Linear(2, 2), CPU, hp=config.client, ranks=1)

    def again(trains: bool) -> bool:
        made = make_engine(config, lambda: model_of("bert"), CPU, hp=config.client, ranks=int(trains))
        return any(getattr(part, "gradient_checkpointing", False) for part in made.module.modules())

    assert again(True) and not again(False)
    assert [type(m).__name__ for m in checkpointable(nn.ModuleList([model_of("gpt2"), nn.Linear(2, 2)]))] == [
        "GPT2LMHeadModel"
    ]


def planned_and_real(monkeypatch: pytest.MonkeyPatch, again: bool) -> tuple[int, int, str]:
    built = build(load("smoke/fedavg", [f"engine.activation_checkpointing={str(again).lower()}"]), num_ranks=1, rank=0)
    told = planned.activation_bytes(built)
    assert told is not None
    task, module, kept = built.training, built.engine.module, Kept()
    client = planned.largest_client(built)
    batch = task.collate(task.load(client.name, "train")[: built.config.client.batch_size], True)
    kept.leave_out([*module.parameters(), *module.buffers()])
    with counted(kept):
        task.loss(module.train(), batch)
    return told, kept.bytes, describe(built, num_ranks=1)


@pytest.mark.long
def test_the_dry_run_tells_their_bytes_without_computing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDTORCH_TESTING", "1")
    whole, kept, shown = planned_and_real(monkeypatch, False)
    assert whole == kept and f"activations: {whole / 2**20:,.1f} MiB for the first micro-batch" in shown
    less, kept, shown = planned_and_real(monkeypatch, True)
    assert less == kept < 0.3 * whole and f"activations (they are computed again): {less / 2**20:,.1f} MiB" in shown


@pytest.mark.long
def test_an_engine_that_has_16_bits_of_its_own_keeps_no_copies_of_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DeepSpeed's module is in them, whose passes are counted here for real."""
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("deepspeed")
    keys = ["engine.kind=deepspeed", "engine.stage=3", "engine.precision=bf16"]
    built = build(load("smoke/fedavg", keys), num_ranks=1, rank=0, is_for_count=True)
    told = planned.activation_bytes(built)
    real, kept = build(load("smoke/fedavg"), num_ranks=1, rank=0), Kept()
    task, module = real.training, real.engine.module.bfloat16()
    client = planned.largest_client(real)
    kept.leave_out([*module.parameters(), *module.buffers()])
    with counted(kept):
        task.loss(module.train(), task.collate(task.load(client.name, "train")[: real.config.client.batch_size], True))
    assert told == kept.bytes


def test_a_steps_seconds_are_others_with_another_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So what was measured with the usual one is not taken for them."""
    monkeypatch.chdir(tmp_path)
    changes = ([], ["engine.activation_checkpointing=true"], ["engine.attention=eager"], ["engine.attention=auto"])
    keys = [step_key(build(load("smoke/fedavg", each), num_ranks=1, rank=0)) for each in changes]
    assert len(set(keys)) == 3 and keys[0] == keys[3]


def test_the_dry_run_says_where_it_cannot_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    built = build(load("smoke/esim"), num_ranks=1, rank=0)
    assert "activations: not known, as the task looks at numbers" in describe(built, num_ranks=1)


@pytest.mark.long
def test_a_run_ends_with_the_same_digest(tmp_path: Path) -> None:
    smoke = CONFIGS / "smoke" / "fedavg.yaml"
    settings = [f"engine.activation_checkpointing={again}" for again in ("false", "true")]
    one, other = (run_config(smoke, tmp_path, BRIEF, setting)["digest"] for setting in settings)
    assert one == other


def on_a_device() -> dict[str, list[bool]]:
    """Kind -> are gradients equal on the device, kept and computed again; and to those of the CPU?"""
    found, device = {}, install()
    with sdpa_kernel(SDPBackend.MATH):
        for kind in ("bert", "gpt2", "t5", "llama"):
            taken = []
            for place, again in ((CPU, True), (device, False), (device, True)):
                engine = Engine(model_of(kind, again=again), Partition(), place)
                torch.manual_seed(7)
                engine.module.train()
                for _ in range(2):
                    engine.backward(loss, batch_of(kind), 2)
                taken.append(torch.cat([p.grad.cpu().flatten() for p in engine.trained if p.grad is not None]))
            found[kind] = [torch.equal(taken[1], taken[2]), torch.equal(taken[0], taken[2])]
    assert used["generator kept"] and used["generator put back"], used
    return found


@pytest.mark.processes
def test_a_device_has_the_same_gradients() -> None:
    """Llama's norm is made of other operations there than on the CPU, whether activations are kept or not."""
    (found,) = run_ranks(on_a_device, 1)
    assert found == {"bert": [True, True], "gpt2": [True, True], "t5": [True, True], "llama": [True, False]}
