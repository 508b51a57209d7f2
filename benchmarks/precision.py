"""Training steps of the plain engine in fp32, bf16 and fp16, taken in turns on one thread or on a GPU.

python benchmarks/precision.py [--width 512] [--layers 4] [--tokens 64] [--steps 4] [--repeat 5] [--device cpu]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor, nn

from benchmarks.memory import Shape
from fedtorch.config.schema import ClientConfig
from fedtorch.core.weights import Partition
from fedtorch.train.engine import Engine
from fedtorch.train.loop import Step, train
from fedtorch.train.precision import has_fp16

ROWS = 8
ADAMW = ClientConfig(optimizer="adamw", lr=1e-4)


def batch(tokens: int) -> dict[str, Tensor]:
    """Random tokens, (ROWS, tokens) in and out."""
    ids = torch.randint(2, 1000, (ROWS, tokens), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "labels": ids}


def loss(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
    """Sum and number over the labels."""
    count = batch["labels"].numel()
    return model(**batch, use_cache=False).loss * count, count


def measure(engine: Engine, tokens: int, steps: int) -> tuple[float, float]:
    """Seconds per step, of the wall clock and of the processor."""
    engine.start(engine.initial_shared, None, ADAMW, steps=steps, seed=0)
    if engine.device.type == "cuda":
        torch.cuda.synchronize()
    wall, cpu = time.perf_counter(), time.process_time()
    train(engine, [Step([batch(tokens)], 1, 0)] * steps, loss)  # reads the losses, so it waits for the device
    return (time.perf_counter() - wall) / steps, (time.process_time() - cpu) / steps


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Print the table; returns its rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("width", 512), ("layers", 4), ("tokens", 64), ("steps", 4), ("repeat", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    device = torch.device(args.device)
    kinds = ["fp32", "bf16", *(["fp16"] if has_fp16(device) else [])]
    engines = {
        kind: Engine(Shape(args.width, args.layers).build(), Partition(), device, precision=kind) for kind in kinds
    }
    for engine in engines.values():
        measure(engine, args.tokens, 1)  # memory touched for the first time
    found = [
        {kind: measure(engine, args.tokens, args.steps) for kind, engine in engines.items()} for _ in range(args.repeat)
    ]
    print(f"{'':<6}{'steps per s':>12}{'time':>8}{'(range)':>14}{'CPU time':>10}   against fp32, medians")
    rows = []
    for kind in kinds:
        ratios = [[one[kind][clock] / one["fp32"][clock] for one in found] for clock in (0, 1)]
        row = {
            "precision": kind,
            "steps_per_s": statistics.median(1 / one[kind][0] for one in found),
            "time": statistics.median(ratios[0]),
            "cpu_time": statistics.median(ratios[1]),
        }
        rows.append(row)
        span = f"({min(ratios[0]):.2f}-{max(ratios[0]):.2f})"
        print(f"{kind:<6}{row['steps_per_s']:>12.2f}{row['time']:>8.2f}{span:>14}{row['cpu_time']:>10.2f}")
    return rows


if __name__ == "__main__":
    main()
