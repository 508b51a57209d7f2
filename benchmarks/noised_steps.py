"""How much slower is a step along single units' bounded gradients and noise? Beside a plain step, in turn, in one run.

python benchmarks/noised_steps.py [--widths 128 256] [--repeat 7] [--memory] [--physical 4 16] [--json OUT]

A GPT-2 of four layers, 16 rows of 48 tokens, LoRA of rank 4 or all weights, SGD, one thread. Medians. With --memory the
peak of a process for each way instead, above what it had before the model, beside the aim: plain + 4 bytes a trained
number · (units in memory + 4).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from rich.table import Table
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.command import console_of, parser_of, write_figures
from benchmarks.processes import run_ranks
from fedtorch.core.weights import Partition
from fedtorch.models.adapters.lora import add_adapter
from fedtorch.models.adapters.settings import Adapter
from fedtorch.privacy.record.silo import Silo
from fedtorch.privacy.record.steps import NoisedSteps, Place
from fedtorch.privacy.record.terms import SiloTerms
from fedtorch.train.engine import Engine
from fedtorch.train.settings import ClientConfig
from fedtorch.train.unit_gradients import UnitGradients

ROWS, LENGTH, VOCABULARY = 16, 48, 1000


class Texts:
    """Rows of ids, of which each token is foretold."""

    def collate(self, examples: Sequence[Any], train: bool) -> dict[str, Tensor]:
        """Nothing is padded."""
        ids = torch.tensor(examples)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
        """(sum over tokens, their number)."""
        logits, next_ones = model(**batch, use_cache=False).logits[:, :-1], batch["input_ids"][:, 1:]
        flat = logits.reshape(-1, logits.shape[-1])
        return nn.functional.cross_entropy(flat, next_ones.reshape(-1), reduction="sum"), next_ones.numel()


def engine_of(width: int, adapted: bool) -> Engine:
    """A model of random weights, of which an adapter or everything is trained."""
    torch.manual_seed(0)
    ends = {"bos_token_id": 1, "eos_token_id": 2}
    sizes = {"vocab_size": VOCABULARY, "n_positions": 64, "n_embd": width, "n_layer": 4, "n_head": 4}
    model = GPT2LMHeadModel(GPT2Config(**sizes, **ends))
    if adapted:
        add_adapter(model, Adapter(r=4, targets=("c_attn",)), 0)
    engine = Engine(model, Partition(), torch.device("cpu"))
    engine.start(engine.initial_shared, None, ClientConfig(optimizer="sgd", lr=0.01), steps=1000, seed=0)
    return engine


def ways_of(engine: Engine, physical: int = ROWS) -> dict[str, Callable[[], None]]:
    """A plain step, and noised ones by both ways to the gradients."""
    task, rows = Texts(), torch.randint(VOCABULARY, (ROWS, LENGTH)).tolist()

    def plain() -> None:
        engine.step(task.loss, [task.collate(rows, True)], 1)

    def noised(how: str) -> Callable[[], None]:
        gradients = UnitGradients(engine, task, how, physical, "client")
        terms = SiloTerms("client", 500, ROWS, 1, 1, 1.0, 1.0, 1e-4, None)
        steps = NoisedSteps(Silo(bytes(32), None), terms, Place(0, "train"), "normal", [b""])

        def step() -> None:
            total = np.zeros(gradients.size)
            for chunk, _ in gradients.chunks([[row] for row in rows]):
                for gradient in chunk:
                    steps.add(total, gradient)
            engine.step_along(torch.from_numpy(steps.release(total)).float())

        return step

    return {"plain": plain, "vmap": noised("vmap"), "loop": noised("loop")}


def ratios(width: int, adapted: bool, repeat: int) -> dict[str, Any]:
    """Time the ways in turn; each one's median as a ratio to the plain step's."""
    engine = engine_of(width, adapted)
    ways = ways_of(engine)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for step in ways.values():
        step()
    for _ in range(repeat):
        for name, step in ways.items():
            begun = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - begun)
    middle = {name: median(each) for name, each in seconds.items()}
    numbers = sum(parameter.numel() for parameter in engine.trained)
    found = {name: middle[name] / middle["plain"] for name in ("vmap", "loop")}
    return {"width": width, "adapter": adapted, "numbers": numbers, "plain_s": middle["plain"], **found}


def two_steps(width: int, adapted: bool, physical: int, how: str) -> int:
    """Take two steps in a process of their own; how many numbers are trained."""
    torch.set_num_threads(1)
    engine = engine_of(width, adapted)
    step = ways_of(engine, physical)[how]
    step()
    step()
    return sum(parameter.numel() for parameter in engine.trained)


def peaks(width: int, adapted: bool, physical: int) -> dict[str, Any]:
    """Peak memory of each way, in MB of 2^20 bytes, and the aim for the noised ones."""
    ended = {how: run_ranks(two_steps, 1, width, adapted, physical, how)[0] for how in ("plain", "vmap", "loop")}
    numbers, plain = ended["plain"].result, ended["plain"].grown_mb
    aim = plain + 4 * numbers * (physical + 4) / 2**20
    found = {f"{how}_mb": each.grown_mb for how, each in ended.items()}
    return {"width": width, "adapter": adapted, "numbers": numbers, "physical": physical, **found, "aim_mb": aim}


def show_peaks(args: Any) -> list[dict[str, Any]]:
    """Measure and print the table of peaks."""
    cells = [
        (adapted, width, physical) for adapted in (True, False) for width in args.widths for physical in args.physical
    ]
    found = [peaks(width, adapted, physical) for adapted, width, physical in cells]
    table = Table(
        "trained", "numbers", "units at once", "plain, MB", "vmap", "one after the other", "aim", title="peaks"
    )
    for row in found:
        what = "LoRA of rank 4" if row["adapter"] else "all weights"
        sizes = [f"{row[key]:.0f}" for key in ("plain_mb", "vmap_mb", "loop_mb", "aim_mb")]
        table.add_row(what, str(row["numbers"]), str(row["physical"]), *sizes)
    console_of(100).print(table)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print the table; see the top of the file."""
    parser = parser_of(str(__doc__))
    parser.add_argument("--widths", type=int, nargs="+", default=[128, 256])
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--physical", type=int, nargs="+", default=[4, 16])
    args = parser.parse_args(arguments)
    if args.memory:
        write_figures(args.json, show_peaks(args))
        return 0
    torch.set_num_threads(1)
    found = [ratios(width, adapted, args.repeat) for adapted in (True, False) for width in args.widths]
    table = Table("trained", "width", "numbers", "vmap", "one after the other", title="a noised step / a plain one")
    for row in found:
        what = "LoRA of rank 4" if row["adapter"] else "all weights"
        table.add_row(what, str(row["width"]), str(row["numbers"]), f"{row['vmap']:.2f}", f"{row['loop']:.2f}")
    console_of(100).print(table)
    write_figures(args.json, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
