"""Runs over a quantised base: every rule, the same bits on any number of ranks, interrupted, and on a device."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from pretended_device import install
from ranks import run_ranks
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedtorch.config.load import load
from fedtorch.core import devices
from fedtorch.core.errors import ConfigError
from fedtorch.lifecycle.export import export
from fedtorch.main import main
from fedtorch.models.adapters.quantized import quantization_of
from fedtorch.models.saved import load_saved
from fedtorch.setup.build import build

pytestmark = pytest.mark.long

CONFIG = """
task:
  name: causal_lm
  model:
    random: llama
    hidden_size: 32
    intermediate_size: 48
    num_hidden_layers: 2
    num_attention_heads: 4
    num_key_value_heads: 2
    adapter: {r: 4, targets: all-linear}
    quantize: {kind: nf4}
  data: {source: rows.jsonl, columns: {text: text}, clients: {by: who}, splits: {dev: 0, test: 0.25}}
  rows_are: text
  max_length: 24
  generate: {max_new_tokens: 1}
rounds: 2
client: {optimizer: adamw, lr: 1.0e-2, batch_size: 4}
eval: {every: 0}
checkpoint: {every: 1}
run: {name: few}
track: {tensorboard: false, progress: "off"}
"""
RULES = {
    "fedit": [],
    "ffa": ['partition={frozen: ["*lora_A*"]}'],
    "fedsa": ['partition={private: ["*lora_B*"]}'],
    "rolora": ["algorithm={name: rolora}"],
    "hetlora": ["algorithm={name: hetlora, ranks: {a: 2}}"],
    "flexlora": ["algorithm={name: flexlora, ranks: {a: 2}}"],
    "sb": ["task.model.adapter={kind: sb, r: 4, targets: all-linear}"],
    "flora": ["algorithm={name: flora, ranks: {a: 2}}"],
    "fedex": ["algorithm={name: fedex}"],
    "scaffold": ["algorithm={name: scaffold}", "client.optimizer=sgd"],
    "fedkseed": ["algorithm={name: fedkseed}", "client.optimizer=sgd", "client.steps=2"],
    "int8": ["task.model.quantize={kind: int8}"],
    "bf16": ["engine.precision=bf16"],
}

QUICK = ("fedit", "fedex")


@pytest.fixture(autouse=True)
def _rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path)


def write_inputs(folder: Path) -> None:
    words = "rain sun wind cloud snow storm river field".split()
    rows = [{"text": f"{words[i % 8]} {words[i % 5]} {words[i % 3]} {i}", "who": "abc"[i % 3]} for i in range(24)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "few.yaml").write_text(CONFIG)


def run(name: str, *settings: str) -> dict[str, Any]:
    folder = Path("runs") / name
    assert main(["--config", "few.yaml", "--set", f"run.name={name}", f"run.dir={folder}", *settings]) == 0
    found: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return found


def sent(name: str) -> list[int]:
    lines = (Path("runs") / name / "metrics.jsonl").read_text().splitlines()
    return [record["bytes_up"] for record in map(json.loads, lines) if record["kind"] == "round"]


@pytest.mark.parametrize("rule", [r if r in QUICK else pytest.param(r, marks=pytest.mark.slow) for r in RULES])
def test_every_rule_trains_writes_and_resumes_over_a_quantised_base(rule: str) -> None:
    settings = RULES[rule]
    whole = run("whole", *settings)
    assert whole["rounds"] == 2
    assert run("half", *settings, "rounds=1")["rounds"] == 1
    resumed = run("half", *settings, "rounds=2")
    plain = run("plain", *settings, "task.model.quantize=null")
    assert resumed["digest"] == whole["digest"] != plain["digest"]
    pairs = zip(sent("whole"), sent("plain"), strict=True)  # nothing of the base travels
    assert all(abs(one - other) < 200 for one, other in pairs)  # reports are of unlike lengths


def as_rank(folder: str) -> int:
    os.chdir(folder)
    return main(["--config", "few.yaml", "--set", "run.name=ranks", *RULES["fedex"]])


@pytest.mark.processes
def test_any_number_of_ranks_gives_the_bits_of_one_process(tmp_path: Path) -> None:
    assert run_ranks(as_rank, 3, str(tmp_path)) == [0, 0, 0]
    digest = json.loads((tmp_path / "runs/ranks/results.json").read_text())["digest"]
    assert digest == run("alone", *RULES["fedex"])["digest"]


TRANSLATOR = """{
  name: seq2seq, max_length: 12, max_target_length: 4, generate: {max_new_tokens: 2},
  model: {random: t5, d_model: 16, d_kv: 8, d_ff: 32, num_layers: 1, num_heads: 2,
    adapter: {r: 4, targets: all-linear}, quantize: {kind: KIND}},
  data: {source: rows.jsonl, columns: {source: text, target: who}, clients: {by: who}, splits: {dev: 0, test: 0.25}}}"""


def on_both(folder: str) -> list[str]:
    """Digests of a T5; a Llama's layers are composed of other operations on that device, quantised or not."""
    os.chdir(folder)
    text = yaml.safe_load(CONFIG)
    found = []
    with sdpa_kernel(SDPBackend.MATH):
        for device in (torch.device("cpu"), install(has_four_bits=True)):
            devices.own = lambda choice, place=device, **about: place  # type: ignore[assignment]
            for kind in ("nf4", "int8"):
                task = yaml.safe_load(TRANSLATOR.replace("KIND", kind))
                Path("few.yaml").write_text(yaml.safe_dump({**text, "task": task, "rounds": 1}))
                found.append(run(f"{kind}-{device.type}")["digest"])
    return found


@pytest.mark.processes
def test_a_device_gives_the_bits_of_the_cpu(tmp_path: Path) -> None:
    found = run_ranks(on_both, 1, str(tmp_path), timeout=120)[0]
    assert found[:2] == found[2:] and len({*found}) == 2


def test_what_is_written_is_the_adapter_and_a_base_that_is_plain(tmp_path: Path) -> None:
    run("one")
    folder = Path("runs/one/model")
    assert json.loads((folder / "model_config.json").read_text())["fedtorch_quantize"] == {"kind": "nf4"}
    model, tokenizer = load_saved(folder)
    ids = tokenizer("rain sun wind", return_tensors="pt").input_ids
    with torch.no_grad():
        expected = model(ids).logits
        assert quantization_of(model) is not None
        export(tmp_path / "runs/one", out=tmp_path / "whole", merge=True)
        merged, _ = load_saved(tmp_path / "whole")
        assert quantization_of(merged) is None
        torch.testing.assert_close(merged(ids).logits, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("engine", ["{kind: deepspeed, stage: 2}", "{kind: fsdp}"])
def test_engines_that_split_parameters_are_refused_with_the_reason(engine: str) -> None:
    config = load([Path("few.yaml")], [f"engine={engine}", "run.dir=runs/x"])
    with pytest.raises(ConfigError, match="but task.model.quantize is set, whose packed weights are no numbers that"):
        build(config, num_ranks=2, rank=1)
