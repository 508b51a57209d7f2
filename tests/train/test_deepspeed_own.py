"""Any encoder, encoder-decoder and decoder over rows of one's own under DeepSpeed and FSDP, as in a plain process."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness import make_config
from judged_rows import judge, write_both
from own_rows import BERT, FEW, classifier, own, weather, write_rows
from ranks import run_ranks

from tests.train.test_deepspeed_ranks import Outcome, agree, engine_of, result

pytest.importorskip("deepspeed")

from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.schema import ClientConfig, Config, EvalConfig, SystemConfig
from fedtorch.tasks.base import Task
from fedtorch.tasks.causal_lm import CausalLM
from fedtorch.tasks.seq2seq import Seq2Seq

BART = {"random": "bart", "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2}
BART |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "dropout": 0.0}
QWEN3 = {"random": "qwen3", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 8}
QWEN3 |= {"num_key_value_heads": 1, "intermediate_size": 16}
ADAMW = ClientConfig(optimizer="adamw", lr=1e-3, batch_size=2, accumulation=2, optimizer_state="keep")


def tasks() -> dict[str, Task]:
    answers = own("rows.jsonl", columns={"source": "text", "target": "label"})
    texts = own("rows.jsonl", columns={"text": "text"})
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return {
        "encoder": classifier("rows.jsonl", model=BERT | no_dropout),
        "encoder-decoder": Seq2Seq(data=answers, model=BART, max_length=64, generate=FEW),
        "preferences": judge("pairs.jsonl", model=QWEN3),
        "verdicts": judge("verdicts.jsonl", model=QWEN3, kind="kto"),
        "decoder": CausalLM(data=texts, model=QWEN3, rows_are="text", max_length=64, generate=FEW),
    }


def as_rank(folder: str, configs: list[Config]) -> list[Outcome]:
    os.chdir(folder)
    with DistributedCommunicator.join(tuple(configs[0].task.manifest()), timeout_s=60) as comm:
        return [result(config, comm) for config in configs]


@pytest.mark.processes
@pytest.mark.timeout(280)
@pytest.mark.parametrize(
    "stage",
    [
        pytest.param(1, marks=pytest.mark.slow),
        2,
        *[pytest.param(stage, marks=pytest.mark.slow) for stage in (3, "fsdp")],
    ],
)
def test_a_worker_of_two_ranks_equals_one_process(
    stage: int | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows differ in length, so the ranks' micro-batches differ in tokens: sums are divided, not means averaged."""
    monkeypatch.chdir(tmp_path)
    write_rows(Path("rows.jsonl"), weather(24))
    write_both()
    whole = SystemConfig(oom_retry=False)  # as KTO's batches have to be
    plain: dict[str, Any] = {"client": ADAMW, "eval": EvalConfig(every=1), "system": whole}
    shared: dict[str, Any] = {"engine": engine_of(stage)}
    shared["system"] = replace(whole, ranks_per_worker=2)
    expected = {kind: result(make_config(tmp_path / kind, task, **plain)) for kind, task in tasks().items()}
    configs = [make_config(tmp_path / "many" / kind, task, **{**plain, **shared}) for kind, task in tasks().items()]
    for found, kind in zip(run_ranks(as_rank, 3, str(tmp_path), configs, timeout=240)[0], expected, strict=True):
        agree(found, expected[kind])
