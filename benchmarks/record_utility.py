"""Measure what the privacy of rows and of tables costs in score: WikiSQL's aggregates, real questions, five silos.

python benchmarks/record_utility.py [--data DIR] [--seeds 0 1 2] [--epsilons 1 3 8] [--rounds N]
    [--jobs 2] [--out DIR]

A question's label is the aggregate that its query has. Tables are dealt to five silos and a public part; a person is a
table, with six questions at most. A small encoder learns which frequent word comes first, on the public part alone, and
is fixed; trained and sent are LoRA of rank 4 and a head. Scores are macro F1 on the test questions, which are nobody's.
Prints and writes utility.md, utility.json and utility.svg. Ends within an hour on two cores.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from os import environ
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.command import write_figures

ROOT = Path(__file__).resolve().parents[1]
SILOS = ("s0", "s1", "s2", "s3", "s4")
PUBLIC = 2
"""of seven parts of the tables, as many are public"""
AGGREGATES = ("none", "max", "min", "count", "sum", "avg")
MOST = 6
DELTA, CLIP, BATCH = 1e-4, 0.5, 128
ENCODER = "{random: bert, hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 4, intermediate_size: 128}"
USUAL = """
run: {{name: {name}, dir: {folder}, seed: {seed}, export: none}}
eval: {{every: 0, final_split: test}}
checkpoint: {{every: 1000000}}
system: {{device: cpu, threads: 1}}
track: {{tensorboard: false, progress: "off"}}
"""


@dataclass(frozen=True)
class Cell:
    """A row of the table."""

    kind: str
    """none, local, shared, client, alone (every silo by itself), or together (one silo with all rows)"""
    unit: str
    """row or table"""
    epsilon: float | None
    """None: no privacy"""
    seed: int

    @property
    def name(self) -> str:
        """The run's name, and its folder's."""
        epsilon = "none" if self.epsilon is None else f"eps{self.epsilon:g}"
        return f"{self.kind}-{self.unit}-{epsilon}-{self.seed}"


def questions(path: Path) -> Iterator[dict[str, Any]]:
    """Text, aggregate and table of each."""
    for line in path.read_text().splitlines():
        row = json.loads(line)
        yield {"text": row["question"], "table": row["table_id"], "label": AGGREGATES[row["sql"]["agg"]]}


def with_words(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Public rows with a label of their own: the first of their fairly frequent words."""
    words = [re.findall(r"[a-z]+", row["text"].lower()) for row in rows]
    frequent = [word for word, _ in Counter(word for each in words for word in set(each)).most_common(60)][10:]
    label = [next((word for word in each if word in frequent), "other") for each in words]
    return [{"text": row["text"], "label": one} for row, one in zip(rows, label, strict=True)]


