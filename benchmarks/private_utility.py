"""What privacy costs in accuracy: ε = 1, 3 and 8 against none, with so many clients that there is hope.

python benchmarks/private_utility.py [--clients 2000] [--rate 0.25] [--rounds 20] [--model adapter head] [--seeds 0 1 2]
    [--jobs 2] [--out DIR]

Made-up texts of eight labels, eight rows at each client. Trained and sent are some 10^4 numbers: an adapter of rank 1
beside two fixed layers and a new layer over them (`--model adapter`), or a head of two layers (`--model head`), both
over fixed word vectors. Evaluated on rows of nobody who trains. Prints and writes utility.md and utility.json.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from os import environ
from pathlib import Path
from statistics import mean
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor, nn

from benchmarks.command import write_figures
from fedtorch.core.seeds import generator_for
from fedtorch.models.adapters.lora import add_adapter
from fedtorch.models.adapters.settings import Adapter
from fedtorch.tasks.base import Scores, Task

ROOT = Path(__file__).resolve().parents[1]
LABELS, OWN_WORDS, LENGTH, OWN, ROWS = 8, 40, 8, 4, 8
"""labels; words of each; words of a text, how many of them are of its label (the others of any); rows of a client"""
HELD_OUT = 2000
"""rows of the client that is only evaluated"""
EVALUATED = "judged"  # rows are drawn by their client's name, and the published figures are of these
DELTA = 1e-5
EPSILONS = (1.0, 3.0, 8.0)
CONFIG = """
rounds: {rounds}
run: {{name: {name}, dir: {folder}, seed: {seed}, export: none}}
task: {{name: "benchmarks.private_utility:WordVectors", number: {clients}, model: {model}}}
algorithm: {{name: fedavg, weights: equal}}
clients: {{sampling: poisson, rate: {rate}}}
client: {{optimizer: sgd, lr: {lr}, batch_size: 8, epochs: {epochs}}}
eval: {{every: 0}}
checkpoint: {{every: 1000000}}
system: {{device: cpu, threads: 1}}
privacy: {privacy}
track: {{tensorboard: false, progress: "off"}}
"""


class Head(nn.Module):
    """Two layers over the mean of a text's word vectors, which are drawn once and fixed."""

    def __init__(self, width: int = 128, hidden: int = 72) -> None:
        super().__init__()
        drawn = torch.randn(LABELS * OWN_WORDS, width, generator=torch.Generator().manual_seed(0))
        self.register_buffer("vectors", drawn / math.sqrt(LENGTH), persistent=False)
        self.inner, self.outer = nn.Linear(width, hidden), nn.Linear(hidden, LABELS)

    def forward(self, words: Tensor) -> Tensor:
        """Logits, shape (B, labels), of words of shape (B, length)."""
        vectors: Any = self.vectors
        logits: Tensor = self.outer(torch.relu(self.inner(vectors[words].sum(1))))
        return logits


class Adapted(nn.Module):
    """Two fixed layers of random weights over the same vectors, LoRA beside both, and a layer over them that is new."""

    config = SimpleNamespace()  # as a model of transformers has one

    def __init__(self, width: int = 128, hidden: int = 896) -> None:
        super().__init__()
        self.register_buffer("vectors", Head(width).vectors, persistent=False)
        self.inner, self.middle = nn.Linear(width, hidden), nn.Linear(hidden, hidden)
        for layer in (self.inner, self.middle):  # as large going out as coming in
            nn.init.normal_(layer.weight, std=math.sqrt(2 / layer.in_features))
        self.outer = nn.Linear(hidden, LABELS)

    def forward(self, words: Tensor) -> Tensor:
        """As `Head`."""
        vectors: Any = self.vectors
        inner = torch.relu(self.inner(vectors[words].sum(1)))
        logits: Tensor = self.outer(torch.relu(self.middle(inner)))
        return logits


@dataclass(frozen=True)
class WordVectors(Task):
    """number: clients that train; one more entry has the rows that belong to nobody. model: of `MODELS`."""

    number: int = 2000
    model: str = "adapter"

    def manifest(self) -> Mapping[str, Mapping[str, int]]:
        """See the top of the file."""
        return self._manifest

    @cached_property
    def _manifest(self) -> dict[str, dict[str, int]]:
        clients = {f"c{place:06}": {"train": ROWS} for place in range(self.number)}
        return {**clients, EVALUATED: {"dev": 8, "test": HELD_OUT}}

    def check(self, client: str) -> None:
        """There is no file."""

    def load(self, client: str, split: str) -> list[tuple[Tensor, int]]:
        """(words, label) of each row."""
        size, draw = self._manifest[client][split], generator_for(0, "texts", client, split)
        labels = torch.randint(LABELS, (size,), generator=draw)
        words = torch.randint(LABELS * OWN_WORDS, (size, LENGTH), generator=draw)
        words[:, :OWN] = labels[:, None] * OWN_WORDS + torch.randint(OWN_WORDS, (size, OWN), generator=draw)
        return list(zip(words, labels.tolist(), strict=True))

    def build_model(self, seed: int) -> nn.Module:
        """Of random weights."""
        return MODELS[self.model](seed)

    def collate(self, examples: Sequence[tuple[Tensor, int]], train: bool) -> tuple[Tensor, Tensor]:
        """Words, shape (B, length), and labels."""
        return torch.stack([words for words, _ in examples]), torch.tensor([label for _, label in examples])

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, int]:
        """Cross entropy."""
        words, labels = batch
        return nn.functional.cross_entropy(model(words), labels, reduction="sum"), len(labels)

    def predict(self, model: nn.Module, examples: Sequence[tuple[Tensor, int]], batch_size: int) -> list[int]:
        """The likeliest label of each."""
        found: list[int] = model(self.collate(examples, False)[0]).argmax(1).tolist()
        return found

    def score(self, examples: Sequence[tuple[Tensor, int]], predictions: Sequence[int]) -> Scores:
        """Accuracy."""
        hits = sum(label == found for (_, label), found in zip(examples, predictions, strict=True))
        return {"accuracy": (float(hits), len(examples))}


