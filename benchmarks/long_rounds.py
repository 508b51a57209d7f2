"""How long may rounds be on a real text? Loss against the steps between exchanges, six silos with a domain each.

python benchmarks/long_rounds.py --data DIR/dialog/sgd --out DIR [--seeds 0 1] [--steps 300] [--every 1 5 20 100 300]

Dialogs of the Schema-Guided set, a domain in each silo; a GPT-2 of two layers, 64 wide, over the first 64 tokens of
each. Every run takes as many steps of AdamW in each silo, by one cosine; between exchanges DiLoCo's outer step or the
plain mean. One more run takes every step along all silos' gradients. Goes on where it was stopped. Prints and writes
long_rounds.md and long_rounds.svg.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.command import parser_of
from fedtorch import run

TRAINED, TESTED = 240, 40
"""Dialogs of a domain that its silo trains on, and that are tested."""
OUTER: dict[str, dict[str, Any]] = {
    "DiLoCo": {"optimizer": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True},
    "plain mean": {"optimizer": "none"},
}
TOGETHER = "every step together"
Losses = Mapping[tuple[str, int], Sequence[float]]
"""(method, steps between exchanges) -> test loss a token, by seed"""


def write_rows(folder: Path, out: Path) -> None:
    """train.jsonl and test.jsonl: dialogs as texts, as many of each domain; those of the set's `dev` are tested."""
    out.mkdir(parents=True, exist_ok=True)
    for part, name, most in (("train", "train", TRAINED), ("dev", "test", TESTED)):
        found: dict[str, list[str]] = {}
        for path in sorted((folder / part).glob("dialogues_*.json")):
            for dialog in json.loads(path.read_text("utf-8")):
                text = "\n".join(turn["utterance"] for turn in dialog["turns"])
                found.setdefault(dialog["services"][0].split("_")[0], []).append(text)
        lines = []
        for domain, texts in sorted(found.items()):
            random.Random(0).shuffle(texts)
            lines += [json.dumps({"text": text, "domain": domain}) + "\n" for text in texts[:most]]
        (out / f"{name}.jsonl").write_text("".join(lines), "utf-8")


def config_of(out: Path, name: str, method: str, every: int, steps: int, seed: int) -> dict[str, Any]:
    """A run of so many steps, `every` of them between exchanges."""
    is_together = method == TOGETHER
    client = {"optimizer": "adamw", "lr": 3e-3, "weight_decay": 0.1, "betas": [0.9, 0.95], "max_grad_norm": 1.0}
    client |= {"steps": every, "batch_size": 8, "optimizer_state": "keep", "schedule": "cosine", "schedule_span": "run"}
    data = {"source": str(out / "train.jsonl"), "clients": {"by": "domain"}, "tokenizer_size": 1000}
    data["splits"] = {"dev": 0, "test": str(out / "test.jsonl")}
    model = {"random": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}
    task = {"name": "causal_lm", "rows_are": "text", "model": model, "data": data, "max_length": 64}
    return {
        "run": {"name": name, "dir": str(out / "runs" / name), "seed": seed, "export": "none"},
        "paradigm": "centralized" if is_together else "federated",
        "rounds": steps // every,
        "task": {**task, "truncate": "right"},
        "algorithm": {"name": "fedavg", "weights": "equal"},
        "client": {**client, "accumulation": 6 if is_together else 1},
        "server": OUTER["plain mean" if is_together else method],
        "eval": {"every": 0, "batch_size": 64},
        "checkpoint": {"every": steps // every},
        "track": {"tensorboard": False, "progress": "off"},
        "system": {"device": "cpu", "threads": 1},
    }


def measured(out: Path, method: str, every: int, steps: int, seed: int) -> float:
    """Test loss a token over all silos' dialogs; a run that has ended is only read."""
    name = f"{method.replace(' ', '_')}-{steps}-{every}-{seed}"
    results = out / "runs" / name / "results.json"
    if not results.exists():
        with redirect_stdout(StringIO()):
            run(config_of(out, name, method, every, steps, seed), resume="never")
    averages = json.loads(results.read_text())["averages"]
    return -float(averages["log_likelihood"]["micro"])


def table(found: Losses, steps: int, seeds: Sequence[int]) -> str:
    """A row per distance between exchanges, as Markdown; the mean over seeds and, behind it, each."""
    lines = [f"| steps a round (rounds) | {' | '.join(OUTER)} |", "|---|---|---|"]
    for every in sorted({every for _, every in found}):
        cells = [found[method, every] for method in OUTER if (method, every) in found]
        if len(cells) == len(OUTER):
            shown = [f"{mean(each):.3f} ({', '.join(f'{loss:.3f}' for loss in each)})" for each in cells]
            lines.append(f"| {every} ({steps // every}) | {' | '.join(shown)} |")
    (together,) = (losses for (method, _), losses in found.items() if method == TOGETHER)
    lines.append(f"\n{TOGETHER}: {mean(together):.3f} ({', '.join(f'{loss:.3f}' for loss in together)})")
    return "\n".join(lines) + f"\n\nseeds: {', '.join(map(str, seeds))}\n"


def draw(found: Losses, path: Path) -> None:
    """The means as lines over the steps between exchanges."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for method in OUTER:
        points = sorted((every, mean(losses)) for (own, every), losses in found.items() if own == method)
        axes.plot(*zip(*points, strict=True), marker="o", label=method)
    (together,) = (losses for (method, _), losses in found.items() if method == TOGETHER)
    axes.axhline(mean(together), color="gray", linestyle="--", label=TOGETHER)
    axes.set(xscale="log", xlabel="steps between exchanges", ylabel="test loss a token")
    axes.legend()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="the Schema-Guided set")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="runs, long_rounds.md, long_rounds.svg")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--every", type=int, nargs="+", default=[1, 5, 20, 100, 300])
    options = parser.parse_args()
    write_rows(options.data, options.out)
    cases = [(method, every) for every in reversed(sorted(options.every)) for method in OUTER]
    cases.append((TOGETHER, options.steps))
    found = {
        (method, every): [measured(options.out, method, every, options.steps, seed) for seed in options.seeds]
        for method, every in cases
    }
    text = table(found, options.steps, options.seeds)
    (options.out / "long_rounds.md").write_text(text)
    draw(found, options.out / "long_rounds.svg")
    print(text)


if __name__ == "__main__":
    main()
