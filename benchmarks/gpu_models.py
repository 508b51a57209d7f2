"""Parts `deepspeed`, `papers` and `large` of the benchmark of GPUs: seconds and memory of models of full size.

python -m benchmarks.gpu_models CASE DEVICE SMALL     one case, in a process of its own; prints its row

All weights are random and made here, most on the device.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from benchmarks.engines import ENGINES, engine_of
from benchmarks.gpu_part import Setting, ended_as, last_lines
from fedtorch.config.schema import ClientConfig
from fedtorch.core.weights import Partition
from fedtorch.models.adapters.lora import add_adapter
from fedtorch.models.adapters.quantized import quantize_in_place
from fedtorch.models.adapters.settings import Adapter, Quantize
from fedtorch.train.engine import Engine
from fedtorch.train.loop import Step, train

ADAMW = ClientConfig(optimizer="adamw", lr=1e-4, max_grad_norm=1.0)
STAGES = {name: settings for name, settings in ENGINES.items() if "bf16" not in name}
NO_DROPOUT = dict.fromkeys(("embd_pdrop", "attn_pdrop", "resid_pdrop"), 0.0)
GPT2_124M = {"vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024}
GPT2_774M = {**GPT2_124M, "n_embd": 1280, "n_layer": 36, "n_head": 20}
GPT2_SMALL = {"vocab_size": 200, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}
LLAMA_7B = {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
            "num_attention_heads": 32, "max_position_embeddings": 2048}  # fmt: skip
LLAMA_SMALL = {**LLAMA_7B, "vocab_size": 200, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
               "num_attention_heads": 2}  # fmt: skip
NEEDS_GB = {"0.8 B, all weights, bf16": 24.0, "7 B, LoRA, bf16": 24.0, "7 B, LoRA beside nf4, bf16": 24.0}
"""Case -> free memory of the device that it needs, with a little to spare."""
BERT_BASE = ("task.model.hidden=768", "task.model.layers=12", "task.model.heads=12", "task.model.ffn=3072",
             "task.model.positions=512")  # fmt: skip
PAPERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "Lorar, T5-base": ("smoke/fedopt_lorar", (
        "task.model.d_model=768", "task.model.d_ff=3072", "task.model.d_kv=64", "task.model.num_heads=12",
        "task.model.num_layers=12", "task.max_train=64")),
    "FedMatch, BERT-base with patches": ("smoke/fedmatch", (*BERT_BASE, "task.max_train=16")),
    "FedParsing, BERT-base": ("smoke/fedparsing", (
        "task.encoder.width=768", "task.encoder.layers=12", "task.encoder.heads=12", "task.encoder.feed_forward=3072")),
    "FewFedWeight, BART-base": ("fewfedweight/small/smoke_ffw_full", (
        "task.model.d_model=768", "task.model.d_ff=3072", "task.model.num_heads=12", "task.model.num_layers=6",
        "task.model.max_positions=1024")),
    "FedAssistant, two GPT-2": ("smoke/feda", (
        "task.model.width=768", "task.model.layers=12", "task.model.heads=12", "task.model.positions=1024")),
    "FedMatch, ESIM": ("smoke/esim", ("task.model.embedding=300", "task.model.hidden=300")),
    "FedMatch, RE2": ("smoke/re2", ("task.model.embedding=300", "task.model.hidden=150")),
}  # fmt: skip
"""Row -> a config on synthetic data, and the sizes of the paper's model; the vocabulary is the synthetic data's."""


def deepspeed(setting: Setting) -> None:
    """A GPT-2 of 124 M on one GPU: each stage, and FSDP with offload, beside the plain engine."""
    names = ["torch", "stage 0", "stage 2", "stage 3", "fsdp offload", "stage 1", "stage 3 offload", "stage 2 offload"]
    _cases(setting, names[:3] if setting.small else names)


def large(setting: Setting) -> None:
    """Train 0.8 B in full, and LoRA beside 7 B, in bf16 and in nf4."""
    _cases(setting, list(NEEDS_GB))


def papers(setting: Setting) -> None:
    """One round of each paper's model in fp32 and bf16, in this process."""
    from fedtorch.main import main as run

    device = torch.device(setting.device)
    os.chdir(setting.folder)  # where runs make their data
    for precision in ("fp32", "bf16"):
        for name, (config, sizes) in PAPERS.items():
            folder = setting.folder / f"{config.rpartition('/')[2]}-{precision}"
            words = [f"system.device={setting.device}", f"engine.precision={precision}", "rounds=1", "eval.every=1",
                     "track.tensorboard=false", "run.export=none", f"run.dir={folder}", "eval.patience=null",
                     *(() if setting.small else sizes)]  # fmt: skip
            with setting.noting(f"{name}, {precision}") as figures, _watched(device, figures):
                code = run(["--config", config, "--resume", "never", "--set", *words])
                figures["outcome"] = "ok" if code == 0 else f"exit code {code}"
                figures.update(_round(folder))