def head(seed: int) -> nn.Module:
    """All of it is trained."""
    torch.manual_seed(seed)
    return Head()


def adapter(seed: int) -> nn.Module:
    """The layer over the fixed ones is trained whole, these by an adapter of rank 1."""
    torch.manual_seed(seed)
    model = Adapted()
    add_adapter(model, Adapter(r=1, alpha=1.0, targets=("inner", "middle")), seed, heads=("outer",))
    return model


MODELS: Mapping[str, Callable[[int], nn.Module]] = {"adapter": adapter, "head": head}
RATES = {"adapter": 0.05, "head": 0.5}
"""Of a client's SGD; without a clip the adapter's loss rises at 0.2."""


def promise_of(epsilon: float | None, clip: float) -> str:
    """The section `privacy`."""
    if epsilon is None:
        return "{kind: none}"
    return f"{{kind: client, clip: {clip}, epsilon: {epsilon}, delta: {DELTA}}}"


def run(out: Path, name: str, config: str) -> dict[str, Any]:
    """Train in a process of its own; what results.json says, with the seconds.

    Raises:
        ChildProcessError: it failed.
    """
    path = out / f"{name}.yaml"
    path.write_text(config)
    words = [sys.executable, "-m", "fedtorch.main", "--config", str(path.resolve()), "--resume", "never"]
    begun = time.perf_counter()
    where = {**environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(words, cwd=out, env=where, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise ChildProcessError(f"{name} ended with {ended.returncode}: {ended.stderr[-500:]}")
    found: dict[str, Any] = json.loads((out / "runs" / name / "results.json").read_text())
    return {**found, "seconds": time.perf_counter() - begun}


def accuracy(found: dict[str, Any]) -> float:
    """Over the held-out rows."""
    figure: float = found["averages"]["accuracy"]["micro"]
    return figure


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all cells and print the table; see the top of the file."""
    args = _parser().parse_args(arguments)
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    cells: dict[str, tuple[str, float | None, int]] = {}
    for seed in args.seeds:
        for model in args.model:
            for epsilon in (None, *args.epsilons):
                cells[f"{model}-{'none' if epsilon is None else f'eps{epsilon:g}'}-{seed}"] = model, epsilon, seed
    configs = {
        name: CONFIG.format(
            rounds=args.rounds, name=name, folder=out / "runs" / name, seed=seed, clients=args.clients, rate=args.rate,
            lr=args.lr or RATES[model], epochs=args.epochs, privacy=promise_of(epsilon, args.clip), model=model,
        )
        for name, (model, epsilon, seed) in cells.items()
    }  # fmt: skip
    with ThreadPoolExecutor(args.jobs) as pool:
        found = dict(zip(cells, pool.map(lambda name: run(out, name, configs[name]), cells), strict=True))
    text = table_of(args, cells, found)
    print(text)
    (out / "utility.md").write_text(text)
    write_figures(out / "utility.json", {name: {**one, "cell": cells[name]} for name, one in found.items()})
    return 0


def table_of(args: argparse.Namespace, cells: dict[str, Any], found: dict[str, dict[str, Any]]) -> str:
    """A row for each model and ε, the mean over the seeds."""
    sizes = ", ".join(
        f"{sum(part.numel() for part in MODELS[model](0).parameters() if part.requires_grad):,} ({model})"
        for model in args.model
    )
    lines = [
        f"{args.clients} clients, rate {args.rate:g} ({args.clients * args.rate:.0f} a round), {args.rounds} rounds, "
        f"clip {args.clip:g}, delta {DELTA:g}, numbers exchanged {sizes}, {HELD_OUT} held-out rows",
        "",
        "| model | ε | noise multiplier | accuracy (seeds) | seconds |",
        "|---|---:|---:|---:|---:|",
    ]
    for model in args.model:
        for epsilon in (None, *args.epsilons):
            rows = [found[name] for name, (kind, own, _) in cells.items() if (kind, own) == (model, epsilon)]
            each = " ".join(f"{accuracy(row):.3f}" for row in rows)
            z = "" if epsilon is None else f"{rows[0]['privacy']['noise_multiplier']:.3f}"
            shown = "none" if epsilon is None else f"{rows[0]['privacy']['epsilon']:.3f}"
            score = f"{mean(map(accuracy, rows)):.3f} ({each})"
            lines.append(f"| {model} | {shown} | {z} | {score} | {mean(row['seconds'] for row in rows):.0f} |")
    return "\n".join(lines) + "\n"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=2000)
    parser.add_argument("--rate", type=float, default=0.25)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--model", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--lr", type=float, help="of a client's SGD; by default the model's own")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--epsilons", type=float, nargs="+", default=list(EPSILONS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/private_utility"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
