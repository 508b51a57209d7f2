"""What privacy costs in accuracy: ε = 1, 3 and 8 against none, with so many clients that there is hope.

python benchmarks/private_utility.py [--clients 2000] [--rate 0.25] [--rounds 15] [--seeds 0] [--jobs 2] [--out FOLDER]

Made-up texts of four labels, at least one word of another label in each, dealt to clients of eight rows; a small BERT
of random weights, of which an adapter of rank 1 and the head are trained and sent. Judged on clients that never train.
Prints and writes utility.md and utility.json; runs as `fedtorch sweep` does, `--jobs` at once with one thread each.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from os import environ
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.command import write_figures

ROOT = Path(__file__).resolve().parents[1]
LABELS = ("weather", "travel", "food", "music")
OWN_WORDS, ROWS = 40, 8
"""words of each label; rows of each client"""
HELD_OUT = 60
"""clients that are only judged"""
DELTA = 1e-5
EPSILONS = (1.0, 3.0, 8.0)
MODEL = "random: bert, hidden_size: 256, num_hidden_layers: 2, num_attention_heads: 4, intermediate_size: 512"
MODEL += ", hidden_dropout_prob: 0.0, attention_probs_dropout_prob: 0.0, max_position_embeddings: 64"
CONFIG = """
rounds: {rounds}
run: {{name: {name}, dir: {folder}, seed: {seed}, export: none}}
task:
  name: text_classification
  model: {{{model}, adapter: {{kind: lora, r: 1, alpha: 8, targets: all-linear}}}}
  data:
    source: {rows}
    clients: {{by: home}}
    splits: {{dev: 0, test: 0, held_out: {held_out}}}
    tokenizer_size: 800
  max_length: 32
algorithm: {{name: fedavg, weights: equal}}
clients: {{sampling: poisson, rate: {rate}}}
client: {{optimizer: sgd, lr: {lr}, batch_size: 8, epochs: {epochs}}}
eval: {{every: 0}}
checkpoint: {{every: 1000000}}
privacy: {privacy}
track: {{tensorboard: false, progress: "off"}}
"""


def write_rows(path: Path, clients: int) -> None:
    """Texts of eight words, half of them of the label, the others of any label or of none."""
    draw = random.Random(0)
    syllables = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
    words = [f"{draw.choice(syllables)}{draw.choice(syllables)}{draw.choice(syllables)}" for _ in range(6 * OWN_WORDS)]
    own = {label: words[place * OWN_WORDS : (place + 1) * OWN_WORDS] for place, label in enumerate(LABELS)}
    with path.open("w") as file:
        for client in range(clients + HELD_OUT):
            for _ in range(ROWS):
                label = draw.choice(LABELS)
                text = [*draw.choices(own[label], k=4), *draw.choices(words, k=4)]
                draw.shuffle(text)
                row = {"text": " ".join(text), "label": label, "home": f"c{client:05}"}
                file.write(json.dumps(row) + "\n")


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
    figure: float = found["total"]["accuracy"]
    return figure


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all cells and print the table; see the top of the file."""
    args = _parser().parse_args(arguments)
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    write_rows(out / "rows.jsonl", args.clients)
    held_out = [f"c{client:05}" for client in range(args.clients, args.clients + HELD_OUT)]
    cells: dict[str, tuple[float | None, int]] = {}
    for seed in args.seeds:
        for epsilon in (None, *args.epsilons):
            cells[f"{'none' if epsilon is None else f'eps{epsilon:g}'}-{seed}"] = epsilon, seed
    configs = {
        name: CONFIG.format(
            rounds=args.rounds, name=name, folder=out / "runs" / name, seed=seed, model=MODEL, rows=out / "rows.jsonl",
            held_out=json.dumps(held_out), rate=args.rate, lr=args.lr, epochs=args.epochs,
            privacy=promise_of(epsilon, args.clip),
        )
        for name, (epsilon, seed) in cells.items()
    }  # fmt: skip
    with ThreadPoolExecutor(args.jobs) as pool:
        found = dict(zip(cells, pool.map(lambda name: run(out, name, configs[name]), cells), strict=True))
    text = table_of(args, cells, found)
    print(text)
    (out / "utility.md").write_text(text)
    write_figures(out / "utility.json", {name: {**one, "cell": cells[name]} for name, one in found.items()})
    return 0


def table_of(args: argparse.Namespace, cells: dict[str, Any], found: dict[str, dict[str, Any]]) -> str:
    """A row for each ε, the mean over the seeds."""
    lines = [
        f"{args.clients} clients, rate {args.rate:g} ({args.clients * args.rate:.0f} a round), {args.rounds} rounds, "
        f"clip {args.clip:g}, delta {DELTA:g}, {HELD_OUT * ROWS} held-out rows",
        "",
        "| ε | noise multiplier | accuracy (seeds) | seconds |",
        "|---:|---:|---:|---:|",
    ]
    for epsilon in (None, *args.epsilons):
        rows = [found[name] for name, (own, _) in cells.items() if own == epsilon]
        each = " ".join(f"{accuracy(row):.3f}" for row in rows)
        z = "" if epsilon is None else f"{rows[0]['privacy']['noise_multiplier']:.3f}"
        shown = "none" if epsilon is None else f"{rows[0]['privacy']['epsilon']:.3f}"
        score = f"{mean(map(accuracy, rows)):.3f} ({each})"
        lines.append(f"| {shown} | {z} | {score} | {mean(row['seconds'] for row in rows):.0f} |")
    return "\n".join(lines) + "\n"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=2000)
    parser.add_argument("--rate", type=float, default=0.25)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--lr", type=float, default=0.5, help="of a client's SGD")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--clip", type=float, default=0.3)
    parser.add_argument("--epsilons", type=float, nargs="+", default=list(EPSILONS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/private_utility"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