def _round(run: Path) -> dict[str, float]:
    """Read the seconds of the run's last round from its records."""
    lines = (run / "metrics.jsonl").read_text().splitlines() if (run / "metrics.jsonl").exists() else []
    rounds = [record for record in map(json.loads, lines) if record["kind"] == "round"]
    seconds = rounds[-1]["seconds"] if rounds else {}
    return {f"{name}_s": seconds[name] for name in ("train", "aggregate", "evaluate") if name in seconds}


def _cases(setting: Setting, names: Sequence[str]) -> None:
    begun = time.perf_counter()
    for name in names:
        left_s = setting.limit_s - 5 - (time.perf_counter() - begun)
        if left_s < 5:
            setting.note(name, "left out", said="no time was left to this part")
            continue
        words = ["-m", "benchmarks.gpu_models", name, setting.device, str(int(setting.small))]
        environ = {"DS_ACCELERATOR": setting.device, "OMP_NUM_THREADS": str(setting.jobs)}
        ended = setting.python(words, f"{name.replace(' ', '-').replace(',', '')}.log", left_s, environ=environ)
        rows = [json.loads(line[4:]) for line in ended.text.splitlines() if line.startswith("ROW ")]
        for row in rows:
            setting.note(name, **row)
        if not rows or ended.code != 0:
            text = [line for line in ended.text.splitlines() if not line.startswith("ROW ")]
            said = last_lines("\n".join(text))
            memory = "out of memory" in ended.text
            setting.note(name, "out of memory" if memory else ended_as(ended), seconds=ended.seconds, said=said)


def main(name: str, kind: str, small: bool) -> dict[str, Any]:
    """One case: some steps, of which the first are not timed."""
    device = torch.device("cuda", 0) if kind == "cuda" else torch.device("cpu")
    figures: dict[str, Any] = {}
    if not small and (lack := _lack(name, device)):
        return {"outcome": "left out", "said": lack}
    with _watched(device, figures):
        begun = time.perf_counter()
        engine, length, rows = _engine(name, device, small)
        built_s = time.perf_counter() - begun
        figures["built_peak_mb"] = torch.cuda.max_memory_allocated() / 1e6 if kind == "cuda" else 0.0
        vocabulary = engine.module.config.vocab_size
        engine.start(engine.initial_shared, None, ADAMW, steps=8, seed=0)
        draw = torch.Generator().manual_seed(0)
        steps = [Step([torch.randint(1, vocabulary, (rows, length), generator=draw)], 1, 0) for _ in range(8)]
        first = train(engine, steps[:3], _loss)
        begun = time.perf_counter()
        timed = train(engine, steps[3:], _loss)  # reads the losses, so it waits for the device
        seconds = (time.perf_counter() - begun) / 5
        trained = sum(parameter.numel() for parameter in engine.trained)
        figures.update(
            seconds=seconds,
            tokens_per_s=rows * length / seconds,
            built_s=built_s,
            parameters=_numbers(engine.module),
            trained=trained or engine.shared.size,
            losses=" ".join(f"{loss:.5f}" for loss in (*first.losses, *timed.losses)),
        )
    if figures.get("peak_mb") and figures["parameters"]:
        figures["peak_bytes_per_parameter"] = figures["peak_mb"] * 1e6 / figures["parameters"]
    return {"outcome": "ok", **figures}


