"""Figures of docs/seeds-and-scalars.md: loss against K, seconds against SGD, and what travels beside what it scores.

python benchmarks/seeds.py floor
python benchmarks/seeds.py round
python benchmarks/seeds.py scores CROSSFIT [--runs FOLDER] [--only NAME ...]

CROSSFIT: the few-shot gym's data. The same command again goes on where it ended.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.own_data import write_rows
from fedtorch.algorithms.seeds.fedkseed import FedKSeed
from fedtorch.checkpoint.store import Checkpoints
from fedtorch.comm.local import LocalCommunicator
from fedtorch.config.schema import CheckpointConfig, ClientConfig, Config, EvalConfig, RunConfig
from fedtorch.core.directions import add_along, numbers, shift
from fedtorch.main import main as run
from fedtorch.rounds.runner import Runner
from fedtorch.setup.build import build
from fedtorch.tasks.base import Scores, Task

NUMBERS, CLIENTS, ROWS = 100, 5, 200
POOLS = (16, 64, 100, 256)


@dataclass(frozen=True)
class Logistic(Task):
    """Logistic regression of 100 numbers on made rows of five clients, each with directions of its own."""

    main_metric: ClassVar[str] = "accuracy"

    def manifest(self) -> Mapping[str, Mapping[str, int]]:
        """Return so many rows of each client."""
        return {f"c{i}": {"train": ROWS} for i in range(CLIENTS)}

    def load(self, client: str, split: str) -> Sequence[Any]:
        """Features and a label, drawn by a true model."""
        generator = np.random.default_rng(int(client[1:]))
        features = generator.standard_normal((ROWS, NUMBERS)) + 0.3 * generator.standard_normal(NUMBERS)
        truth = np.random.default_rng(100).standard_normal(NUMBERS) * 0.3
        labels = generator.random(ROWS) < 1 / (1 + np.exp(-features @ truth))
        return list(zip(features.astype(np.float32), labels.astype(np.float32), strict=True))

    def build_model(self, seed: int) -> nn.Module:
        """All weights begin at 0."""
        model = nn.Linear(NUMBERS, 1, bias=False)
        nn.init.zeros_(model.weight)
        return model

    def collate(self, examples: Sequence[Any], train: bool) -> tuple[Tensor, Tensor]:
        """Features and labels side by side."""
        features, labels = zip(*examples, strict=True)
        return torch.from_numpy(np.stack(features)), torch.tensor(labels)

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, int]:
        """Binary cross entropy, with a little decay that makes the minimum one."""
        found = model(batch[0])[:, 0]
        penalty = 0.005 * sum((part**2).sum() for part in model.parameters()) * len(found)
        return nn.functional.binary_cross_entropy_with_logits(found, batch[1], reduction="sum") + penalty, len(found)

    def predict(self, model: nn.Module, examples: Sequence[Any], batch_size: int) -> list[bool]:
        """Return the likelier label of each."""
        return [bool(value > 0) for value in model(self.collate(examples, False)[0])[:, 0]]

    def score(self, examples: Sequence[Any], predictions: Sequence[Any]) -> Scores:
        """Count what is right."""
        return {"accuracy": (sum(p == bool(e[1]) for p, e in zip(predictions, examples, strict=True)), len(examples))}


def whole_loss(weights: Tensor) -> float:
    """The mean loss over all clients' rows."""
    task = Logistic()
    model = task.build_model(0)
    with torch.no_grad():
        model.get_parameter("weight").copy_(weights.view(1, -1))
        found = [task.loss(model, task.collate(task.load(name, "train"), False)) for name in task.manifest()]
    return sum(float(loss) for loss, _ in found) / sum(count for _, count in found)


def least_loss(directions: Tensor) -> float:
    """The least loss among combinations of the columns, shape (numbers, K), by Newton's method in float64."""
    task = Logistic()
    rows = [row for name in task.manifest() for row in task.load(name, "train")]
    features, labels = task.collate(rows, False)
    base, _ = torch.linalg.qr(directions.double())
    inner, target = features.double() @ base, labels.double()
    at = torch.zeros(inner.shape[1], dtype=torch.float64)
    for _ in range(50):
        chance = torch.sigmoid(inner @ at)
        gradient = inner.T @ (chance - target) / len(target) + 0.01 * at
        curvature = (inner * (chance * (1 - chance))[:, None]).T @ inner / len(target)
        at = at - torch.linalg.solve(curvature + 0.01 * torch.eye(len(at), dtype=torch.float64), gradient)
    return whole_loss((base @ at).float())


