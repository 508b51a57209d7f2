"""Fed-SB's fixed factors from public rows: the best of their rank for the gradient, the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_config
from own_rows import BERT, GPT2, classifier, completer, weather, write_rows
from torch import nn

from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.config.schema import ClientsConfig
from fedtorch.core.errors import ConfigError, DataError
from fedtorch.models.adapters.lora import lora_layers
from fedtorch.models.gpt2 import GPT2Model
from fedtorch.privacy.settings import PrivacyConfig
from fedtorch.setup.build import build
from fedtorch.tasks.public_rows import SIZE

RANK = 3


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(Path("rows.jsonl"), weather())
    write_rows(Path("public.jsonl"), [{key: row[key] for key in ("text", "label")} for row in weather()[:11]])
    pairs = [{"prompt": row["text"], "completion": row["label"], "home": row["home"]} for row in weather()]
    write_rows(Path("said.jsonl"), pairs)
    write_rows(Path("public_said.jsonl"), pairs[:11])
    Path("empty.csv").write_text("text,label\n")


ADAPTER = {"kind": "sb", "r": RANK, "dropout": 0.5}
CASES: dict[str, Any] = {
    "linear": lambda rows, kind: classifier("rows.jsonl", model={**BERT, "adapter": {**ADAPTER, **rows, **kind}}),
    "conv1d": lambda rows, kind: completer("said.jsonl", model={**GPT2, "adapter": {**ADAPTER, **rows, **kind}}),
}


@pytest.mark.parametrize("layer", CASES)
def test_they_are_the_best_of_their_rank_for_the_gradient(layer: str) -> None:
    """Of the plain model's loss over all rows, by autograd: B Bᵀ G Aᵀ A has the singular tail of G as its error."""
    source = {"linear": "public.jsonl", "conv1d": "public_said.jsonl"}[layer]
    task = CASES[layer]({"public_rows": source}, {})
    model = task.build_model(5)
    layers = lora_layers(model)
    assert layers
    assert_fits(task, model.eval(), layers, source)
    again = lora_layers(task.build_model(5))
    for name, one in layers.items():
        a, b = one.lora_A["default"], one.lora_B["default"].weight
        assert torch.equal(a.fixed, again[name].lora_A["default"].fixed) and not a.square.any()
        assert torch.equal(b, again[name].lora_B["default"].weight) and not b.requires_grad
    drawn = lora_layers(CASES[layer]({}, {}).build_model(5))
    for name, one in layers.items():
        assert not torch.equal(one.lora_A["default"].fixed, drawn[name].lora_A["default"].fixed)


def assert_fits(task: Any, model: nn.Module, layers: Any, source: str) -> None:
    from fedtorch.tasks.new_rows import all_usable, new_rows

    rows = [row for block in new_rows(source, task.data, task.form()) for row in all_usable(block)]
    assert SIZE < len(rows) == 11  # so that there is more than one batch
    for one in layers.values():
        one.base_layer.weight.requires_grad_()
    task.loss(model, task.collate(task.examples(rows, "here"), False))[0].backward()
    for one in layers.values():
        weight = one.base_layer.weight
        gradient = (weight.grad.T if one.fan_in_fan_out else weight.grad).double()
        a, b = one.lora_A["default"].fixed.double(), one.lora_B["default"].weight.double()
        error = (gradient - b @ (b.T @ gradient @ a.T) @ a).norm()
        tail = torch.linalg.svdvals(gradient)[RANK:].norm()
        assert abs(error - tail) < 1e-5 * gradient.norm()  # the gradient is of fp32, and summed in another order


@pytest.mark.parametrize(
    ("change", "error", "shown"),
    [
        ({"kind": "lora"}, ConfigError, "task.model.adapter.public_rows is 'public.jsonl', to which kind sb alone"),
        ({"r": 17}, ConfigError, "less than task.model.adapter.r"),
        ({"public_rows": "nowhere.jsonl"}, ConfigError, "nowhere.jsonl"),
        ({"public_rows": "said.jsonl"}, (ConfigError, DataError), "text"),
        ({"public_rows": "holes.jsonl"}, DataError, "holes.jsonl:2: `text` is missing or empty"),
        ({"public_rows": "empty.csv"}, DataError, "public_rows is 'empty.csv', which has no rows"),
    ],
)
def test_what_is_of_no_use_is_refused(change: dict[str, Any], error: Any, shown: str) -> None:
    Path("holes.jsonl").write_text('{"text": "a", "label": "bad"}\n{"text": "", "label": "bad"}\n')
    with pytest.raises(error, match=shown):
        CASES["linear"]({"public_rows": "public.jsonl"}, change).build_model(0)


def test_models_of_the_papers_tasks_refuse_them() -> None:
    from fedtorch.models.adapters.settings import Adapter

    adapter = Adapter(kind="sb", r=2, public_rows="public.jsonl")
    task = completer("said.jsonl")
    with pytest.raises(ConfigError, match="only tasks over data of your own"):
        GPT2Model(width=16, layers=1, heads=2, positions=32, adapter=adapter).build(0, task.vocabulary)


@pytest.mark.parametrize(("rows", "is_refused"), [("rows.jsonl", True), ("public.jsonl", False)])
def test_with_a_promise_they_are_nobodys_among_the_clients(rows: str, is_refused: bool, tmp_path: Path) -> None:
    task = CASES["linear"]({"public_rows": rows}, {})
    promise = PrivacyConfig(kind="client", clip=1.0, noise_multiplier=1.0, delta=1e-3)
    drawn = ClientsConfig(sampling="poisson", rate=0.5, per_round="all")
    config = make_config(tmp_path, task, FedAvg(weights="equal"), privacy=promise, clients=drawn)
    if is_refused:
        with pytest.raises(ConfigError, match="public_rows is 'rows.jsonl', which is among the clients' own rows"):
            build(config, num_ranks=1, rank=0)
    else:
        build(config, num_ranks=1, rank=0)
