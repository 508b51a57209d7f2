"""Small files of rows, and tasks over them with models of a few hundred weights."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from harness import make_config, make_runner

from fedtorch.config.schema import ClientConfig, EvalConfig
from fedtorch.data.own.client_rule import ClientRule
from fedtorch.data.own.keys import OwnData, SplitRule
from fedtorch.rounds.runner import Runner
from fedtorch.tasks.base import Task
from fedtorch.tasks.causal_lm import CausalLM
from fedtorch.tasks.seq2seq import Seq2Seq
from fedtorch.tasks.text_classification import TextClassification
from fedtorch.tasks.text_generation import Generation
from fedtorch.tasks.token_classification import TokenClassification

BERT = {"random": "bert", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
GPT2: dict[str, Any] = {"random": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 64}
GPT2 |= {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
LLAMA = {"random": "llama", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
LLAMA |= {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}
T5 = {"random": "t5", "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0}
WORDS = {"bad": ("rain", "cold", "grey", "storm"), "good": ("sun", "warm", "blue", "calm")}
CLIENTS = ("north", "south", "west")
Made = TypeVar("Made")
BY_HOME = ClientRule(by="home")
ONE = ClientRule(iid=1)
DECODER = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
           "intermediate_size": 16, "head_dim": 8}  # fmt: skip
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "distilbert": {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 16},
    "modernbert": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16},
    "gpt2": {"n_embd": 16, "n_layer": 1, "n_head": 2},
    "llama": DECODER,
    "qwen3": DECODER,
    "gemma": DECODER,
    "bart": {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
             "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16},
    "t5": {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2},
}  # fmt: skip
"""Kinds of transformers, with sizes of a few hundred weights."""
OPTIMIZERS: dict[str, Any] = {"sgd": torch.optim.SGD, "adamw": partial(torch.optim.AdamW, fused=True)}


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> str:
    """Write JSONL; the name of the file. Ranks that all write it read it whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partly = path.with_name(f".{path.name}.{os.getpid()}")
    partly.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    partly.replace(path)
    return str(path)


def weather(size: int = 36, clients: tuple[str, ...] = CLIENTS) -> list[dict[str, Any]]:
    """Texts of two labels that can be told apart, all different, in turn at the clients."""
    draw, rows = random.Random(0), []
    for number in range(size):
        label = ("bad", "good")[number // len(clients) % 2]
        words = [*draw.choices(WORDS[label], k=draw.randint(2, 6)), f"day {number}"]
        rows.append({"text": " ".join(words), "label": label, "home": clients[number % len(clients)]})
    return rows


def names(size: int = 36) -> list[dict[str, Any]]:
    """Words with tags of two kinds, spans of up to two words among them."""
    draw, rows = random.Random(0), []
    spans = [["anna"], ["bert", "miller"], ["york"], ["rio", "negro"]]
    for number in range(size):
        tokens, tags = [f"{number}"], ["O"]
        for _ in range(draw.randint(2, 4)):
            place = draw.randrange(len(spans))
            kind = ("PER", "LOC")[place // 2]
            tokens += [*spans[place], draw.choice(["went", "saw", "and"])]
            tags += [f"{'BI'[i > 0]}-{kind}" for i in range(len(spans[place]))] + ["O"]
        rows.append({"tokens": tokens, "tags": tags, "home": CLIENTS[number % 3]})
    return rows


def own(source: str, **changes: Any) -> OwnData:
    """Rows whose column `home` says whose they are; a quarter each for dev and test."""
    return OwnData(source, **{"clients": BY_HOME, "splits": SplitRule(0.25, 0.25), "tokenizer_size": 270, **changes})


def _maker(cls: Callable[..., Made], random: Mapping[str, Any], **usual: Any) -> Callable[..., Made]:
    def make(source: str, *, model: Mapping[str, Any] = random, data: Mapping[str, Any] | None = None,
             **changes: Any) -> Made:  # fmt: skip
        return cls(data=own(source, **data or {}), model=model, **{"max_length": 64, **usual, **changes})

    return make


classifier = _maker(TextClassification, BERT)
"""A task over a source; `data` holds changes of the section `task.data`."""
tagger = _maker(TokenClassification, BERT)
FEW = Generation(max_new_tokens=8)  # longer than the labels; models that learned nothing generate all of it
completer, translator = _maker(CausalLM, GPT2, generate=FEW), _maker(Seq2Seq, T5, generate=FEW)


def trained(folder: Path, task: Task, rounds: int = 1, every: int = 1, **client: Any) -> Runner:
    """A run in one process, done; by default with AdamW in batches of four."""
    settings = ClientConfig(**{"optimizer": "adamw", "lr": 1e-2, "batch_size": 4, **client})
    runner = make_runner(make_config(folder, task, rounds=rounds, client=settings, eval=EvalConfig(every=every)))
    runner.run()
    return runner
