"""docs/results-preferences.md: DPO of five clinics together, of each alone and on all rows, and by other losses.

python benchmarks/preferences.py --out DIR [--seeds 0 1 2] [--jobs 2]

Makes the rows (`preference_rows.py`), trains a small decoder on public texts and, from it, an adapter by every method
and with every seed, which is also that of the rows and tastes. Prints and writes preferences.md and preferences.json.
The same command again goes on where it ended, also within a run. Needs the extras `adapters` and `trl`; ends within 20
minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.command import write_figures
from benchmarks.many_runs import train_all
from benchmarks.preference_rows import SIZES, TESTED, Known, write_public, write_rows

ROUNDS, BATCH, RATE = 15, 8, 3e-3
USUAL = """
checkpoint: {every: 5}
system: {device: cpu, threads: 1}
track: {tensorboard: false, progress: "off"}
eval: {every: 0, final_split: test}
"""
BASE = """
task:
  name: causal_lm
  data: {{source: {rows}, clients: {{iid: 1}}, splits: {{dev: 0, test: 0.1}}}}
  model: {{random: gpt2, n_embd: 64, n_layer: 2, n_head: 4}}
  max_length: 48
rounds: 10
client: {{optimizer: adamw, lr: 3.0e-3, batch_size: 32, epochs: 1}}
algorithm: {{name: fedavg}}
"""
PREFERENCES = """
task:
  name: preference
  kind: {kind}
  data: {{source: {rows}, clients: {{by: clinic}}, splits: {{column: part}}}}
  model: {{path: {base}, adapter: {{kind: lora, r: 8, targets: all-linear}}}}
  max_length: 48
rounds: {rounds}
client: {client}
algorithm: {{name: fedavg}}
"""
OURS = f"{{optimizer: adamw, lr: RATE, batch_size: {BATCH}, epochs: 1}}"
TRL = (  # the same steps: TRL's own default clips gradients and lets the rate fall
    f"{{epochs: 1, trainer: {{name: trl.DPO, args: {{per_device_train_batch_size: {BATCH}, learning_rate: RATE, "
    "lr_scheduler_type: constant, max_grad_norm: 0.0}}}"
)


@dataclass(frozen=True)
class Method:
    """A column of the tables."""

    title: str
    """how it is called there"""
    client: str = OURS
    """the section `client`, with RATE for its rate"""
    kind: str = "dpo"
    """`task.kind`"""
    more: str = ""
    """further keys"""


METHODS = {
    "federated": Method("federated"),
    "local": Method("alone", more="paradigm: local\n"),
    "together": Method(
        "all rows together", OURS.replace("}", ", optimizer_state: keep}"), more="paradigm: centralized\n"
    ),
    "trl": Method("federated, `trl.DPO`", TRL),
    "ipo": Method("federated, IPO", kind="ipo"),
    "fedsa": Method("FedSA-LoRA", more='partition: {private: ["*lora_B*"]}\n'),
}
TABLES = (("reward_accuracy", ("federated", "local", "together"), True),
          ("reward_accuracy", ("federated", "trl", "ipo", "fedsa"), False),
          ("margin", tuple(METHODS), False))  # fmt: skip
"""(metric, columns, beside what can be known of the rows)"""
SCORES = {"reward_accuracy": ("reward accuracy, %", 100.0, 1), "margin": ("margin", 1.0, 2)}
"""metric -> (how the tables call it, its unit, digits)"""
Figures = dict[str, dict[int, dict[str, dict[str, float]]]]
"""method -> seed -> metric -> client -> mean over its test rows"""


def write_config(out: Path, name: str, seed: int, rate: float) -> Path:
    """The file of one run."""
    method = METHODS[name]
    file = out / "configs" / f"{name}-{seed}.yaml"
    text = PREFERENCES.format(
        kind=method.kind, rows=out / f"rows_{seed}.jsonl", base=out / "base" / "model", rounds=ROUNDS,
        client=method.client.replace("RATE", str(rate)),
    )  # fmt: skip
    file.write_text(text + USUAL + "run: {export: none}\n" + method.more)
    return file


def words_of(file: Path, seed: int, folder: Path) -> list[str]:
    """The command line that trains a config there."""
    return ["--config", str(file), "--set", f"run.seed={seed}", f"run.dir={folder}", f"run.name={folder.name}"]


def read(out: Path, seeds: Sequence[int]) -> Figures:
    """Read the scores of the finished runs."""
    found: Figures = {}
    for name in METHODS:
        for seed in seeds:
            file = out / "runs" / f"{name}-{seed}" / "results.json"
            if file.is_file():
                clients = json.loads(file.read_text())["clients"]
                found.setdefault(name, {})[seed] = {
                    metric: {client: _mean(clients[client]["scores"][metric]) for client in SIZES} for metric in SCORES
                }
    return found


def _mean(score: Sequence[float]) -> float:
    total, number = score
    assert number == TESTED, "a client was asked other rows"
    return total / number


def table(metric: str, found: Figures, known: Mapping[int, Mapping[str, Known]], with_known: bool) -> str:
    """A line a client and their mean: over the seeds, with the lowest and the highest."""
    title, unit, digits = SCORES[metric]
    heads = [title, "train rows", "test rows", *(METHODS[name].title for name in found)]
    columns = [[by_seed[metric] for by_seed in found[name].values()] for name in found]
    if with_known:
        heads += ["(common taste)", "(own taste)"]
        columns += [
            [{client: part.common / TESTED for client, part in each.items()} for each in known.values()],
            [{client: part.all / TESTED for client, part in each.items()} for each in known.values()],
        ]
    asked = f"{TESTED} × {len(known)}"
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)]]
    for client, size in SIZES.items():
        lines.append([client, str(size), asked] + [_spread([unit * s[client] for s in c], digits) for c in columns])
    macro = [[unit * fmean(scores.values()) for scores in column] for column in columns]
    total = f"{TESTED * len(SIZES)} × {len(known)}"
    lines.append(["macro", str(sum(SIZES.values())), total] + [_spread(column, digits) for column in macro])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _spread(values: Sequence[float], digits: int) -> str:
    if len(values) < 2:
        return f"{values[0]:.{digits}f}" if values else "–"
    return f"{fmean(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def main(arguments: Sequence[str] | None = None) -> int:
    """Rows, base, runs, tables; the first exit code of a run that is not 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rate", type=float, default=RATE, help="of all methods")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--jobs", type=int, default=2, help="runs at once")
    args = parser.parse_args(arguments)
    out = args.out.resolve()
    (out / "configs").mkdir(parents=True, exist_ok=True)
    write_public(out / "public.jsonl")
    known = {seed: write_rows(seed, out / f"rows_{seed}.jsonl") for seed in args.seeds}
    base = out / "configs" / "base.yaml"
    base.write_text(BASE.format(rows=out / "public.jsonl") + USUAL)
    if code := train_all({out / "base": words_of(base, 0, out / "base")}, 1):
        return code
    runs = {(name, seed): out / "runs" / f"{name}-{seed}" for seed in args.seeds for name in args.methods}
    wanted = {
        folder: words_of(write_config(out, name, seed, args.rate), seed, folder)
        for (name, seed), folder in runs.items()
    }
    code = train_all(wanted, args.jobs)
    found = read(out, args.seeds)
    text = "\n".join(
        table(metric, {name: found[name] for name in names if name in found}, known, with_known)
        for metric, names, with_known in TABLES
    )
    (out / "preferences.md").write_text(text)
    write_figures(out / "preferences.json", found)
    print(text, end="")
    return code


if __name__ == "__main__":
    sys.exit(main())
