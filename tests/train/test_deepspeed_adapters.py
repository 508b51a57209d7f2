"""Adapters under DeepSpeed and FSDP: as in a plain process, and what is written is whole."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_config, make_runner
from own_rows import BERT, GPT2, classifier, completer, weather, write_rows
from ranks import run_ranks
from safetensors.torch import load_file

from tests.train.test_deepspeed_ranks import Outcome, agree, engine_of, result

pytest.importorskip("deepspeed")

from fedtorch.algorithms.adapters.rolora import RoLoRA
from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.schema import ClientConfig, Config, EngineConfig, EvalConfig, PartitionConfig, SystemConfig
from fedtorch.tasks.base import Task

BERT_STILL = BERT | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
ADAMW = ClientConfig(optimizer="adamw", lr=1e-2, batch_size=2, accumulation=2)
LORA, SQUARE = {"r": 2}, {"kind": "sb", "r": 3}


def cases() -> dict[str, tuple[Task, Algorithm, dict[str, Any]]]:
    said = {"columns": {"prompt": "text", "completion": "label"}}
    return {
        "fedit": (classifier("rows.jsonl", model=BERT_STILL | {"adapter": LORA}), FedAvg(), {}),
        "fedsa": (classifier("rows.jsonl", model=BERT_STILL | {"adapter": LORA}), FedAvg(),
                  {"partition": PartitionConfig(private=("*lora_B*",))}),
        "rolora": (completer("rows.jsonl", model=GPT2 | {"adapter": LORA}, data=said), RoLoRA(), {}),
        "fed-sb": (completer("rows.jsonl", model=GPT2 | {"adapter": SQUARE}, data=said), FedAvg(), {}),
    }  # fmt: skip


def config_of(folder: Path, name: str, **changes: Any) -> Config:
    task, algorithm, settings = cases()[name]
    return make_config(
        folder / name, task, algorithm, rounds=2, client=ADAMW, eval=EvalConfig(every=1), **settings, **changes
    )


def as_rank(folder: str, configs: list[Config]) -> list[Outcome]:
    os.chdir(folder)
    with DistributedCommunicator.join(tuple(configs[0].task.manifest()), timeout_s=60) as comm:
        return [result(config, comm) for config in configs]


@pytest.mark.processes
@pytest.mark.timeout(280)
@pytest.mark.parametrize("stage", [pytest.param(stage, marks=pytest.mark.slow) for stage in (0, 1, 2)] + [3, "fsdp"])
def test_a_worker_of_two_ranks_equals_one_plain_process(stage: int | str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(Path("rows.jsonl"), weather(24))
    names = list(cases())
    expected = [result(config_of(tmp_path / "one", name)) for name in names]
    shared = {"engine": engine_of(stage), "system": SystemConfig(ranks_per_worker=2)}
    configs = [config_of(tmp_path / "many", name, **shared) for name in names]
    found = run_ranks(as_rank, 3, str(tmp_path), configs, timeout=240)[0]
    for one, other in zip(found, expected, strict=True):
        agree(one, other)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("stage", [2, 3])
def test_what_is_written_has_whole_factors(stage: int, tmp_path: Path, monkeypatch: Any) -> None:
    """Of stage 3 peft alone would write empty tensors (huggingface/peft#2500)."""
    monkeypatch.chdir(tmp_path)
    write_rows(Path("rows.jsonl"), weather(24))
    for name in ("fedit", "fed-sb"):
        saved = []
        for kind in ("torch", "deepspeed"):
            engine = EngineConfig() if kind == "torch" else EngineConfig(kind="deepspeed", stage=stage)
            runner = make_runner(config_of(tmp_path / kind, name, engine=engine))
            runner.run()
            runner.export(tmp_path / kind / name / "model")
            saved.append(load_file(tmp_path / kind / name / "model" / "adapter_model.safetensors"))
        assert saved[0].keys() == saved[1].keys()
        for key, tensor in saved[0].items():
            assert torch.allclose(tensor, saved[1][key], atol=1e-4) and tensor.any(), key
