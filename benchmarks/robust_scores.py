"""docs/results-robust.md: scores of robust rules under attacks on a real task, from rows to page.

python benchmarks/robust_scores.py all CROSSFIT [--seeds 1 2] [--jobs 2] [--runs FOLDER] [--page FILE]
python benchmarks/robust_scores.py rows CROSSFIT OUT     the rows of configs/robust alone

CROSSFIT: the few-shot gym's data. The same command again goes on where it ended, and does the page alone where all runs
are done. Every attack is a config of configs/robust; this command sets FEDTORCH_TESTING=1, without which none runs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.adapter_results import spread
from benchmarks.many_runs import train_all
from benchmarks.robust_cells import ATTACKS, BY_SIZE, HELD_OUT, RULES, Cell, cells, write_rows

PAGE = Path(__file__).resolve().parents[1] / "docs" / "results-robust.md"
TEMPLATE = Path(__file__).with_suffix(".md")
SEEDS = [1, 2, 3]


class Scores:
    """Of one run, in percent."""

    def __init__(self, folder: Path) -> None:
        results = json.loads((folder / "results.json").read_text())
        pairs = {name: entry["scores"]["accuracy"] for name, entry in results["clients"].items()}
        self.stamped = pairs[HELD_OUT][1]
        self.backdoor = percent([pairs.pop(HELD_OUT)])
        """triggered rows that get the target"""
        self.accuracy = percent([*pairs.values()])
        """of all clients' test rows"""
        small = sorted(pairs, key=lambda name: pairs[name][1])[: len(pairs) // 2]
        self.small = percent([pairs[name] for name in small])
        """of those of the smaller half of the clients"""
        self.rows = sum(count for _, count in pairs.values())
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        self.seconds = sum(sum(line["seconds"].values()) for line in lines if line["kind"] == "round")


Found = Mapping[tuple[str, str, str, str], Sequence[Scores]]
"""(attack, how it is dealt, rule, weights) -> of each seed"""


def percent(pairs: Sequence[tuple[float, int]]) -> float:
    """Of (hits, rows)."""
    return 100 * sum(hits for hits, _ in pairs) / sum(count for _, count in pairs)


def read(runs: Path, wanted: Sequence[Cell]) -> Found:
    """The finished runs."""
    found: dict[tuple[str, str, str, str], list[Scores]] = {}
    for cell in wanted:
        if (runs / cell.name / "results.json").is_file():
            key = (cell.attack, cell.dealt, cell.rule, cell.weights)
            found.setdefault(key, []).append(Scores(runs / cell.name))
    return found


def under_attack(found: Found) -> str:
    """Accuracy of every rule under every attack."""
    lines = [["rule", *ATTACKS], ["---", *["---:"] * len(ATTACKS)]]
    for rule, (title, _) in RULES.items():
        each = ([scores.accuracy for scores in found.get((attack, "alike", rule, "size"), ())] for attack in ATTACKS)
        lines.append([title, *(spread(values, 1) for values in each)])
    return markdown(lines)


def backdoors(found: Found) -> str:
    """How often a trigger works: taught by attackers, and by chance."""
    lines = [["rule", "backdoor: success", "backdoor: accuracy", "nobody attacks: success"], ["---", *["---:"] * 3]]
    for rule, (title, _) in RULES.items():
        taught, honest = (found.get((attack, "alike", rule, "size"), ()) for attack in ("backdoor", "honest"))
        columns = ([s.backdoor for s in taught], [s.accuracy for s in taught], [s.backdoor for s in honest])
        lines.append([title, *(spread(column, 1) for column in columns)])
    return markdown(lines)


def unequal(found: Found) -> str:
    """What rules cost without an attacker, and what it costs to count heads."""
    heads = [f"{dealt}: {rows}" for dealt in ("unequal", "unlike") for rows in ("all rows", "small clients'")]
    lines = [["rule", "weights", *heads], ["---", "---", *["---:"] * len(heads)]]
    for rule in BY_SIZE:
        for weights in ("size", "equal"):
            each = [found.get(("honest", dealt, rule, weights), ()) for dealt in ("unequal", "unlike")]
            if any(each):
                columns = (values for s in each for values in ([x.accuracy for x in s], [x.small for x in s]))
                lines.append([RULES[rule][0], f"`{weights}`", *(spread(column, 1) for column in columns)])
    return markdown(lines)


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """A table."""
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def page(found: Found, rows: int, seeds: Sequence[int]) -> str:
    """The whole page."""
    every = [scores for each in found.values() for scores in each]
    tested = fmean(scores.rows for scores in every)
    return TEMPLATE.read_text().format(
        rows=rows,
        tested=round(tested),
        one=100 / tested,
        stamped=every[0].stamped,
        seeds=len(seeds),
        given=" ".join(map(str, seeds)),
        runs=len(every),
        minutes=round(sum(scores.seconds for scores in every) / 60),
        under_attack=under_attack(found),
        backdoors=backdoors(found),
        unequal=unequal(found),
    )


def words_of(cell: Cell, source: Path, folder: Path) -> list[str]:
    """What trains a cell there."""
    sets = [*cell.sets, f"run.dir={folder}", f"task.data.source={source}", 'track.progress="off"']
    return ["--config", f"robust/{cell.attack}", "--set", *sets]


def main(arguments: Sequence[str] | None = None) -> int:
    """Rows, or rows, runs and page; the first exit code of a run that is not 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    rows = commands.add_parser("rows")
    rows.add_argument("gym", type=Path, metavar="CROSSFIT")
    rows.add_argument("out", type=Path)
    whole = commands.add_parser("all")
    whole.add_argument("gym", type=Path, metavar="CROSSFIT")
    whole.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    whole.add_argument("--jobs", type=int, default=2, help="runs at once")
    whole.add_argument("--runs", type=Path, default=Path("runs/robust_scores"))
    whole.add_argument("--page", type=Path, default=PAGE)
    args = parser.parse_args(arguments)
    if args.command == "rows":
        return 0 * write_rows(args.gym, SEEDS, args.out)
    wanted, source = list(cells(args.seeds)), args.runs / "rows"
    number = write_rows(args.gym, args.seeds, source)
    os.environ["FEDTORCH_TESTING"] = "1"
    questions = (source / "questions.jsonl").resolve()
    folders = {args.runs / "runs" / cell.name: cell for cell in wanted}
    code = train_all({folder: words_of(cell, questions, folder) for folder, cell in folders.items()}, args.jobs)
    if code == 0:
        args.page.write_text(page(read(args.runs / "runs", wanted), number, args.seeds))
    return code


if __name__ == "__main__":
    sys.exit(main())
