"""The papers' own tasks with an adapter: text-to-SQL weighted as Lorar does, dialogs between two sides."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from fedtorch.lifecycle.export import export
from fedtorch.main import main
from fedtorch.models.adapters.settings import Adapter
from fedtorch.models.encoder_decoder import EncoderDecoder
from fedtorch.models.gpt2 import GPT2Model
from fedtorch.models.saved import load_saved
from fedtorch.models.t5 import T5Model
from fedtorch.text.byte_bpe import train_subwords
from tests.test_main import TINY

pytestmark = pytest.mark.long

DIALOGS = """
run: {name: dialogs, dir: DIR}
rounds: 1
task:
  name: dialog
  data: synthetic
  model: {name: gpt2-random, width: 16, layers: 1, heads: 2, positions: 96, adapter: {r: 2}}
  max_length: 96
  max_train: 16
  max_dev: 2
  max_test: 2
algorithm: {name: fedex}
client: {optimizer: adamw, lr: 1.0e-2, batch_size: 4, steps: 2}
partition: {private: ["user.*"]}
eval: {every: 0, batch_size: 16}
track: {progress: lines, tensorboard: false}
"""
IDS = torch.tensor([[5, 6, 7, 8], [9, 8, 7, 6]])


def record_of(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "round"]


@pytest.mark.parametrize("rule", ["fedavg", "flora", "fedex"])
def test_text_to_sql_weighted_by_lorar(rule: str, tmp_path: Path, tiny_data: Path) -> None:
    """T5's queries and values: r (d_in + d_out) of 6 layers of 16 × 16, the encoder's, the decoder's and across."""
    run, config = tmp_path / "run", tmp_path / "tiny.yaml"
    config.write_text(TINY.replace("DIR", str(run)).replace("DATA", str(tiny_data)))
    sets = ["task.model.adapter={r: 2}", f"algorithm={{name: {rule}, weights: lorar}}", "client.lr=0.05"]
    assert main(["--config", str(config), "--set", *sets]) == 0
    rounds = record_of(run)
    factors = 4 * 6 * 2 * 32 * 3  # beside which each of three clients sends a report and a score
    assert all(factors < line["bytes_up"] < factors + 3 * 2 * 2000 for line in rounds)
    errors = [line["extra"]["adapter/aggregation_error"] for line in rounds]
    assert min(errors) > 1e-3 if rule == "fedavg" else max(errors) < 1e-5
    adapted = load_saved(run / "model")[0]
    export(run, merge=True, out=tmp_path / "whole")
    whole = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "whole").eval()
    base = AutoModelForSeq2SeqLM.from_pretrained(run / "model" / "base").eval()
    with torch.no_grad():
        found, merged, before = (m(input_ids=IDS, decoder_input_ids=IDS).logits for m in (adapted, whole, base))
    assert (found - merged).abs().max() < 1e-5 < (found - before).abs().max()


@pytest.mark.parametrize("kind", ["t5", "bart", "gpt2"])
def test_a_base_of_16_bits_stays_so(kind: str, tmp_path: Path) -> None:
    """What is trained beside it is fp32, and so are the scores that a loss is taken of."""
    base = tmp_path / "base"
    train_subwords(["rain and sun and wind"], base, size=270)
    words = AutoTokenizer.from_pretrained(base)
    own: Any = {
        "t5": T5Model(d_model=16, d_ff=16, d_kv=8, num_heads=2, num_layers=1),
        "bart": EncoderDecoder(d_model=16, d_ff=16, num_heads=2, num_layers=1, max_positions=32),
        "gpt2": GPT2Model(width=16, layers=1, heads=2, positions=32),
    }[kind]
    own.build(0, words).to(torch.bfloat16).save_pretrained(base)
    model = replace(own, name=str(base), adapter=Adapter(r=2, base="saved")).build(0, words)
    dtypes = {name: parameter.dtype for name, parameter in model.named_parameters()}
    assert {dtype for name, dtype in dtypes.items() if ".lora_" not in name} == {torch.bfloat16}
    assert {dtype for name, dtype in dtypes.items() if ".lora_" in name} == {torch.float32}
    inputs = {"input_ids": IDS} | ({} if kind == "gpt2" else {"decoder_input_ids": IDS})
    logits = model(**inputs).logits
    assert logits.dtype == torch.float32
    logits.sum().backward()
    factors = [p for name, p in model.named_parameters() if "lora_B" in name]
    assert factors and all(p.grad is not None and p.grad.any() for p in factors)


def test_dialogs_of_two_sides_of_which_one_is_shared(tmp_path: Path) -> None:
    """The assistant's factors are averaged without loss, the user's stay with each client and are written for it."""
    run, config = tmp_path / "run", tmp_path / "dialogs.yaml"
    config.write_text(DIALOGS.replace("DIR", str(run)))
    assert main(["--config", str(config)]) == 0
    (line,) = record_of(run)
    assert line["extra"]["adapter/aggregation_error"] < 1e-5
    clients = [path for path in (run / "model").iterdir() if path.is_dir()]
    assert len(clients) > 1
    for client in clients:
        sides, _ = load_saved(client)
        ranks = {name: side.peft_config["default"].r for name, side in sides.items()}
        assert ranks["user"] == 2 < ranks["assistant"]
