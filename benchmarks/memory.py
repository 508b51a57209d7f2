"""Peak memory of a client's training: the plain engine and DeepSpeed's stages, on one rank and shared by two.

python benchmarks/memory.py [--width 512] [--layers 4] [--ranks 1 2] [--only NAME ...] [--json OUT]
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor, nn
from transformers import T5Config, T5ForConditionalGeneration

from benchmarks.processes import run_ranks
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.schema import ClientConfig, EngineConfig
from fedtorch.core.weights import Partition
from fedtorch.train.deepspeed import DeepSpeedEngine
from fedtorch.train.engine import Engine
from fedtorch.train.loop import Step, train
from fedtorch.train.memory import Size, states
from fedtorch.train.zero import import_deepspeed

ENGINES = {
    "torch": EngineConfig(),
    "stage 0": EngineConfig(kind="deepspeed", stage=0),
    "stage 1": EngineConfig(kind="deepspeed", stage=1),
    "stage 2": EngineConfig(kind="deepspeed", stage=2),
    "stage 3": EngineConfig(kind="deepspeed", stage=3),
    "stage 2 bf16": EngineConfig(kind="deepspeed", stage=2, precision="bf16"),
    "stage 3 bf16": EngineConfig(kind="deepspeed", stage=3, precision="bf16"),
}


@dataclass(frozen=True)
class Shape:
    """Size of a T5, and of its batches (few tokens, so that the model's states are most of the memory)."""

    width: int
    layers: int

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        config = T5Config(
            vocab_size=1000,
            d_model=self.width,
            d_ff=4 * self.width,
            d_kv=64,
            num_heads=self.width // 64,
            num_layers=self.layers,
            decoder_start_token_id=0,
            pad_token_id=0,
        )
        return T5ForConditionalGeneration(config)


def batch(seed: int) -> dict[str, Tensor]:
    ids = torch.randint(2, 1000, (2, 16), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids, "labels": ids}


def loss(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
    return model(**batch).loss * 32, 32


def measure(shape: Shape, name: str, ranks: int) -> float:
    """On every rank: MiB of peak memory above what the imports took; two clients with three steps each."""
    import_deepspeed(torch.device("cpu"))
    hp, settings = ClientConfig(optimizer="adamw", batch_size=2, accumulation=ranks), ENGINES[name]
    with DistributedCommunicator.join(("client",), timeout_s=300) as comm:
        worker = comm.join_worker(tuple(range(ranks)))
        before = peak_mb()
        cpu = torch.device("cpu")
        engine: Engine
        if settings.kind == "torch":
            engine = Engine(shape.build(), Partition(), cpu)
        else:
            engine = DeepSpeedEngine(shape.build(), Partition(), cpu, settings=settings, hp=hp, make_module=shape.build)
        engine.join(worker)
        for client in range(2):
            engine.start(engine.initial_shared, None, hp, steps=3, seed=client)
            train(engine, [Step([batch(i) for i in range(ranks)], ranks, 0) for _ in range(3)], loss)
            sent = engine.initial_shared - engine.flat.detach().cpu()
            assert sent.isfinite().all()
        return peak_mb() - before


def peak_mb() -> float:
    """Highest resident memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def table(shape: Shape, names: list[str], widths: list[int]) -> list[dict[str, Any]]:
    """One row per engine and number of ranks: the largest rank's peak, and its ratio to the first row's."""
    size = Size.of(shape.build())
    rows: list[dict[str, Any]] = []
    for ranks in widths:
        for name in names:
            if name == "torch" and ranks > 1:  # every rank would do the same
                continue
            peak = max(ended.result for ended in run_ranks(measure, ranks, shape, name, ranks))
            kept = states(size, ENGINES[name], ranks=ranks)
            row = {"engine": name, "ranks": ranks, "peak_mb": peak, "states_mb": (kept.device + kept.host) / 2**20}
            rows.append({**row, "ratio": peak / rows[0]["peak_mb"] if rows else 1.0})
            print(f"{name:<13} {ranks} ranks {peak:8.0f} MiB {rows[-1]['ratio']:6.2f}", flush=True)
    return rows


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    """Print a table for the README."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", nargs="+", choices=list(ENGINES), default=list(ENGINES))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(arguments)
    shape = Shape(args.width, args.layers)
    rows = table(shape, args.only, args.ranks)
    print(f"\nT5 of {Size.of(shape.build()).numbers:,} parameters\n")
    print(
        "| engine | ranks | peak MiB | ratio to the first | model states by the formula, MiB |\n|---|---|---|---|---|"
    )
    for row in rows:
        cells = f"{row['peak_mb']:.0f} | {row['ratio']:.2f} | {row['states_mb']:.0f}"
        print(f"| {row['engine']} | {row['ranks']} | {cells} |")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return rows


if __name__ == "__main__":
    main()
