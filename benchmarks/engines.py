"""The engines whose memory and speed benchmarks compare: the plain one, FSDP, and DeepSpeed's stages.

python -m benchmarks.engines [--width 256] [--layers 4] [--repeats 7] [--only NAME ...] [--json OUT]
    seconds of a step of a GPT-2 that two ranks share, each engine in turn in every repeat, beside one plain rank that
    does all of it; medians, and the median ratio to the plain engine in the same repeat
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.command import parser_of, write_figures
from benchmarks.processes import run_ranks
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.schema import ClientConfig, EngineConfig
from fedtorch.core.weights import Partition
from fedtorch.train.deepspeed import DeepSpeedEngine
from fedtorch.train.engine import Engine
from fedtorch.train.fsdp import FsdpEngine
from fedtorch.train.loop import Step, train
from fedtorch.train.zero import import_deepspeed

ENGINES = {
    "torch": EngineConfig(),
    "fsdp": EngineConfig(kind="fsdp"),
    "fsdp bf16": EngineConfig(kind="fsdp", precision="bf16"),
    "fsdp offload": EngineConfig(kind="fsdp", offload_parameters=True),
    "stage 0": EngineConfig(kind="deepspeed", stage=0),
    "stage 1": EngineConfig(kind="deepspeed", stage=1),
    "stage 2": EngineConfig(kind="deepspeed", stage=2),
    "stage 3": EngineConfig(kind="deepspeed", stage=3),
    "stage 2 bf16": EngineConfig(kind="deepspeed", stage=2, precision="bf16"),
    "stage 3 bf16": EngineConfig(kind="deepspeed", stage=3, precision="bf16"),
    "stage 2 offload": EngineConfig(kind="deepspeed", stage=2, offload_optimizer=True),
    "stage 3 offload": EngineConfig(kind="deepspeed", stage=3, offload_optimizer=True, offload_parameters=True),
}
CPU = torch.device("cpu")
RANKS = 2


def engine_of(settings: EngineConfig, make: Callable[[], nn.Module], hp: ClientConfig, device: torch.device) -> Engine:
    """The engine of these settings around a new module, all of it trained and shared."""
    if settings.kind == "torch":
        return Engine(make(), Partition(), device)
    if settings.kind == "fsdp":
        return FsdpEngine(make(), Partition(), device, settings=settings)
    return DeepSpeedEngine(make(), Partition(), device, settings=settings, hp=hp, make_module=make)


def splits(settings: EngineConfig, ranks: int) -> bool:
    """Is it an engine of its own on so many ranks? The plain one is of one; FSDP on one rank is the plain one."""
    return (ranks == 1) if settings.kind == "torch" else ranks > 1 or settings != EngineConfig(kind="fsdp")


def seconds(names: list[str], width: int, layers: int, repeats: int) -> dict[str, list[float]]:
    """On each rank: seconds of a step of two micro-batches, by engine, one figure per repeat."""
    import_deepspeed(CPU)
    hp = ClientConfig(optimizer="adamw", lr=1e-4, max_grad_norm=1.0)

    def make() -> nn.Module:
        torch.manual_seed(0)
        heads = width // 64
        return GPT2LMHeadModel(GPT2Config(vocab_size=1000, n_positions=64, n_embd=width, n_layer=layers, n_head=heads))

    with DistributedCommunicator.join(("client",), timeout_s=300) as comm:
        worker, found = comm.join_worker(tuple(range(RANKS))), {name: list[float]() for name in names}
        engines = {name: engine_of(ENGINES[name], make, hp, CPU) for name in names}
        for name, engine in engines.items():
            if ENGINES[name].kind != "torch":
                engine.join(worker)
        draw = torch.Generator().manual_seed(0)
        step = Step([torch.randint(1000, (4, 64), generator=draw) for _ in range(RANKS)], RANKS, 0)
        for repeat in range(repeats + 1):  # the first warms up
            for name, engine in engines.items():
                engine.start(engine.initial_shared, None, hp, steps=3, seed=0)
                assert worker is not None
                worker.any(False)
                is_idle = ENGINES[name].kind == "torch" and comm.rank > 0
                begun = time.perf_counter()
                if not is_idle:  # the plain engine is one rank's
                    train(engine, [step] * 3, loss)
                if repeat:
                    found[name].append((time.perf_counter() - begun) / 3)
                worker.any(False)
        return found


def loss(model: nn.Module, ids: Tensor) -> tuple[Tensor, int]:
    """A mean over predicted tokens, as sum and count."""
    count = ids.numel() - len(ids)
    return model(input_ids=ids, labels=ids, use_cache=False).loss * count, count


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    """Print a table of seconds and ratios."""
    parser = parser_of(__doc__)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", nargs="+", choices=list(ENGINES), default=["torch", "fsdp", "stage 2", "stage 3"])
    args = parser.parse_args(arguments)
    found = run_ranks(seconds, RANKS, args.only, args.width, args.layers, args.repeats)[0].result
    first, rows = found[args.only[0]], list[dict[str, Any]]()
    print(f"| engine | seconds of a step | ratio to {args.only[0]} | least | most |\n|---|---|---|---|---|")
    for name, each in found.items():
        ratios = sorted(one / other for one, other in zip(each, first, strict=True))
        rows.append({"engine": name, "seconds": median(each), "ratio": median(ratios), "ratios": ratios})
        print(f"| {name} | {median(each):.3f} | {median(ratios):.2f} | {ratios[0]:.2f} | {ratios[-1]:.2f} |")
    write_figures(args.json, rows)
    return rows


if __name__ == "__main__":
    main()