def floor() -> None:
    """Loss of runs with K seeds, and the least that the span of their directions allows."""
    start, least = whole_loss(torch.zeros(NUMBERS)), least_loss(torch.eye(NUMBERS))
    print(f"loss at the start {start:.4f}, at the minimum {least:.4f}; share = (loss - minimum) / (start - minimum)\n")
    print("| K | loss | share left | least in the span | its share |\n|---:|---:|---:|---:|---:|")
    for count in POOLS:
        directions = torch.from_numpy(np.stack([numbers("sign", j, 0, NUMBERS) for j in range(count)], axis=1))
        bound = least_loss(directions) if count < NUMBERS else least
        found = whole_loss(trained(FedKSeed(seeds=count, eps=1e-2), rounds=60, steps=min(count, 100), lr=4e-3))
        shares = [(value - least) / (start - least) for value in (found, bound)]
        print(f"| {count} | {found:.4f} | {shares[0]:.3f} | {bound:.4f} | {shares[1]:.3f} |")


def trained(algorithm: FedKSeed, *, rounds: int, steps: int, lr: float) -> Tensor:
    """The weights that a run ends with."""
    with TemporaryDirectory() as folder:
        config = Config(
            task=Logistic(),
            algorithm=algorithm,
            rounds=rounds,
            run=RunConfig(name="seeds", dir=folder),
            client=ClientConfig(optimizer="sgd", lr=lr, batch_size=ROWS, steps=steps),
            eval=EvalConfig(every=0),
            checkpoint=CheckpointConfig(every=rounds),
        )
        built = build(config, num_ranks=1, rank=0)
        comm = LocalCommunicator(built.names)
        runner = Runner(built.components(comm, Checkpoints(Path(folder) / "checkpoints", keep=1), stop=lambda: False))
        runner.run()
        return runner.context.vectors.weights.clone()


def round_seconds(repetitions: int = 5) -> None:
    """Passes over 10 million numbers beside an addition; steps without gradients beside SGD's, alternating."""
    values = np.random.default_rng(0).standard_normal(10_000_000).astype(np.float32)
    out, total = np.empty_like(values), np.zeros(len(values))
    seeds = list(range(16))
    ways = {
        "an addition": lambda: np.add(values, values, out=out),
        "w + ε z, signs": lambda: shift(values, "sign", 3, 1e-3, out),
        "w + ε z, bytes": lambda: shift(values, "bytes", 3, 1e-3, out),
        "16 seeds' signs added, by seed": lambda: add_along(total, "sign", seeds, [1.0] * 16),
    }
    taken = {name: [seconds_of(way) for _ in range(repetitions)] for name, way in ways.items()}
    print("| 10 M numbers, one thread | s | x an addition |\n|---|---:|---:|")
    for name, seconds in taken.items():
        each = median(seconds) / (16 if "16" in name else 1)
        print(f"| {name} | {each:.4f} | {each / median(taken['an addition']):.1f} |")
    print("\n| 8 rows of 64 tokens, GPT-2 of 4 layers and 256 | s a step | x SGD's |\n|---|---:|---:|")
    steps = {name: [step_seconds(name) for _ in range(repetitions)] for name in ("sgd", "fedkseed")}
    for name, seconds in steps.items():
        print(f"| {name} | {median(seconds):.4f} | {median(seconds) / median(steps['sgd']):.2f} |")


def seconds_of(way: Any) -> float:
    """Processor seconds of a call."""
    started = time.process_time()
    way()
    return time.process_time() - started


def step_seconds(kind: str, count: int = 4) -> float:
    """Processor seconds of a local step on a small GPT-2."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = GPT2LMHeadModel(GPT2Config(n_layer=4, n_embd=256, n_head=4, vocab_size=5000, n_positions=64))
    flat = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    ids, w = torch.randint(0, 5000, (8, 64)), flat.clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    started = time.process_time()
    for seed in range(count):
        if kind == "sgd":
            model.train()
            model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            continue
        model.eval()
        losses = []
        with torch.no_grad():
            for side in (1e-3, -1e-3):
                shift(w.numpy(), "sign", seed, side, flat.numpy())
                torch.nn.utils.vector_to_parameters(flat, model.parameters())
                losses.append(float(model(input_ids=ids, labels=ids).loss))
        shift(w.numpy(), "sign", seed, -1e-7 * (losses[0] - losses[1]) / 2e-3, w.numpy())
    return (time.process_time() - started) / count


BASE = """
paradigm: centralized
rounds: 6
task:
  name: text_classification
  model: {random: gpt2, n_layer: 2, n_embd: 64, n_head: 2, resid_pdrop: 0.0, embd_pdrop: 0.0, attn_pdrop: 0.0}
  data: {source: ROWS/questions_everybodys.jsonl, clients: {iid: 2}, splits: {dev: 0.1, test: 0.1}}
  max_length: 24
client: {optimizer: adamw, lr: 2.0e-3, batch_size: 8, epochs: 5}
track: {tensorboard: false, progress: "off"}
eval: {every: 2}
"""
FEDERATED = """
rounds: 20
task:
  name: text_classification
  model: {path: BASE}
  data: {source: ROWS/questions.jsonl, clients: {iid: 10}, splits: {dev: 0.1, test: 0.25}}
  max_length: 24
