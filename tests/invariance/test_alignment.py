"""No bit depends on where in memory a vector begins; weights that a model is run with always lie at the same place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from displaced import displaced
from smoke_runs import SMOKE, run_config
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from fedtorch.algorithms.adapters.stacks import ADDED, FLoRA
from fedtorch.core.weights import LINE, Layout, Partition, aligned
from fedtorch.models.adapters.lora import add_adapter, add_to_base, lora_layers
from fedtorch.models.adapters.settings import Adapter
from fedtorch.train.engine import Engine

pytestmark = pytest.mark.long

QUICK = ("fedparsing", "fedmatch", "ditto", "scaffold", "feda_top50", "smoke_ffw_full")
"""A teacher, private parameters, personal models, control variates, sparse messages, answers of other models."""
CPU = torch.device("cpu")


def outcome(path: Path, folder: Path) -> Any:
    results = run_config(path, folder, "rounds=2")
    return results["digest"], results["trained"], results["clients"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("smoke")


def places() -> Iterator[Any]:
    """(config, bytes that its vectors begin behind a line): the odd place, all of them if slow."""
    for path in SMOKE:
        if path.stem in QUICK:
            yield pytest.param(path, (4,), id=path.stem)
            yield pytest.param(path, (16, 32), id=f"{path.stem}, a quarter and half", marks=pytest.mark.slow)
        else:
            yield pytest.param(path, (4, 16, 32), id=path.stem, marks=pytest.mark.slow)


@pytest.mark.parametrize(("path", "places"), places())
def test_a_run_whose_vectors_lie_elsewhere_ends_with_the_same_bits(
    path: Path, places: tuple[int, ...], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights that wait, travel, are kept by clients, averaged and compared; gradients and moments of one dimension."""
    before = outcome(path, folder)
    for skipped_bytes in places:
        with displaced(skipped_bytes, monkeypatch) as mode:
            assert outcome(path, folder) == before, f"{skipped_bytes} bytes further on"
        assert mode.count > 20


def further_on(flat: Tensor, skipped: int) -> Tensor:
    """A copy that begins so many bytes behind a `LINE`."""
    room = torch.empty(flat.numel() + 2 * LINE, dtype=flat.dtype)
    start = (-room.data_ptr() % LINE + skipped) // room.element_size()
    return room[start : start + flat.numel()].copy_(flat)


class Adapted:
    """What FLoRA needs of a task."""

    def add_to_base(self, model: nn.Module, factors: Any) -> None:
        add_to_base(model, factors)


@pytest.mark.parametrize("skipped", [4, 8, 16, 32, 60])
def test_what_joined_the_base_computes_the_same_wherever_a_checkpoint_was_read_to(skipped: int) -> None:
    """safetensors gives tensors that begin at any multiple of their own size."""
    torch.manual_seed(0)
    config = BertConfig(vocab_size=30, hidden_size=20, num_hidden_layers=1, num_attention_heads=2, intermediate_size=12)
    model = BertModel(config).eval()
    add_adapter(model, Adapter(r=2, targets="all-linear"), seed=1)
    engine = Engine(model, Partition(), CPU)
    width = sum(sum(layer.lora_A["default"].weight.shape[1:]) + len(layer.lora_B["default"].weight)
                for layer in lora_layers(model).values())  # fmt: skip
    for rank in (1, 2, 5):
        added = torch.randn(rank * width) / 4
        found = []
        for vector in (added, further_on(added, skipped)):
            FLoRA().adopt(engine, Adapted(), {ADDED: vector})
            with torch.no_grad():
                found += [model(torch.tensor([[5, 6, 7][:n]])).last_hidden_state for n in (1, 2, 3)]
        assert all(torch.equal(one, other) for one, other in zip(found[:3], found[3:], strict=True))


def test_the_weights_that_a_model_is_run_with_begin_at_a_line_of_memory() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2), nn.Linear(2, 7))
    with pytest.MonkeyPatch.context() as patch, displaced(4, patch):
        engine = Engine(model, Partition(private=("1.*",), frozen=("2.*",)), CPU)
        loaded = further_on(torch.arange(float(engine.shared.size)), 12)
        engine.load(loaded)
        given = engine.placed(loaded)
    assert torch.equal(engine.flat, loaded) and torch.equal(given, loaded)
    for flat in (engine.flat, engine.flat_private, engine.flat_frozen, given):
        assert flat.data_ptr() % LINE == 0
    assert aligned(given) is given and loaded.data_ptr() % LINE == 12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("names", [("a",), ("b", "d"), ("d",), ("a", "b", "c", "d"), ()])
def test_copies_of_some_weights_lie_in_their_lines_as_the_weights_do(names: Any, dtype: torch.dtype) -> None:
    layout = Layout(("a", "b", "c", "d"), ((3,), (67, 2), (1, 5), (2, 2)), dtype)
    flat = aligned(torch.arange(layout.size, dtype=dtype))
    for received in (flat, further_on(flat, 24)):
        copies = layout.copied(received, names, CPU)
        assert list(copies) == list(names)
        for name, view in layout.view(flat).items():
            if name in names:
                assert torch.equal(copies[name], view) and copies[name].data_ptr() % LINE == view.data_ptr() % LINE
                copies[name].zero_()
    assert torch.equal(flat, torch.arange(layout.size, dtype=dtype))
