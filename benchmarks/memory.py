"""Peak memory of a client's training: the plain engine, FSDP and DeepSpeed's stages, on one rank and shared by two.

python benchmarks/memory.py [--model t5|gpt2|pair] [--optimizer adamw|adafactor] [--width 512] [--layers 4]
    [--ranks 1 2] [--steps 3] [--only NAME ...] [--json OUT]

pair: a GPT-2 for each side of a dialog (FedAssistant); two ranks are a user and an assistant rank.
"""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, T5Config, T5ForConditionalGeneration

from benchmarks.command import parser_of, write_figures
from benchmarks.engines import ENGINES, engine_of, splits
from benchmarks.processes import run_ranks
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.schema import ClientConfig
from fedtorch.models.side import Passing
from fedtorch.models.turns import collate_turns
from fedtorch.models.two_side import Losses, TwoSide
from fedtorch.train.loop import Step, train
from fedtorch.train.memory import Size, states
from fedtorch.train.zero import import_deepspeed


@dataclass(frozen=True)
class Shape:
    """A model, and what trains it (on few tokens, so that the model's states are most of the memory)."""

    width: int
    layers: int
    model: str = "t5"
    optimizer: Any = "adamw"
    steps: int = 3
    """of each of the two clients"""

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        if self.model == "pair":
            return TwoSide(self._gpt2(), self._gpt2(), Passing("through"))
        return self._gpt2() if self.model == "gpt2" else self._t5()

    def _t5(self) -> nn.Module:
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

    def _gpt2(self) -> nn.Module:
        heads = self.width // 64
        config = GPT2Config(vocab_size=1000, n_positions=64, n_embd=self.width, n_layer=self.layers, n_head=heads)
        return GPT2LMHeadModel(config)

    def batch(self, seed: int) -> dict[str, Any]:
        ids = torch.randint(2, 1000, (2, 16), generator=torch.Generator().manual_seed(seed))
        if self.model == "pair":
            return collate_turns([[(side, row[8 * side :][:8].tolist()) for side in (0, 1)] for row in ids], 0)
        return {"input_ids": ids, "labels": ids}

    @property
    def loss(self) -> Any:
        return Turns().loss if self.model == "pair" else loss


def loss(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
    return model(**batch).loss * 32, 32


class Turns:
    """The loss of a dialog, as FedAssistant's task has it."""

    whole_passes = True

    def loss(self, model: nn.Module, batch: dict[str, Any]) -> tuple[Tensor, int]:
        losses: Losses = model(batch["groups"], batch["size"])
        return losses.sums.sum(), sum(losses.tokens)


def measure(shape: Shape, name: str, ranks: int) -> float:
    """On every rank: MiB of peak memory above what the imports took; two clients in turn."""
    import_deepspeed(torch.device("cpu"))
    hp, settings = ClientConfig(optimizer=shape.optimizer, batch_size=2, accumulation=ranks), ENGINES[name]
    with DistributedCommunicator.join(("client",), timeout_s=300) as comm:
        worker = comm.join_worker(tuple(range(ranks)))
        before = peak_mb()
        cpu = torch.device("cpu")
        engine = engine_of(settings, shape.build, hp, cpu)
        engine.join(worker, join if shape.model == "pair" and ranks == 2 else None)
        received = engine.initial_shared.clone()
        with TemporaryDirectory(dir=".") as spill:
            engine.adopt_initial(Path(spill))
        sent = engine.shared.empty()
        for client in range(2):
            engine.start(received, None, hp, steps=shape.steps, seed=client)
            steps = [Step([shape.batch(i) for i in range(ranks)], ranks, 0) for _ in range(shape.steps)]
            train(engine, steps, shape.loss)
            assert engine.difference(received, sent).sum().isfinite()
        return peak_mb() - before


def join(model: Any, worker: Any) -> None:
    model.join(worker)


def peak_mb() -> float:
    """Highest resident memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def table(shape: Shape, names: list[str], widths: list[int]) -> list[dict[str, Any]]:
    """One row per engine and number of ranks: the largest rank's peak, its ratio to the first row's, and the sum."""
    size = Size.of(shape.build())
    rows: list[dict[str, Any]] = []
    for ranks in widths:
        for name in names:
            if not splits(ENGINES[name], ranks):  # every rank would do the same
                continue
            peaks = [ended.result for ended in run_ranks(measure, ranks, shape, name, ranks)]
            kept = states(size, ENGINES[name], ranks=ranks, moments=2.0 if shape.optimizer == "adamw" else 0.0)
            row = {"engine": name, "ranks": ranks, "peak_mb": max(peaks), "sum_mb": sum(peaks)}
            row["states_mb"] = (kept.device + kept.host) / 2**20
            rows.append({**row, "ratio": max(peaks) / rows[0]["peak_mb"] if rows else 1.0})
            print(f"{name:<15} {ranks} ranks {max(peaks):8.0f} MiB {rows[-1]['ratio']:6.2f}", flush=True)
    return rows


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    """Print a table for the README."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", choices=["t5", "gpt2", "pair"], default="t5")
    parser.add_argument("--optimizer", choices=["adamw", "adafactor"], default="adamw")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", nargs="+", choices=list(ENGINES), default=list(ENGINES))
    args = parser.parse_args(arguments)
    shape = Shape(args.width, args.layers, args.model, args.optimizer, args.steps)
    rows = table(shape, args.only, args.ranks)
    print(f"\n{args.model} of {Size.of(shape.build()).numbers:,} parameters, {args.optimizer}\n")
    heads = ("engine", "ranks", "peak MiB", "ratio to the first", "sum of the ranks, MiB", "states by the formula, MiB")
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for row in rows:
        cells = f"{row['peak_mb']:.0f} | {row['ratio']:.2f} | {row['sum_mb']:.0f} | {row['states_mb']:.0f}"
        print(f"| {row['engine']} | {row['ranks']} | {cells} |")
    write_figures(args.json, rows)
    return rows


if __name__ == "__main__":
    main()
