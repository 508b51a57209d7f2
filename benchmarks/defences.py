"""What clip, noise, adapters and local steps do to each attack and to the score, on three kinds of prepared data.

python benchmarks/defences.py [--data FOLDER] [--tasks questions text2sql dialog] [--rounds 4] [--out DIR]

FOLDER has crossfit_rows/questions.jsonl (`benchmarks/own_data.py rows`), text2sql and dialog_small (`fedtorch data
prepare`). Small random models; each cell trains for a few rounds and is then audited. Prints and writes defences.md and
defences.json.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.command import write_figures
from fedtorch.audit.command_line import audit
from fedtorch.audit.subject import Options
from fedtorch.main import main as train

CLIP, NOISE, CLIENTS = 0.5, 1.0, 2
SHARED = """
rounds: {rounds}
run: {{name: {name}, dir: {folder}, export: none}}
eval: {{every: 0}}
checkpoint: {{every: {rounds}}}
track: {{tensorboard: false, progress: "off"}}
system: {{device: cpu, threads: 1}}
algorithm: {{name: fedavg, weights: equal}}
client: {{optimizer: sgd, lr: 0.1, batch_size: 4, epochs: 1}}
"""
TASKS = {
    "questions": """
task:
  name: text_classification
  model: {{random: bert, hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 4, intermediate_size: 128,
          hidden_dropout_prob: 0.0, attention_probs_dropout_prob: 0.0, max_position_embeddings: 64}}
  max_length: 24
  data: {{source: {data}/crossfit_rows/questions.jsonl, clients: {{iid: 12}}, splits: {{dev: 0, test: 0.4}}}}
""",
    "text2sql": """
task:
  name: text2sql
  data: {data}/text2sql
  model: {{name: t5-random, d_model: 64, d_ff: 128, d_kv: 16, num_heads: 4, num_layers: 1, dropout: 0.0}}
  input_max_length: 32
  output_max_length: 32
  max_train: 32
  max_dev: 4
  max_test: 24
""",
    "dialog": """
task:
  name: dialog
  data: {data}/dialog_small
  model: {{name: gpt2-random, width: 64, layers: 1, heads: 4, positions: 96, dropout: 0.0}}
  max_length: 96
  max_train: 16
  max_dev: 2
  max_test: 16
partition: {{private: ["user.*"]}}
""",
}
"""The last trains a model for the assistant; the user's stays at its client, and keys and values cross between both."""
PRIVATE = (
    "clients={sampling: poisson, rate: 1.0}",
    f"privacy={{kind: client, clip: {CLIP}, noise_multiplier: {NOISE}, delta: 1.0e-3, simulate: true, seed: 1}}",
)
CELLS: dict[str, tuple[str, ...]] = {
    "one step of SGD on 4 rows": ("client.epochs=null", "client.steps=1"),
    "an epoch of SGD": (),
    "an epoch of AdamW": ("client.optimizer=adamw", "client.lr=0.002"),
    "embeddings frozen": ("partition={frozen: ['*embed*', '*shared*', '*wte*', '*wpe*']}",),
    "adapter of rank 4": ("task.model.adapter={kind: lora, r: 4}",),
    f"clip {CLIP:g}, noise {NOISE:g}": PRIVATE,
}
UNFIT = {("dialog", "adapter of rank 4")}
"""No adapter fits two models."""
FROZEN_DIALOG = ("partition={private: ['user.*'], frozen: ['assistant.*wte*', 'assistant.*wpe*']}",)
ATTACKS = ("rows", "span", "kv", "secrets", "membership")


def attacked(task: str, name: str, folder: Path, data: Path, rounds: int, sets: Sequence[str]) -> dict[str, Any]:
    """Train a cell and audit it.

    Raises:
        ChildProcessError: the run failed.
    """
    config = folder / f"{name}.yaml"
    text = (SHARED + TASKS[task]).format(rounds=rounds, name=name, folder=folder / name, data=data.resolve())
    config.write_text(text)
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        if code := train(["--config", str(config), "--resume", "never", "--set", "run.seed=0", *sets]):
            raise ChildProcessError(f"{name} ended with {code}: {said.getvalue()[-500:]}")
        options = Options(clients=CLIENTS, places=24, trains=task != "questions")
        findings, _ = audit(folder / name, [], [], options, ATTACKS)
    results = json.loads((folder / name / "results.json").read_text())
    return {"findings": {found.attack: found.record() for found in findings}, "averages": results["averages"]}


def row_of(found: Mapping[str, Any], is_private: bool) -> list[str]:
    """rows, span, words of dialogs, exposure, AUC, and the loss."""
    figures = {name: one.get("figures", []) for name, one in found["findings"].items()}
    channel = "sum, clipped, noised" if is_private else "update"

    def best(attack: str, key: str = "recovered") -> str:
        rows = [row for row in figures[attack] if row["channel"] == channel or attack == "kv"]
        if not rows:
            return "-"
        top = max(rows, key=lambda row: row[key] or 0.0)
        right = "" if attack == "kv" else f" ({100 * (top['right'] or 0.0):.0f} %)"
        return f"{100 * (top[key] or 0.0):.0f} %{right}"

    model = "model, clipped, noised" if is_private else "model"
    often = [row["exposure"] for row in figures["secrets"] if row["channel"] == model and row["times"] == 16]
    auc = f"{figures['membership'][0]['auc']:.2f}" if figures["membership"] else "-"
    exposure = f"{sum(often) / len(often):.1f}" if often else "-"
    return [best("rows"), best("span"), best("kv"), exposure, auc, _score(found["averages"])]


def _score(averages: Mapping[str, Any]) -> str:
    known = [name for name in ("accuracy", "log_likelihood", "loss") if name in averages] or list(averages)[:1]
    return f"{known[0]} {averages[known[0]]['micro']:.3f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all cells and print the table; see the top of the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("runs/defences"))
    args = parser.parse_args(arguments)
    folder = args.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    heads = ("task", "the client does", "rows (right)", "span (right)", "words of dialogs", "exposure, bits",
             "membership, AUC", "score")  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", "|---|---|" + "---:|" * (len(heads) - 2)]
    records: dict[str, Any] = {}
    for task in args.tasks:
        for number, (cell, sets) in enumerate(CELLS.items()):
            if (task, cell) in UNFIT:
                continue
            begun = time.perf_counter()
            chosen = FROZEN_DIALOG if task == "dialog" and "frozen" in cell else sets
            found = attacked(task, f"{task}-{number}", folder, args.data, args.rounds, chosen)
            lines.append(f"| {task} | {cell} | {' | '.join(row_of(found, sets is PRIVATE))} |")
            print(lines[-1], f"{time.perf_counter() - begun:.0f} s", flush=True)
            records[f"{task}/{cell}"] = found
            (folder / "defences.md").write_text("\n".join(lines) + "\n")
    write_figures(folder / "defences.json", records)
    return 0


if __name__ == "__main__":
    sys.exit(main())