def write_rows(data: Path, out: Path) -> dict[str, int]:
    """Files of the silos, of the public part and of the test; how many tables and rows each silo has."""
    places: dict[str, int] = {}
    parts: dict[str, list[dict[str, Any]]] = {name: [] for name in (*SILOS, "public")}
    for row in questions(data / "train.jsonl"):
        place = places.setdefault(row["table"], len(places)) % (len(SILOS) + PUBLIC)
        parts[SILOS[place] if place < len(SILOS) else "public"].append(row)
    out.mkdir(parents=True, exist_ok=True)
    silos = [{**row, "silo": name, "part": "train"} for name in SILOS for row in parts[name]]
    test = list(questions(data / "test.jsonl"))
    nobody = [{**row, "silo": "nobody", "part": "test"} for row in test]
    merged = [{**row, "silo": "all"} for row in silos]
    files = {
        "silos": silos,
        "public": parts["public"],
        "test": test,
        "all": silos + nobody,
        "together": merged + nobody,
    }
    for name, rows in files.items():
        (out / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    counts = {"rows": min(len(parts[name]) for name in SILOS)}
    counts["tables"] = min(len({row["table"] for row in parts[name]}) for name in SILOS)
    return {name: count // 10 * 10 for name, count in counts.items()}  # declared, rounded


def encoder_config(out: Path) -> str:
    """The public part alone, another label."""
    data = f"{{source: {out / 'public.jsonl'}, clients: {{iid: 1}}, splits: {{dev: 0, test: 0.1}}}}"
    text = USUAL.format(name="encoder", folder=out / "encoder", seed=0).replace(", export: none", "")
    text += f"task: {{name: text_classification, data: {data}, model: {ENCODER}, max_length: 48}}\n"
    client = "{optimizer: adamw, lr: 0.002, batch_size: 32, epochs: 1}"
    return text + f"rounds: 10\nalgorithm: {{name: fedavg}}\nclient: {client}\n"


def config_of(cell: Cell, out: Path, declared: Mapping[str, int], rounds: int) -> str:
    """The config of a cell's run."""
    together, alone = cell.kind == "together", cell.kind == "alone"
    labels, encoder = ", ".join(AGGREGATES), out / "encoder" / "model"
    rows = f"source: {out / ('together.jsonl' if together else 'all.jsonl')}, splits: {{column: part}}"
    if alone:  # the test file is every silo's
        rows = f"source: {out / 'silos.jsonl'}, splits: {{dev: 0, test: {out / 'test.jsonl'}}}"
    data = f"{{{rows}, clients: {{by: silo}}, labels: [{labels}]}}"
    model = f"{{path: {encoder}, adapter: {{kind: lora, r: 4}}}}"
    text = USUAL.format(name=cell.name, folder=out / "runs" / cell.name, seed=cell.seed)
    text += f"task: {{name: text_classification, data: {data}, model: {model}, max_length: 48}}\n"
    shared = cell.kind == "shared"
    weights = "declared" if cell.kind in ("local", "shared") else "equal"
    text += f"algorithm: {{name: fedavg, weights: {weights}}}\n"
    each = declared["rows"] if cell.unit == "row" else declared["tables"]
    batch = BATCH if cell.unit != "table" else BATCH // 4  # of so many units, of which a table has several rows
    steps = 1 if shared else 12
    text += f"rounds: {rounds * (12 if shared else 1)}\n"
    batch *= len(SILOS) if together else 1
    text += f"client: {{optimizer: adamw, lr: 0.01, batch_size: {batch}, steps: {steps}}}\n"
    text += "server: {optimizer: adam, lr: 0.01}\n" if shared else ""
    text += "paradigm: local\n" if alone else ""
    if cell.kind == "client" and cell.epsilon is not None:
        text += "clients: {sampling: poisson, rate: 0.9}\n"
        return text + f"privacy: {{kind: client, clip: {CLIP}, epsilon: {cell.epsilon}, delta: 0.1}}\n"
    if cell.epsilon is None:
        return text
    names = ("all",) if together else SILOS
    units = ", ".join(f"{name}: {each * (len(SILOS) if together else 1)}" for name in names)
    unit = "row" if cell.unit == "row" else f"{{column: table, max_rows: {MOST}}}"
    more = "noise_at: shared, secure_sum: {threshold: 1.0}, colluders: 1, " if shared else ""
    more += "reveal: [scores], " if alone else ""  # on test questions, which are nobody's
    return text + (
        f"privacy: {{kind: record, {more}unit: {unit}, units: {{{units}}}, clip: {CLIP}, epsilon: {cell.epsilon}, "
        f"delta: {DELTA}, ledger: {out / 'silos' / cell.name}}}\n"
    )


def run(out: Path, name: str, config: str, ranks: int = 1) -> dict[str, Any]:
    """Train in processes of its own; what results.json says, with the seconds.

    Raises:
        ChildProcessError: it failed.
    """
    path = out / f"{name}.yaml"
    path.write_text(config)
    words = [sys.executable, "-m", "fedtorch", "run", "--config", str(path)]
    words += ["--ranks", str(ranks)] if ranks > 1 else []
    begun = time.perf_counter()
    where = {**environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(words, cwd=out, env=where, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise ChildProcessError(f"{name} ended with {ended.returncode}: {ended.stderr[-800:]}")
    folder = out / ("encoder" if name == "encoder" else f"runs/{name}")
    found: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return {**found, "seconds": time.perf_counter() - begun}


def score(found: Mapping[str, Any]) -> float:
    """Macro F1 over the test questions; of silos alone the mean of their models'."""
    summary = found["summary"]
    figures = [each["f1_macro"] for each in summary["clients"].values()]
    return mean(figures or [summary["pooled"]["f1_macro"]])


def cells_of(args: argparse.Namespace) -> list[Cell]:
    """All of them."""
    found = []
    for seed in args.seeds:
        found += [Cell("none", "row", None, seed), Cell("client", "silo", max(args.epsilons), seed)]
        middle = args.epsilons[len(args.epsilons) // 2]
        for kind in ("local", "shared", "together"):
            found += [Cell(kind, "row", e, seed) for e in (args.epsilons if kind != "together" else [middle])]
            found.append(Cell(kind, "table", middle, seed))
        found.append(Cell("alone", "row", middle, seed))
    found.sort(key=lambda cell: cell.unit == "table")  # which take longest
    return [cell for cell in found if not args.kinds or cell.kind in args.kinds]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all cells and print the table; see the top of the file."""
    args = _parser().parse_args(arguments)
    out = args.out.resolve()
    declared = write_rows(args.data, out)
    run(out, "encoder", encoder_config(out))
    cells, found = cells_of(args), dict[Cell, dict[str, Any]]()

    def one(cell: Cell) -> tuple[Cell, dict[str, Any]]:
        ranks = 1 + len(SILOS) if cell.kind == "shared" else 1
        return cell, run(out, cell.name, config_of(cell, out, declared, args.rounds), ranks)

    with ThreadPoolExecutor(args.jobs) as pool:
        for done in as_completed([pool.submit(one, cell) for cell in cells]):
            cell, result = done.result()
            found[cell] = result
            write(out, {known: found[known] for known in cells if known in found}, declared)
    print((out / "utility.md").read_text())
    return 0


def write(out: Path, found: Mapping[Cell, Mapping[str, Any]], declared: Mapping[str, int]) -> None:
    """Table, figures and picture of the cells that are done."""
    (out / "utility.md").write_text(table_of(found, declared))
    write_figures(out / "utility.json", {cell.name: {"score": score(each), **each} for cell, each in found.items()})
    draw(found, out / "utility.svg")


def means(found: Mapping[Cell, Mapping[str, Any]]) -> dict[tuple[str, str, float | None], list[float]]:
    """(kind, unit, ε) -> the scores of its seeds."""
    each: dict[tuple[str, str, float | None], list[float]] = {}
    for cell, result in found.items():
        each.setdefault((cell.kind, cell.unit, cell.epsilon), []).append(score(result))
    return each


def table_of(found: Mapping[Cell, Mapping[str, Any]], declared: Mapping[str, int]) -> str:
    """A row for each kind, unit and ε, the mean over the seeds."""
    lines = [
        f"{len(SILOS)} silos, {declared['rows']} rows and {declared['tables']} tables declared for each, delta "
        f"{DELTA:g}, clip {CLIP:g}, macro F1 on the test questions",
        "",
        "| noise | unit | ε | macro F1 (seeds) |",
        "|---|---|---:|---:|",
    ]
    for (kind, unit, epsilon), scores in means(found).items():
        shown = "none" if epsilon is None else f"{epsilon:g}"
        lines.append(f"| {kind} | {unit} | {shown} | {mean(scores):.3f} ({' '.join(f'{one:.3f}' for one in scores)}) |")
    return "\n".join(lines) + "\n"


def draw(found: Mapping[Cell, Mapping[str, Any]], path: Path) -> None:
    """ε against score, a line for each kind and unit."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    each = means(found)
    ways = list(dict.fromkeys((kind, unit) for kind, unit, _ in each))
    for kind, unit in ways:
        points = sorted((e, mean(s)) for (k, u, e), s in each.items() if (k, u) == (kind, unit) and e is not None)
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", label=f"{kind}, {unit}")
    if none := [mean(s) for (_, _, e), s in each.items() if e is None]:
        axes.axhline(none[0], color="grey", linestyle="--", label="no privacy")
    axes.set(xlabel="ε of each silo", ylabel="macro F1", xscale="log")
    axes.legend(fontsize=8)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data" / "wikisql")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 3.0, 8.0])
    parser.add_argument("--kinds", nargs="+", default=[], help="of cells; all by default")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/record_utility"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