client: {optimizer: sgd, lr: 0.05, batch_size: 8, steps: 50}
algorithm: {name: fedavg}
track: {tensorboard: false, progress: "off"}
eval: {every: 5}
run: {export: none}
"""
ADAPTER = "task.model.adapter={kind: lora, r: 4, targets: [c_attn, c_proj]}"
ADAMW = ["client.optimizer=adamw", "client.lr=5e-4", "client.steps=10"]
DELTA = "payload: delta, error_feedback: true"
KSEED = "name: fedkseed, seeds: 1024, eps: 1.0e-3"
CELLS: dict[str, list[str]] = {
    "FedAvg": [*ADAMW, "compare=[start]"],
    "FedAvg, updates of 4 bits": [*ADAMW, "exchange.bits=4"],
    "1 % of the numbers (top-k)": [
        *ADAMW,
        f"algorithm={{name: fedassistant, {DELTA}, compression: topk, topk: {{ratio: 0.01}}, exchange: star}}",
    ],
    "8 bits a number": [
        *ADAMW,
        f"algorithm={{name: fedassistant, {DELTA}, compression: quantise, exchange: star}}",
    ],
    "FedAvg, LoRA": ["client.optimizer=adamw", "client.lr=2e-3", "client.steps=10", ADAPTER],
    "FedKSeed, all weights": [f"algorithm={{{KSEED}}}", "client.lr=1e-4"],
    "FedKSeed-Pro, all weights": [f"algorithm={{{KSEED}, pro: true}}", "client.lr=1e-4"],
    "FedKSeed, LoRA": [f"algorithm={{{KSEED}}}", "client.lr=1e-3", ADAPTER],
    "DeComFL, LoRA": ["algorithm={name: decomfl, estimate: two_sided}", "client.lr=1e-3", "client.steps=10", ADAPTER],
}


def scores(crossfit: Path, runs: Path, only: Sequence[str]) -> None:
    """What travels and what it costs in score, on questions that ask for one of four things."""
    rows = runs / "rows"
    if not rows.is_dir():
        write_rows(crossfit, rows)
    base = runs / "base"
    if not (base / "results.json").is_file():
        trained_base = runs / "base.yaml"
        trained_base.write_text(BASE.replace("ROWS", str(rows)))
        run(["--config", str(trained_base), "--set", f"run.dir={base}"])
    config = runs / "federated.yaml"
    config.write_text(FEDERATED.replace("ROWS", str(rows)).replace("BASE", str(base / "model")))
    print("| what travels | rate | up, bytes a client and round | down | accuracy on test |")
    print("|---|---:|---:|---:|---:|")
    for name, sets in CELLS.items():
        if not only or name in only:
            print(row_of(config, runs, name, sets), flush=True)


def row_of(config: Path, runs: Path, name: str, sets: Sequence[str]) -> str:
    """Train one cell, unless that was done, and say what came of it."""
    place = runs / "".join(c if c.isalnum() else "_" for c in name)
    if not (place / "results.json").is_file():
        shutil.rmtree(place, ignore_errors=True)
        if code := run(["--config", str(config), "--set", f"run.dir={place}", *sets]):
            return f"| {name} | exit code {code} |"
    results = json.loads((place / "results.json").read_text())
    records = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
    rounds = [record for record in records if record["kind"] == "round"]
    reports = {"up": "gather/bytes_up", "down": "share/bytes_down"}  # numbers about a client, which all methods have
    up, down = (
        fmean(r.get(f"bytes_{way}", 0) - r.get("traffic", {}).get(report, 0) for r in rounds[1:]) / 10
        for way, report in reports.items()
    )
    average = results["averages"]["accuracy"]
    rate = next((word.partition("=")[2] for word in sets if word.startswith("client.lr=")), "")
    started = results.get("compare", {}).get("start", {}).get("averages", {}).get("accuracy", {})
    beside = f" (before training {started['micro']:.3f})" if started else ""
    return f"| {name} | {rate} | {up:,.0f} | {down:,.0f} | {average['micro']:.3f} of {average['count']}{beside} |"


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["floor", "round", "scores"])
    parser.add_argument("crossfit", type=Path, nargs="?", metavar="CROSSFIT")
    parser.add_argument("--runs", type=Path, default=Path("runs/seeds"))
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.what == "floor":
        floor()
    elif args.what == "round":
        round_seconds()
    elif args.crossfit is None:
        parser.error("scores needs the folder of the few-shot gym's data")
    else:
        args.runs.mkdir(parents=True, exist_ok=True)
        scores(args.crossfit.resolve(), args.runs.resolve(), args.only)


if __name__ == "__main__":
    main()
