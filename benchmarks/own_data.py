"""The two classification tasks of docs/results-own-data.md: their rows as JSONL, and the page's tables from a sweep.

python benchmarks/own_data.py rows CROSSFIT OUT     from the CrossFit few-shot gym's files
python benchmarks/own_data.py tables SWEEP          accuracy by method, as Markdown
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev

TASKS = {"questions": ("trec-finegrained", 4), "posts": ("hate_speech_offensive", 3)}
"""file -> (task of the gym, its most frequent labels that are kept)"""
EVERYBODYS = 100
"""Rows of each task that no client has, for asking what a client's own model knows of the others' rows."""


def rows_of(gym: Path, task: str, labels: int) -> list[dict[str, str]]:
    """All different rows of the gym's five samples, test rows among them, of the most frequent labels, sorted."""
    lines = {line for file in sorted((gym / task).glob("*.tsv")) for line in file.read_text("utf-8").splitlines()}
    pairs = sorted(line.split("\t")[:2] for line in lines)
    texts = Counter(text for text, _ in pairs)
    kept = {label for label, _ in Counter(label for _, label in pairs).most_common(labels)}
    return [{"text": text, "label": label} for text, label in pairs if label in kept and texts[text] == 1]


def write_rows(gym: Path, out: Path) -> None:
    """NAME.jsonl for the clients, NAME_everybodys.jsonl beside it."""
    out.mkdir(parents=True, exist_ok=True)
    for name, (task, labels) in TASKS.items():
        rows = rows_of(gym, task, labels)
        random.Random(0).shuffle(rows)
        for file, part in ((f"{name}_everybodys", rows[:EVERYBODYS]), (name, rows[EVERYBODYS:])):
            text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in part)
            (out / f"{file}.jsonl").write_text(text, "utf-8")
        print(f"{name}: {len(rows)} rows, {EVERYBODYS} of them everybody's; {dict(Counter(r['label'] for r in rows))}")


METHODS = {
    "start": "untrained",
    "local": "every client alone",
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "fedadam": "FedAdam",
    "centralized": "all rows together",
    "alone": "every client alone, on rows of all labels",
}
"""What is in the name of a run or of what stands beside it -> its row."""
Figures = dict[tuple[str, str], dict[str, dict[str, float]]]
"""(task, how it is dealt) -> method -> draw -> accuracy in percent over all test rows"""


def figures_of(sweep: Path) -> Figures:
    """What the finished runs of a sweep came to."""
    found: Figures = {}
    for file in sorted(sweep.glob("*/results.json")):
        run, _, draw = file.parent.name.partition(",task.data.seed=")
        task, dealt, method = run.split("_")
        results = json.loads(file.read_text())
        cell = found.setdefault((task, dealt), {})
        for name, part in {method: results, **results.get("compare", {})}.items():
            cell.setdefault(name, {})[draw] = 100 * part["averages"]["accuracy"]["micro"]
    return found


def tables(found: Figures) -> str:
    """Accuracies, and for each federated method what it has more than every client alone and than all rows together."""
    lines = [_line(["", *(f"{task}, {dealt}" for task, dealt in found)]), _line(["---", *["---:"] * len(found)])]
    for method, shown in METHODS.items():
        if any(method in cell for cell in found.values()):
            lines.append(_line([shown, *(_spread(cell.get(method, {}).values()) for cell in found.values())]))
    lines += ["", _line(["gain", "than", *(f"{task}, {dealt}" for task, dealt in found)])]
    lines += [_line(["---", "---", *["---:"] * len(found)])]
    for method in ("fedavg", "fedprox", "fedadam"):
        for other in ("local", "centralized"):
            cells = [_spread(_gains(cell, method, other)) for cell in found.values()]
            lines.append(_line([METHODS[method], METHODS[other], *cells]))
    return "\n".join(lines) + "\n"


def _gains(cell: Mapping[str, Mapping[str, float]], method: str, other: str) -> list[float]:
    """Draw by draw, on the same rows."""
    ours, theirs = cell.get(method, {}), cell.get(other, {})
    return [value - theirs[draw] for draw, value in ours.items() if draw in theirs]


def _spread(values: Iterable[float]) -> str:
    values = list(values)
    if len(values) < 2:
        return f"{values[0]:.1f}" if values else "-"
    return f"{fmean(values):.1f} ± {stdev(values):.1f}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    rows = commands.add_parser("rows", help="rows as JSONL from the few-shot gym's files")
    rows.add_argument("gym", type=Path, metavar="CROSSFIT")
    rows.add_argument("out", type=Path)
    commands.add_parser("tables", help="accuracy by method, as Markdown").add_argument("sweep", type=Path)
    args = parser.parse_args(arguments)
    if args.command == "rows":
        write_rows(args.gym, args.out)
    else:
        print(tables(figures_of(args.sweep)), end="")


if __name__ == "__main__":
    main()
