"""Adapters and their bases: which parts are written where, which weights are wide, which files do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from fedtorch.core.errors import ConfigError
from fedtorch.core.model_folder import ADAPTED
from fedtorch.models.adapters.lora import CONFIG, NAME, WEIGHTS, add_adapter, with_adapter
from fedtorch.models.adapters.mapped import map_base
from fedtorch.models.adapters.precision import pass_gradients_quickly, score_in_fp32, train_in_fp32
from fedtorch.models.adapters.saved import BASE, base_of, bases_elsewhere, save_adapted, saved_keys, tell_place
from fedtorch.models.adapters.settings import Adapter


def gpt2() -> Any:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=2))


class Part(nn.Module):
    """A model with one adapted layer, as far as its names tell."""

    def __init__(self, base: str | None) -> None:
        super().__init__()
        self.peft_config = {NAME: SimpleNamespace(base_model_name_or_path=base)}
        self.layer, self.head = nn.Linear(1, 1, bias=False), nn.Linear(1, 1)
        self.layer.weight.requires_grad_(False)
        self.layer.lora_A = nn.ParameterDict({"default": nn.Parameter(torch.zeros(1), requires_grad=False)})


class Whole(nn.Module):
    """Two parts, the base of one of which has a place of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.here, self.elsewhere, self.plain = Part(None), Part("models/base"), nn.Linear(1, 1)


def test_what_is_not_written_is_the_untrained_base_of_a_part_that_has_a_place_of_its_own() -> None:
    assert bases_elsewhere(Whole()) == ["elsewhere.layer.weight"]
    assert bases_elsewhere(Part("models/base")) == ["layer.weight"] and bases_elsewhere(Part(None)) == []
    assert bases_elsewhere(nn.Linear(1, 1)) == []


def test_a_base_of_random_weights_lies_below_its_adapter_and_another_one_is_named(tmp_path: Path) -> None:
    model = with_adapter(gpt2(), Adapter(r=2), 0, None)
    save_adapted(model, tmp_path / "random")
    assert (tmp_path / "random" / BASE).is_dir() and base_of(tmp_path / "random") == str(tmp_path / "random" / BASE)
    other = gpt2()
    add_adapter(other, Adapter(r=2), 0, base="models/base")
    save_adapted(other, tmp_path / "named")
    assert not (tmp_path / "named" / BASE).exists() and base_of(tmp_path / "named") == "models/base"
    keys = json.loads((tmp_path / "named" / CONFIG).read_text())
    (tmp_path / "named" / CONFIG).write_text(json.dumps({**keys, "base_model_name_or_path": None}))
    with pytest.raises(ConfigError, match="does not say of which base it is; set base_model_name_or_path there"):
        base_of(tmp_path / "named")
    with pytest.raises(ConfigError, match="holds no adapter that can be read"):
        base_of(tmp_path)


def test_a_file_that_does_not_fit_is_named_with_both_shapes(tmp_path: Path) -> None:
    save_adapted(with_adapter(gpt2(), Adapter(r=2), 0, None), tmp_path / "a")
    file = tmp_path / "a" / WEIGHTS
    kept = load_file(file)
    first = next(iter(kept))

    def refused(tensors: dict[str, torch.Tensor]) -> str:
        save_file(tensors, file)
        with pytest.raises(ConfigError) as caught:
            add_adapter(gpt2(), Adapter(path=str(tmp_path / "a")), 0)
        return str(caught.value).partition("does not fit the model: ")[2]

    shape = tuple(kept[first].shape)
    assert refused({**kept, first: torch.zeros(3, 3)}).endswith(f"has (3, 3), expected {shape}")
    assert refused({name: one for name, one in kept.items() if name != first}).endswith(
        f"has nothing, expected {shape}"
    )
    assert refused({**kept, "more": torch.zeros(1)}) == "more has (1,), expected nothing"
    save_file(kept, file)
    add_adapter(gpt2(), Adapter(path=str(tmp_path / "a")), 0)


def test_dropout_is_the_files_unless_another_is_asked_for(tmp_path: Path) -> None:
    save_adapted(with_adapter(gpt2(), Adapter(r=2, dropout=0.25), 0, None), tmp_path / "a")
    for asked, found in ((0.0, 0.25), (0.5, 0.5)):
        model = gpt2()
        add_adapter(model, Adapter(path=str(tmp_path / "a"), dropout=asked), 0)
        assert model.peft_config[NAME].lora_dropout == found


