"""A server that only serves holds no base: its values are let go of once all ranks have compared them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from own_rows import classifier, weather, write_rows
from ranks import run_ranks

from fedtorch.core.weights import release
from fedtorch.main import main
from fedtorch.models.pretrained import save_model, save_tokenizer
from fedtorch.rounds.runner import Runner

CONFIG = """
task:
  name: text_classification
  model: {path: base, adapter: {kind: KIND, r: 2}}
  data: {source: rows.jsonl, clients: {by: home}, splits: {dev: 0.25, test: 0.25}}
  max_length: 24
rounds: 2
client: {optimizer: adamw, lr: 1.0e-2, batch_size: 4}
run: {name: one, dir: RUN}
track: {tensorboard: false}
compare: [start]
"""


def on_ranks(folder: str) -> dict[str, tuple[str, ...]]:
    """Devices of parameters while the run lasts: of the base, and of all others."""
    seen: dict[str, tuple[str, ...]] = {}
    run = Runner.run

    def watched(self: Runner, resume: int | None = None) -> Any:
        engine = self.components.engine
        own = {name for name in engine.fixed if ".lora_" not in name}
        for part, names in (("base", own), ("others", {n for n, _ in engine.module.named_parameters()} - own)):
            seen[part] = tuple(sorted({engine.module.get_parameter(name).device.type for name in names}))
        return run(self, resume)

    Runner.run = watched  # type: ignore[method-assign]
    assert main(["--config", f"{folder}/one.yaml"]) == 0
    return seen


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["lora", "sb"])
def test_a_server_that_does_not_evaluate_holds_no_base(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the run ends with the bits of one process, its model written by the server."""
    monkeypatch.chdir(tmp_path)
    write_rows(Path("rows.jsonl"), weather())
    task = classifier("rows.jsonl")
    save_model(task.build_model(3), Path("base"))
    save_tokenizer(task.vocabulary, Path("base"))
    digests, files = [], []
    for count in (1, 3):
        folder = tmp_path / str(count)
        folder.mkdir()
        (folder / "one.yaml").write_text(CONFIG.replace("KIND", kind).replace("RUN", f"{folder}/run"))
        server, *workers = run_ranks(on_ranks, count, str(folder))
        expected = ("meta",) if workers else ("cpu",)
        assert server == {"base": expected, "others": ("cpu",)}
        assert all(worker == {"base": ("cpu",), "others": ("cpu",)} for worker in workers)
        run = folder / "run"
        digests.append(json.loads((run / "results.json").read_text())["digest"])
        files.append((run / "model" / "adapter_model.safetensors").read_bytes())
    assert digests[0] == digests[1] and files[0] == files[1]


@pytest.mark.long
def test_what_was_let_go_keeps_its_name_and_shape_and_its_ties() -> None:
    module = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2, bias=False), "b": torch.nn.Linear(2, 2, bias=False)})
    module["b"].weight = module["a"].weight
    release(module, ["a.weight"])
    assert module["a"].weight is module["b"].weight and module["a"].weight.is_meta
    assert tuple(module["a"].weight.shape) == (2, 2) and [name for name, _ in module.named_parameters()] == ["a.weight"]
