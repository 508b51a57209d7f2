"""What changes the local training of one client, at which loss: batches by length, bf16, attention, compiled blocks.

python benchmarks/training.py --client NAME [--epochs 2] [--repeat 3] [--batch 16] CONFIG [key=value ...]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from fedtorch.config.load import load
from fedtorch.config.schema import ClientConfig
from fedtorch.core.weights import Partition
from fedtorch.tasks.base import Task
from fedtorch.train.batches import Batching
from fedtorch.train.engine import Engine
from fedtorch.train.loop import Step, train


@dataclass(frozen=True)
class Way:
    """One way to train."""

    name: str
    by_length: bool = False
    has_budget: bool = False
    precision: str = "fp32"
    attention: str | None = None
    """of transformers; None: what it takes by itself"""
    is_compiled: bool = False


PLAIN = "plain loop"
WAYS = (
    Way("as shuffled"),
    Way("eager attention", attention="eager"),
    Way("bf16", precision="bf16"),
    Way("compiled blocks", is_compiled=True),
    Way("group_by_length", by_length=True),
    Way("max_tokens_per_batch", has_budget=True),
    Way("both", by_length=True, has_budget=True),
    Way("group_by_length, bf16", by_length=True, precision="bf16"),
    Way("group_by_length, compiled", by_length=True, is_compiled=True),
)


class Trained(NamedTuple):
    """One training, from its first step to its last."""

    wall_s: float
    cpu_s: float
    loss: float
    """Mean over the terms of the evaluation split, in fp32."""


@dataclass
class Trainer:
    """A way, ready to train as often as asked."""

    task: Task
    way: Way
    client: ClientConfig
    steps: list[Step]
    tokens: int
    """In all tensors of an epoch, padding included."""
    first_s: float = field(init=False)
    """Of an epoch that counts nowhere: memory is touched, blocks are compiled."""

    def __post_init__(self) -> None:
        model = self.task.build_model(0)
        if self.way.attention is not None:
            for part in model.modules():
                if isinstance(part, PreTrainedModel):
                    part.set_attn_implementation(self.way.attention)
        self.engine = Engine(model, Partition(), torch.device("cpu"), precision=self.way.precision)
        if self.way.is_compiled:
            for block in blocks(model):
                block.compile(dynamic=True)
        before = time.perf_counter()
        self._train()
        self.first_s = time.perf_counter() - before

    def _train(self) -> None:
        self.engine.start(self.engine.initial_shared, None, self.client, steps=len(self.steps), seed=0)
        train(self.engine, self.steps, self.task.loss)

    def measure(self, evaluated: Sequence[Any]) -> Trained:
        """Train once more."""
        wall, cpu = time.perf_counter(), time.process_time()
        self._train()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        return Trained(wall, cpu, mean_loss(self.task, self.engine.module, evaluated))


@dataclass
class PlainTrainer:
    """The loop that a user would write, over the batches of another trainer."""

    like: Trainer

    def __post_init__(self) -> None:
        self.first_s = self.like.first_s
        self.tokens, self.steps = self.like.tokens, self.like.steps

    def measure(self, evaluated: Sequence[Any]) -> Trained:
        """Train once: a new model each time, which is not counted."""
        task, client = self.like.task, self.like.client
        model = task.build_model(0).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=client.lr, betas=client.betas, weight_decay=0.0)
        wall, cpu = time.perf_counter(), time.process_time()
        torch.manual_seed(0)
        for step in self.steps:
            total, count = task.loss(model, step.batches[0])
            (total / count).backward()
            if client.max_grad_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), client.max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        return Trained(wall, cpu, mean_loss(task, model, evaluated))


def blocks(model: nn.Module) -> Iterator[nn.Module]:
    """The layers that a transformer repeats."""
    for part in model.children():
        yield from part if isinstance(part, nn.ModuleList) else blocks(part)


@torch.no_grad()
def mean_loss(task: Task, model: nn.Module, batches: Iterable[Any]) -> float:
    """Over all terms of the batches."""
    model.eval()
    found = [task.loss(model, batch) for batch in batches]
    return float(sum(float(loss) for loss, _ in found) / sum(int(count) for _, count in found))


def numbers(batch: Any) -> int:
    """Elements of the integer tensors of a batch: tokens, padding included; masks and labels count as often."""
    if isinstance(batch, dict):
        batch = [*batch.values()]
    return batch.numel() if isinstance(batch, Tensor) else sum(map(numbers, batch)) if isinstance(batch, list) else 0


def steps(task: Task, examples: Sequence[Any], way: Way, batch: int, epochs: int, client: str) -> list[Step]:
    """The steps of all epochs. A budget of tokens is what a batch of mean lengths has."""
    lengths = task.example_lengths(examples)
    budget = max(batch * sum(map(sum, lengths)) // len(lengths), max(map(sum, lengths)))
    batching = Batching(batch, by_length=way.by_length, max_tokens=budget if way.has_budget else None, lengths=lengths)
    made = []
    for plan in batching.epochs(len(examples), first=0, count=epochs, seed=0, client=client):
        collated = task.collate([examples[i] for i in plan.micro_batches[0]], True)
        made.append(Step([collated], 1, plan.epoch, terms=task.terms(collated)))
    return made


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Print the table; returns its rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--client", required=True)
    parser.add_argument("--split", default="dev", help="what the loss is of")
    parser.add_argument("--only", nargs="+", choices=[way.name for way in WAYS])
    for name, default in (("epochs", 2), ("repeat", 3), ("batch", 16), ("evaluated", 128)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    task = load(args.config, args.overrides).task
    client = ClientConfig(optimizer="adamw", lr=1e-3, betas=(0.9, 0.98), max_grad_norm=1.0, weight_decay=0.0)
    examples, held = task.load(args.client, "train"), task.load(args.client, args.split)[: args.evaluated]
    evaluated = [task.collate(held[at : at + 32], True) for at in range(0, len(held), 32)]
    trainers: dict[str, Trainer | PlainTrainer] = {}
    for way in WAYS:
        if args.only and way.name not in args.only and way.name != WAYS[0].name:
            continue
        made = steps(task, examples, way, args.batch, args.epochs, args.client)
        tokens = sum(numbers(batch) for step in made for batch in step.batches)
        trainers[way.name] = Trainer(task, way, client, made, tokens)
        print(f"{way.name}: {len(made)} steps, first pass {trainers[way.name].first_s:.1f} s", flush=True)
    shuffled = trainers[WAYS[0].name]
    assert isinstance(shuffled, Trainer)
    trainers = {PLAIN: PlainTrainer(shuffled), **trainers}
    found = [{name: trainer.measure(evaluated) for name, trainer in trainers.items()} for _ in range(args.repeat)]
    return [_row(name, trainer, found) for name, trainer in trainers.items()]


def _row(name: str, trainer: Trainer | PlainTrainer, found: Sequence[dict[str, Trained]]) -> dict[str, Any]:
    if name == PLAIN:
        print("| training | steps | numbers | time | processor time | first pass, s | loss |")
        print("|---|---|---|---|---|---|---|")
    walls, cpus = ([one[name][at] / one[PLAIN][at] for one in found] for at in (0, 1))
    row = {"way": name, "steps": len(trainer.steps), "numbers": trainer.tokens, "time": statistics.median(walls),
           "least": min(walls), "most": max(walls), "cpu_time": statistics.median(cpus), "first_s": trainer.first_s,
           "loss": found[0][name].loss}  # fmt: skip
    print(
        f"| {name} | {row['steps']} | {row['numbers']} | {row['time']:.2f} ({row['least']:.2f}–{row['most']:.2f}) | "
        f"{row['cpu_time']:.2f} | {row['first_s']:.1f} | {row['loss']:.4f} |"
    )
    return row


if __name__ == "__main__":
    main()