def test_what_is_trained_is_wide_and_what_is_not_stays_narrow() -> None:
    both = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)).to(torch.bfloat16)
    both[0].requires_grad_(False)
    both[2].float()
    train_in_fp32(both)
    assert [layer.weight.dtype for layer in both] == [torch.bfloat16, torch.float32, torch.float32]
    assert [len(layer._forward_pre_hooks) for layer in both] == [0, 1, 0]  # the third was wide already
    assert both[1](torch.ones(1, 2, dtype=torch.bfloat16)).dtype == torch.float32
    pass_gradients_quickly(both)
    assert [type(layer) is nn.Linear for layer in both] == [False, True, True]


class Scores(nn.Module):
    """A model with a head for tokens, or none."""

    def __init__(self, head: nn.Linear | None) -> None:
        super().__init__()
        self.head = head

    def get_output_embeddings(self) -> nn.Linear | None:
        """The head."""
        return self.head


def test_scores_of_a_narrow_head_are_wide() -> None:
    narrow, wide = nn.Linear(2, 3, dtype=torch.bfloat16), nn.Linear(2, 3)
    for head in (narrow, wide, None):
        score_in_fp32(Scores(head))
    assert narrow(torch.ones(2, dtype=torch.bfloat16)).dtype == torch.float32 and not wide._forward_hooks


def test_parameters_have_the_memory_of_a_file_where_they_are_the_same(tmp_path: Path) -> None:
    model = nn.Module()
    model.base_model_prefix = "inner"
    model.a, model.b = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
    model.inner = nn.Module()
    model.inner.c = nn.Parameter(torch.ones(4))
    tensors = {"a": torch.ones(2), "b": torch.ones(3) * 2, "c": torch.ones(4), "more": torch.ones(1)}
    save_file(tensors, tmp_path / "x.safetensors")
    kept = model.b.data_ptr()
    assert map_base(model, tmp_path) == 8 + 16  # b has other numbers, c stands below the prefix
    assert model.b.data_ptr() == kept and model.b.tolist() == [1.0, 1.0, 1.0] and model.inner.c.tolist() == [1.0] * 4
    for other in (torch.ones(2, dtype=torch.float64), torch.ones(2, 1)):
        save_file({"a": other}, tmp_path / "x.safetensors")
        assert map_base(model, tmp_path) == 0


@pytest.mark.parametrize(("targets", "is_turned"), [(["c_attn"], True), (["c_attn", "lm_head"], False)], ids=str)
def test_matrices_are_turned_where_all_layers_hold_them_so(targets: list[str], is_turned: bool) -> None:
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=2, tie_word_embeddings=False)
    )
    add_adapter(model, Adapter(r=2, targets=targets), 0)  # type: ignore[arg-type]
    assert model.peft_config[NAME].fan_in_fan_out == is_turned


def test_a_base_of_the_hub_is_asked_for_by_the_name_that_the_config_has(tmp_path: Path) -> None:
    (tmp_path / ADAPTED).write_text('{"dtype": "bfloat16"}')
    (tmp_path / CONFIG).write_text('{"base_model_name_or_path": "nobody/nothing"}')
    for source in ("hub:nobody/nothing", "nobody/nothing"):
        assert saved_keys(tmp_path, source) == {"path": source, "adapter": {"path": str(tmp_path), "base": "saved"}}
    for source in (None, "nobody/other"):
        with pytest.raises(ConfigError, match="names the base 'nobody/nothing', which is no folder and not in the"):
            saved_keys(tmp_path, source)
    # a folder of this machine is looked at, whatever the config calls it
    gone = str(tmp_path / "gone")
    (tmp_path / CONFIG).write_text(json.dumps({"base_model_name_or_path": gone}))
    with pytest.raises(ConfigError, match="gone', which is no folder"):
        saved_keys(tmp_path, gone)
    (tmp_path / "gone").mkdir()
    (tmp_path / ADAPTED).write_text("{}")
    assert saved_keys(tmp_path, None) == {"path": gone, "adapter": {"path": str(tmp_path), "base": "fp32"}}


def test_places_are_told_to_adapters_beside_a_folder_of_a_base_alone(tmp_path: Path) -> None:
    (tmp_path / "p" / "one" / BASE).mkdir(parents=True)
    (tmp_path / "p" / "two" / BASE).mkdir(parents=True)  # and no adapter beside it
    (tmp_path / "p" / "three").mkdir()
    (tmp_path / "p" / "three" / BASE).write_text("a file")
    for name in ("one", "three"):
        (tmp_path / "p" / name / CONFIG).write_text('{"base_model_name_or_path": "before"}')
    tell_place(tmp_path / "p", tmp_path / "model")
    told = [json.loads((tmp_path / "p" / name / CONFIG).read_text()) for name in ("one", "three")]
    assert [one["base_model_name_or_path"] for one in told] == [str(tmp_path / "model" / "one" / BASE), "before"]
