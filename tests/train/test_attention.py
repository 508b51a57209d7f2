"""The choice of attention: what a model then computes with, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_config
from smoke_runs import CONFIGS, run_config
from torch import nn
from toy import Quadratic
from transformers import BertConfig, BertForSequenceClassification, T5Config, T5ForConditionalGeneration

from fedtorch.config.schema import EngineConfig
from fedtorch.core import devices
from fedtorch.core.errors import ConfigError
from fedtorch.models.networks.patched_bert import Pal, Projections
from fedtorch.setup.engine import make_engine
from fedtorch.setup.plan import Plan
from fedtorch.setup.rules.engine import flash_attention_has_what_it_needs
from fedtorch.train.attention import use_attention

CPU, GPU = torch.device("cpu"), torch.device("meta")
TASK = Quadratic(clients={"a": (1.0, 0.0, 3)}, start=(1.0,))


def bert() -> nn.Module:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return BertForSequenceClassification(BertConfig(vocab_size=40, **sizes)).eval()


def t5() -> nn.Module:
    torch.manual_seed(0)
    return T5ForConditionalGeneration(T5Config(vocab_size=41, d_model=16, d_ff=24, d_kv=8, num_heads=2, num_layers=1))


def kernels_of(model: nn.Module, monkeypatch: pytest.MonkeyPatch, **inputs: Any) -> int:
    """How often torch's own attention is called in a forward pass."""
    calls: list[int] = []
    plain = torch.nn.functional.scaled_dot_product_attention

    def watched(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return plain(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
        model(torch.randint(2, 40, (2, 7)), **inputs)
    return len(calls)


@pytest.mark.parametrize(("choice", "calls"), [("auto", 1), ("sdpa", 1), ("eager", 0), ("flash_attention_2", 1)])
def test_a_model_computes_with_what_was_chosen(choice: str, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flash attention changes nothing on a CPU, where a run that was trained with it is looked at."""
    model, plain = bert(), bert()
    use_attention(model, choice, CPU)
    assert kernels_of(model, monkeypatch) == calls
    ids = torch.randint(2, 40, (2, 7), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model(ids).logits, plain(ids).logits, atol=1e-6, rtol=1e-5)  # sums in another order


def test_models_inside_others_compute_with_it_too() -> None:
    both = nn.ModuleDict({"one": bert(), "other": t5(), "own": nn.Linear(2, 2)})
    use_attention(both, "eager", CPU)
    found = {part.config._attn_implementation for part in both.modules() if hasattr(part, "config")}
    assert found == {"eager"}


def test_a_module_without_such_models_and_classes_without_the_choice_are_refused() -> None:
    with pytest.raises(ConfigError, match="engine.attention is sdpa but no model of transformers is in it; set"):
        use_attention(nn.Linear(2, 2), "sdpa", CPU)

    class Old(BertForSequenceClassification):
        _supports_sdpa = False

    class Fixed(BertForSequenceClassification):
        def _can_set_attn_implementation(self) -> bool:  # as classes before transformers' interface
            return False

    for cls, words in ((Old, "sdpa, which transformers has not for Old"), (Fixed, "Fixed does not let itself be")):
        model = bert()
        model.config._attn_implementation = "eager"
        model.__class__ = cls
        with pytest.raises(ConfigError, match=words):
            use_attention(model, "sdpa", CPU)
    patched = nn.ModuleList([bert(), Pal(Projections(4, 2), 2, 1)])
    with pytest.raises(ConfigError, match="flash_attention_2 but the model has attention of its own"):
        use_attention(patched, "flash_attention_2", GPU)
    use_attention(patched, "eager", GPU)


def test_the_engine_has_it_before_it_lays_out_the_model(tmp_path: Path) -> None:
    config = make_config(tmp_path, TASK, engine=EngineConfig(attention="eager"))
    for trains in (True, False):  # a server evaluates with the same kernel
        made = make_engine(config, bert, CPU, hp=config.client, ranks=int(trains))
        assert made.module.config._attn_implementation == "eager"  # type: ignore[union-attr]


def plan_of(tmp_path: Path, *, precision: str = "bf16", deterministic: bool = False, **system: Any) -> Plan:
    engine = EngineConfig(attention="flash_attention_2", precision=precision)  # type: ignore[arg-type]
    config = make_config(tmp_path, TASK, engine=engine)
    config = replace(config, system=replace(config.system, deterministic=deterministic, **system))
    return Plan.of(config, 1)


def test_flash_attention_needs_a_gpu_16_bits_and_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(words: str, **how: Any) -> None:
        with pytest.raises(ConfigError, match=f"engine.attention is flash_attention_2 but {words}.*set engine.attent"):
            flash_attention_has_what_it_needs(plan_of(tmp_path, **how))

    monkeypatch.setattr(devices, "count", lambda *_: 0)
    refused("no GPU is used")
    monkeypatch.setattr(devices, "count", lambda *_: 1)
    refused("no GPU is used", device="cpu")
    refused("engine.precision is fp32", precision="fp32")
    refused("system.deterministic is true", deterministic=True)
    refused("the package flash-attn")
    monkeypatch.setattr("fedtorch.setup.rules.engine.find_spec", lambda name: name)
    flash_attention_has_what_it_needs(plan_of(tmp_path))


@pytest.mark.long
def test_a_run_is_the_same_whether_its_kernel_was_named_or_not(tmp_path: Path) -> None:
    smoke = CONFIGS / "smoke" / "gpt_local.yaml"
    digests = {c: run_config(smoke, tmp_path, f"engine.attention={c}")["digest"] for c in ("auto", "sdpa", "eager")}
    assert digests["auto"] == digests["sdpa"] != digests["eager"]
