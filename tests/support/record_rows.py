"""Rows of three silos with persons, and tasks over them whose vocabulary and labels are public."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SILOS = ("bank", "clinic", "shop")
WORDS = {"bad": ("rain", "cold", "grey", "storm"), "good": ("sun", "warm", "blue", "calm")}


def vocabulary(folder: Path) -> Path:
    """A tokenizer of known words, made of nobody's rows."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "</s>", *(word for each in WORDS.values() for word in each), "is"]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", bos_token="[CLS]", **special).save_pretrained(
        folder
    )
    return folder


def rows(silo: str, persons: int, kind: str) -> list[dict[str, Any]]:
    """One to three rows of each person, in the form of a kind of task."""
    draw, found = random.Random(silo), []
    for number in range(persons):
        for _ in range(number % 3 + 1):
            label = draw.choice(["bad", "good"])
            words = draw.choices(WORDS[label], k=draw.randint(2, 5))
            text = " ".join(words)
            row: dict[str, Any] = {
                "text_classification": {"text": text, "label": label},
                "token_classification": {"tokens": words, "tags": ["B-W" if w == words[0] else "O" for w in words]},
                "seq2seq": {"source": text, "target": words[0]},
                "causal_lm": {"prompt": text, "completion": words[0]},
                "preference": {"prompt": text, "chosen": words[0], "rejected": f"{words[1]} is"},
            }[kind]
            found.append({**row, "patient": f"{silo} {number}", "silo": silo})
    return found


def write(folder: Path, kind: str, persons: int = 8) -> Path:
    """A file of rows for all silos."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{kind}.jsonl"
    lines = [json.dumps(row) for silo in SILOS for row in rows(silo, persons, kind)]
    path.write_text("\n".join(lines) + "\n")
    return path


BERT = "{random: bert, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 16}"
GPT2 = "{random: gpt2, n_layer: 1, n_embd: 16, n_head: 2, n_positions: 32}"
T5 = "{random: t5, d_model: 16, d_kv: 8, d_ff: 32, num_layers: 1, num_heads: 2}"
MODELS = {
    "text_classification": BERT,
    "token_classification": BERT,
    "seq2seq": T5,
    "causal_lm": GPT2,
    "preference": GPT2,
}
LABELS = {"text_classification": "[bad, good]", "token_classification": "[W]"}


def config(folder: Path, kind: str = "text_classification", promise: str = "", more: str = "") -> Path:
    """A config of two rounds. promise: further keys of `privacy`; more: further sections, or others."""
    vocabulary(folder / "vocabulary")
    labels = f", labels: {LABELS[kind]}" if kind in LABELS else ""
    text = f"""
rounds: 2
run: {{dir: {folder / "run"}}}
task:
  name: {kind}
  data: {{source: {write(folder / "rows", kind)}, clients: {{by: silo}}, splits: {{dev: 0, test: 0}}{labels}}}
  model: {MODELS[kind]}
  tokenizer: {folder / "vocabulary"}
  max_length: 16
algorithm: {{name: fedavg, weights: equal}}
client: {{optimizer: adamw, lr: 0.01, batch_size: 4, epochs: 1}}
track: {{progress: "off", tensorboard: false}}
privacy:
  kind: record
  units: {{bank: 8, clinic: 8, shop: 8}}
  unit: {{column: patient, max_rows: 2}}
  clip: 1.0
  noise_multiplier: 1.0
  delta: 0.01
  ledger: {folder / "silos"}
  {promise}
{more}
"""
    path = folder / "config.yaml"
    path.write_text(text)
    return path