def _engine(name: str, device: torch.device, small: bool) -> tuple[Engine, int, int]:
    """The engine of a case, and tokens per row and rows of a step."""
    if name in STAGES:
        make = _maker(GPT2_SMALL if small else GPT2_124M)
        length, rows = (16, 2) if small else (512, 4)
        return engine_of(STAGES[name], make, ADAMW, device), length, rows
    if name.startswith("0.8 B"):
        with device:
            module = _maker(GPT2_SMALL if small else GPT2_774M)()
    else:
        module = _llama(LLAMA_SMALL if small else LLAMA_7B, device, quantized="nf4" in name)
    return Engine(module, Partition(), device, precision="bf16"), 16 if small else 512, 4


def _maker(sizes: Mapping[str, int]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return GPT2LMHeadModel(GPT2Config(**sizes, **NO_DROPOUT))

    return make


def _llama(sizes: Mapping[str, int], device: torch.device, *, quantized: bool) -> nn.Module:
    """Made on the device in bf16, so that the host never holds it; factors of rank 8 beside queries and values.

    quantized: its linear layers are then kept in nf4, one after the other.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with device:
            torch.manual_seed(0)
            module = LlamaForCausalLM(LlamaConfig(**sizes))
    finally:
        torch.set_default_dtype(before)
    adapter = Adapter(r=8, base="saved")
    if quantized:
        quantize_in_place(module, Quantize("nf4"), adapter)
    add_adapter(module, adapter, 0)
    return module


def _loss(model: nn.Module, ids: Tensor) -> tuple[Tensor, int]:
    count = ids.numel() - len(ids)
    return model(input_ids=ids, labels=ids, use_cache=False).loss.float() * count, count


def _numbers(module: nn.Module) -> int:
    """Count all weights, those included that ZeRO has split."""
    return sum(getattr(each, "ds_numel", each.numel()) for each in module.parameters())


def _lack(name: str, device: torch.device) -> str:
    if name not in NEEDS_GB:
        return ""
    free = torch.cuda.mem_get_info()[0] if device.type == "cuda" else psutil.virtual_memory().available
    if free / 1e9 < NEEDS_GB[name]:
        return f"{free / 1e9:.0f} GB of {device.type} memory are free, {NEEDS_GB[name]:g} are needed"
    host = psutil.virtual_memory().available / 1e9
    return f"{host:.0f} GB of host memory are free, 16 are needed" if host < 16 else ""


@contextmanager
def _watched(device: torch.device, figures: dict[str, Any]) -> Any:
    """Put the device's peak, and the mean of what it says of its utilisation, into `figures`."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    with TemporaryFile("w+") as file:
        command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "200"]
        process = None
        with suppress(OSError):
            process = subprocess.Popen(command, stdout=file, stderr=subprocess.DEVNULL)
        try:
            yield
        finally:
            if process is not None:
                process.kill()
                process.wait()
            with suppress(RuntimeError):  # after a fault every call of CUDA raises
                figures["peak_mb"] = torch.cuda.max_memory_allocated() / 1e6
            file.seek(0)
            shares = [int(line) for line in file.read().split() if line.isdigit()]
            if shares:
                figures["busy_percent"] = sum(shares) / len(shares)


if __name__ == "__main__":
    print("ROW " + json.dumps(main(sys.argv[1], sys.argv[2], sys.argv[3] == "1")), flush=True)
