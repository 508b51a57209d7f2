"""What batches by length, budgets of tokens and packing save: tokens computed on padding, and time, in turns.

python benchmarks/lengths.py [--dialogs SGD_FOLDER] [--rows 256] [--batch 8] [--width 128] [--layers 2] [--repeat 5]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from fedtorch.config.schema import ClientConfig
from fedtorch.core.weights import Partition
from fedtorch.data.dialogs import read_sgd
from fedtorch.data.own.client_rule import ClientRule
from fedtorch.data.own.first_config import CHAT
from fedtorch.data.own.keys import OwnData, SplitRule
from fedtorch.data.synthetic.dialogs import DOMAINS, dialog
from fedtorch.tasks.causal_lm import CausalLM
from fedtorch.tasks.own import OwnTask
from fedtorch.tasks.text_classification import TextClassification
from fedtorch.train.batches import Batching
from fedtorch.train.engine import Engine
from fedtorch.train.lengths import padded
from fedtorch.train.loop import Step, train

ADAMW = ClientConfig(optimizer="adamw", lr=1e-4)
LONGEST = 512


@dataclass(frozen=True)
class Way:
    """One way to put examples into batches."""

    name: str
    by_length: bool = False
    has_budget: bool = False
    packs: bool = False


WAYS = (
    Way("as shuffled"),
    Way("group_by_length", by_length=True),
    Way("max_tokens_per_batch", has_budget=True),
    Way("both", by_length=True, has_budget=True),
    Way("pack", packs=True),
)


def dialogs(folder: Path | None, number: int) -> Iterator[dict[str, Any]]:
    """Rows with `messages`, of the Schema-Guided Dialogue set or made up."""
    if folder is not None:
        found = read_sgd(sorted(folder.glob("dialogues_*.json")), merge=True).clients.values()
        every = [turns for own in found for turns in own]
    else:
        draw = torch.Generator().manual_seed(0)
        every = [dialog(domain, draw) for _ in range(1 + number // len(DOMAINS)) for domain in DOMAINS.values()]
    random.Random(0).shuffle(every)
    for turns in every[:number]:
        yield {"messages": [{"role": side, "content": text} for side, text in turns]}


def skewed(number: int) -> Iterator[dict[str, Any]]:
    """Texts to classify of 1 to 200 words, their number log-normal: half of them below 20, one in twenty above 100."""
    draw = random.Random(0)
    for place in range(number):
        words = min(200, max(1, round(draw.lognormvariate(3.0, 1.0))))
        text = " ".join(draw.choices(("sun", "rain", "warm", "cold", "wind", "cloud"), k=words))
        yield {"text": f"{text} {place}", "label": "ab"[place % 2]}


def tasks(args: argparse.Namespace) -> dict[str, OwnTask]:
    """The two sets as tasks, in the working folder."""
    for name, rows in (("dialogs", dialogs(args.dialogs, args.rows)), ("texts", skewed(args.rows))):
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("chat.jinja").write_text(CHAT)
    heads = max(1, args.width // 64)
    gpt2 = {"random": "gpt2", "n_embd": args.width, "n_layer": args.layers, "n_head": heads}
    bert = {"random": "bert", "hidden_size": args.width, "num_hidden_layers": args.layers,
            "num_attention_heads": heads, "intermediate_size": 4 * args.width}  # fmt: skip
    whole: dict[str, Any] = {"clients": ClientRule(iid=1), "splits": SplitRule(0.0, 0.0)}
    chat = {"rows_are": "messages", "chat_template": Path("chat.jinja"), "max_length": LONGEST}
    return {
        "dialogs": CausalLM(data=OwnData("dialogs.jsonl", **whole), model=gpt2, **chat),
        "texts": TextClassification(data=OwnData("texts.jsonl", **whole), model=bert, max_length=LONGEST),
    }


def steps(task: OwnTask, examples: Sequence[Any], way: Way, batch: int) -> tuple[list[Step], int]:
    """An epoch's steps, and the tokens in their tensors. A budget is what a batch of mean lengths has."""
    lengths = task.example_lengths(examples)
    budget = max(batch * sum(map(sum, lengths)) // len(lengths), max(map(sum, lengths)))
    batching = Batching(batch, by_length=way.by_length, max_tokens=budget if way.has_budget else None, lengths=lengths)
    made, tokens = [], 0
    for plan in batching.epochs(len(examples), first=0, count=1, seed=0, client="all"):
        collated = task.collate([examples[i] for i in plan.micro_batches[0]], True)
        made.append(Step([collated], 1, 0, terms=task.terms(collated)))
        tokens += collated["input_ids"].numel()
        assert way.packs or collated["input_ids"].numel() == padded(plan.micro_batches[0], lengths)
    return made, tokens


def measure(task: OwnTask, engine: Engine, made: Sequence[Step]) -> tuple[float, float]:
    """Seconds of an epoch, of the wall clock and of the processor."""
    engine.start(engine.initial_shared, None, ADAMW, steps=len(made), seed=0)
    wall, cpu = time.perf_counter(), time.process_time()
    train(engine, made, task.loss)
    return time.perf_counter() - wall, time.process_time() - cpu


def compare(name: str, task: OwnTask, args: argparse.Namespace) -> list[dict[str, Any]]:
    """All ways of one set, taken in turns; a row each."""
    (client,) = task.manifest()
    examples = task.load(client, "train")
    real = sum(map(sum, task.example_lengths(examples)))
    engine = Engine(task.build_model(0), Partition(), torch.device("cpu"))
    ways = [way for way in WAYS if not way.packs or isinstance(task, CausalLM)]
    made = [
        steps(replace(task, pack=True) if isinstance(task, CausalLM) and way.packs else task, examples, way, args.batch)
        for way in ways
    ]
    measure(task, engine, made[0][0][:2])  # memory touched for the first time
    times = [[measure(task, engine, plan) for plan, _ in made] for _ in range(args.repeat)]
    rows = []
    for place, (way, (plan, tokens)) in enumerate(zip(ways, made, strict=True)):
        walls, cpus = ([each[place][kind] / each[0][kind] for each in times] for kind in (0, 1))
        rows.append({"set": name, "way": way.name, "steps": len(plan), "tokens": tokens, "padding": 1 - real / tokens,
                     "time": statistics.median(walls), "least": min(walls), "most": max(walls),
                     "cpu_time": statistics.median(cpus)})  # fmt: skip
    return rows


@contextmanager
def _elsewhere() -> Iterator[None]:
    """Rows are prepared below the working folder."""
    before = Path.cwd()
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Print the table; returns its rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dialogs", type=lambda text: Path(text).resolve(), help="folder with dialogues_*.json of SGD")
    for name, default in (("rows", 256), ("batch", 8), ("width", 128), ("layers", 2), ("repeat", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with _elsewhere():
        rows = [row for name, task in tasks(args).items() for row in compare(name, task, args)]
    print("| set | batches | steps | tokens | of them padding | time | processor time |\n|---|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['set']} | {row['way']} | {row['steps']} | {row['tokens']} | {row['padding']:.0%} | "
            f"{row['time']:.2f} ({row['least']:.2f}–{row['most']:.2f}) | {row['cpu_time']:.2f} |"
        )
    return rows


if __name__ == "__main__":
    main()
