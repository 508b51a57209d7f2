"""A run over a quantised base is asked afterwards: every command answers as the engine did when it was evaluated."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from own_rows import LLAMA as SMALL
from own_rows import write_rows
from transformers import LlamaConfig, LlamaForCausalLM

import fedtorch
from fedtorch.cli.__main__ import main
from fedtorch.config.load import load
from fedtorch.models.adapters.quantized import check_library, quantization_of
from fedtorch.models.adapters.settings import Quantize
from fedtorch.models.saved import load_saved
from fedtorch.text.byte_bpe import train_subwords

pytestmark = pytest.mark.long

LLAMA = {**SMALL, "hidden_size": 32, "initializer_range": 0.2}
COLOURS = ("red", "blue")
ROWS = [
    {"prompt": f"{colour} sign {i}:", "completion": f" {colour}"}
    for i in range(40)
    for colour in [COLOURS[i * i % 3 % 2]]
]
CASES: dict[str, dict[str, Any]] = {
    # a base of random weights lies dequantised beside the adapter; one in a folder is read and quantised again
    "nf4": {"from": "folder"},
    "int8": {"from": "seed"},
    "nf4-bf16": {"from": "seed", "engine": {"precision": "bf16"}},
    "int8-bf16": {"from": "folder", "engine": {"precision": "bf16"}},
    "nf4-local": {"from": "seed", "paradigm": "local"},  # each client has a model of its own
}


@pytest.fixture(scope="module", autouse=True)
def library() -> None:
    check_library()


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def base_in_a_folder() -> dict[str, Any]:
    """A Llama of random weights in bf16."""
    train_subwords([f"{row['prompt']}{row['completion']}" for row in ROWS], Path("base"), size=300)
    sizes = {key: value for key, value in LLAMA.items() if key != "random"}
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(vocab_size=300, **sizes)).bfloat16().save_pretrained("base")
    return {"path": "base"}


def trained(kind: str, start: str, **keys: Any) -> dict[str, Any]:
    """Results of two rounds, the better of which is kept; CLIENT.jsonl has the rows that a client is tested on."""
    write_rows(Path("rows.jsonl"), [{**row, "n": str(i)} for i, row in enumerate(ROWS)])
    base = base_in_a_folder() if start == "folder" else LLAMA
    adapter = {"kind": "lora", "r": 8, "targets": "all-linear", "base": "saved"}
    data = {"source": "rows.jsonl", "clients": {"iid": 2}, "splits": {"dev": 0.2, "test": 0.3}, "id": "n"}
    task = {
        "name": "causal_lm",
        "model": {**base, "adapter": adapter, "quantize": {"kind": kind}},
        "data": data if start == "folder" else {**data, "tokenizer_size": 300},
        "max_length": 32,
        "measures": ["exact_match"],
        "generate": {"max_new_tokens": 3},
    }
    config = {
        "run": {"name": "run", "dir": "run"},
        "task": task,
        "rounds": 2,
        "client": {"optimizer": "adamw", "lr": 0.03, "batch_size": 4, "epochs": 3},
        "eval": {"every": 1},
        "track": {"tensorboard": False, "progress": "off"},
        **keys,
    }
    Path("run.yaml").write_text(yaml.safe_dump(config))
    assert main(["run", "--config", "run.yaml"]) == 0
    found = load("run.yaml").task
    for client in found.manifest():
        write_rows(Path(f"{client}.jsonl"), found.rows(client, "test"))
    results: dict[str, Any] = json.loads(Path("run/results.json").read_text())
    return results


def predicted(client: str, *options: str) -> list[dict[str, Any]]:
    assert main(["predict", "run", f"{client}.jsonl", "--client", client, "--out", "answers.jsonl", *options]) == 0
    return [json.loads(line) for line in Path("answers.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("case", CASES)
def test_predict_and_chat_answer_as_the_engine_did(
    case: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = dict(CASES[case])
    results = trained(case.partition("-")[0], keys.pop("from"), **keys)
    hits = 0.0
    for client, measured in results["clients"].items():
        rows = [json.loads(line) for line in Path(f"{client}.jsonl").read_text().splitlines()]
        texts = [answer["text"].strip() for answer in predicted(client)]
        right = sum(text == row["completion"].strip() for text, row in zip(texts, rows, strict=True))
        assert [right, len(rows)] == measured["scores"]["exact_match"]
        hits += right
        likely = predicted(client, "--perplexity")
        mean = sum(row["log_likelihood"] for row in likely) / sum(row["tokens"] for row in likely)
        perplexity = results["summary"]["clients"][client]["perplexity"]
        assert math.exp(-mean) == pytest.approx(perplexity, rel=1e-6)  # sums of another order
        capsys.readouterr()
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{row['prompt']}\n/new\n" for row in rows)))
        assert main(["chat", "run", "--client", client]) == 0
        said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("assistant:")]
        assert [line.removeprefix("assistant:").strip() for line in said] == texts
    assert hits > 0


def logits(model: Any, tokenizer: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(tokenizer("red sign 3:", return_tensors="pt").input_ids).logits
    return found


@pytest.mark.parametrize("case", ["nf4", "int8", "nf4-local"])
def test_export_writes_the_model_that_was_evaluated(case: str) -> None:
    keys, kind = dict(CASES[case]), case.partition("-")[0]
    trained(kind, keys.pop("from"), **keys)
    client = "client_000"
    expected = logits(*fedtorch.open_run("run").load_model(client if "paradigm" in keys else None))
    assert main(["export", "run", "--client", client, "--out", "again"]) == 0
    again = load_saved(Path("again"))
    assert quantization_of(again[0]) == Quantize(kind=kind)  # type: ignore[arg-type]
    assert torch.equal(logits(*again), expected)
    assert main(["export", "run", "--client", client, "--merge", "--out", "whole"]) == 0
    merged = load_saved(Path("whole"))
    assert quantization_of(merged[0]) is None
    torch.testing.assert_close(logits(*merged), expected, rtol=1e-5, atol=1e-5)  # one product in place of two
