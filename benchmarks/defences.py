"""docs/results-defences.md: what clip, noise, adapters and local steps do to each attack and to the score.

python benchmarks/defences.py QUESTIONS TEXT2SQL DIALOG [--seeds 0 1] [--runs FOLDER] [--page FILE]

QUESTIONS: questions.jsonl of `benchmarks/own_data.py rows`; TEXT2SQL, DIALOG: folders of `fedtorch data prepare`. Each
cell is trained and audited; the same command again goes on where it ended. Page and picture come last.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.defence_cells import CELLS, CLIP, HIGH, LOW, ROUNDS, SCORES, TITLES, config_of, settings_of, wanted
from fedtorch.audit.attacks import attack_run
from fedtorch.audit.embedding_rows import TELLING as ROWS_TELLING
from fedtorch.audit.span_check import TELLING as SPAN_TELLING
from fedtorch.audit.subject import AuditOptions
from fedtorch.main import main as train

DOCS = Path(__file__).resolve().parents[1] / "docs"
TEMPLATE = Path(__file__).with_suffix(".md")
PICTURE = "defences.svg"
ATTACKED, OFTEN = 2, 16
"""Clients whose updates are attacked; how often the secrets stand in a client's rows of which the page tells."""
ATTACKS = ("rows", "span", "kv", "secrets", "membership")
TELLING = {"rows": ROWS_TELLING, "span": SPAN_TELLING}


def run_cell(task: str, cell: str, folder: Path, seed: int, data: Mapping[str, Path], rounds: int) -> dict[str, Any]:
    """Train a cell and audit it; what `cell.json` of its folder holds from then on.

    Raises:
        ChildProcessError: the run failed.
    """
    done = folder / "cell.json"
    if done.is_file():
        return dict(json.loads(done.read_text()))
    folder.mkdir(parents=True, exist_ok=True)
    config, begun = folder / "cell.yaml", time.process_time()
    config.write_text(config_of(task, seed, folder / "run", data, rounds))
    noise = CELLS[cell].noise
    options = AuditOptions(
        CLIP if noise else None, noise, clients=ATTACKED, places=24, trains=True, canaries=100, delta=1e-3
    )
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        if code := train(
            ["--config", str(config), "--resume", "never", "--set", f"run.seed={seed}", *settings_of(task, cell)]
        ):
            raise ChildProcessError(f"{folder} ended with {code}: {said.getvalue()[-500:]}")
        found = attack_run(folder / "run", [], [], options, ATTACKS)
    results = json.loads((folder / "run" / "results.json").read_text())
    record = {"findings": {name: one.record() for name, one in found.findings.items()}, "averages": results["averages"],
              "cpu_s": time.process_time() - begun}  # fmt: skip
    done.write_text(json.dumps(record, indent=1) + "\n")
    return record


def recovered(record: Mapping[str, Any], attack: str, channel: str) -> tuple[float, float] | None:
    """(share of what there is to be found, share of the finds that is right): the best over the clients; None: not run.

    "Best" is the attacker's best that tells something, as the audit says it, else the largest.
    """
    rows = [row for row in record["findings"][attack].get("figures", ()) if row["channel"] == channel]
    pairs = [(row["recovered"] or 0.0, row["right"] or 0.0) for row in rows]
    return max(pairs, key=lambda pair: (pair[1] >= TELLING[attack], pair[0]), default=None)


def told(record: Mapping[str, Any], attack: str, channel: str) -> float | None:
    """Share recovered, nothing where the finds are too wrong to tell anything."""
    found = recovered(record, attack, channel)
    return None if found is None else found[0] * (found[1] >= TELLING[attack])


def words(record: Mapping[str, Any], weights: str) -> float | None:
    """Share of a dialog's words that keys and values give away to those who have the same weights or their own."""
    rows = record["findings"]["kv"].get("figures", ())
    return max((row["recovered"] or 0.0 for row in rows if f", {weights}" in row["channel"]), default=None)


def exposure(record: Mapping[str, Any]) -> float | None:
    """Mean bits of the secrets that stand there most often, under what is released."""
    rows = [row for row in record["findings"]["secrets"].get("figures", ()) if row["times"] == OFTEN]
    return fmean(row["exposure"] for row in rows if row["channel"] == rows[-1]["channel"]) if rows else None


def auc(record: Mapping[str, Any]) -> float | None:
    """Of `membership`, all clients together."""
    rows = record["findings"]["membership"].get("figures", ())
    return float(rows[0]["auc"]) if rows else None


def score(task: str, record: Mapping[str, Any]) -> float:
    """On rows that nobody trains on."""
    name, times, _ = SCORES[task]
    return times * float(record["averages"][name]["micro"])


Records = Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]
"""(task, cell) -> a record of each seed"""


def table(task: str, records: Records) -> str:
    """A row for each cell; means over the seeds."""
    heads = ["what the client does", "rows: update", "rows: released", "span: update", "span: released"]
    heads += ["words of dialogs: same, own weights"] if task == "dialog" else []
    heads += ["secrets, bits", "membership, AUC", SCORES[task][2]]
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)]]
    for (of, cell), each in records.items():
        if of != task:
            continue
        channels = ("update", CELLS[cell].released)
        line = [CELLS[cell].title]
        line += [
            _pairs([recovered(one, attack, channel) for one in each]) for attack in TELLING for channel in channels
        ]
        if task == "dialog":
            line.append(", ".join(_mean([words(one, kind) for one in each], "%") for kind in ("the same", "own")))
        line += [_mean([exposure(one) for one in each], "bits"), _mean([auc(one) for one in each], "")]
        lines.append([*line, _mean([score(task, one) for one in each], "")])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _mean(values: Sequence[float | None], unit: str) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    return f"{100 * fmean(known):.0f} %" if unit == "%" else f"{fmean(known):.{1 if unit == 'bits' else 2}f}"


def _pairs(pairs: Sequence[tuple[float, float] | None]) -> str:
    known = [pair for pair in pairs if pair is not None]
    if not known:
        return "–"
    found, right = (fmean(side) for side in zip(*known, strict=True))
    return f"{100 * found:.0f} % ({100 * right:.0f} %)" if found else "0 %"


def picture(records: Records) -> str:
    """Tokens recovered per task and cell, the mean over the seeds, as an SVG file."""
    names = [f"{attack}, {what}" for attack in TELLING for what in ("the update", "what is released")]
    names += [f"keys and values, {weights} weights" for weights in ("the same", "own")]
    rows: dict[str, list[float | None]] = {}
    for (task, cell), each in records.items():
        found = [[told(one, attack, channel) for one in each] for attack in TELLING
                 for channel in ("update", CELLS[cell].released)]  # fmt: skip
        found += [[words(one, weights) for one in each] for weights in ("the same", "own")]
        known = [[value for value in values if value is not None] for values in found]
        rows[f"{task}, {cell}"] = [fmean(values) if values else None for values in known]
    return _bars(rows, names)


def _bars(rows: Mapping[str, Sequence[float | None]], names: Sequence[str]) -> str:
    """Bars from 0 to 1 of each row, one for each of `names` that is known there; the same text for the same numbers."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "", "font.size": 8}):
        figure = Figure(figsize=(6, 0.8 + 0.12 * len(names) * len(rows)), layout="constrained")
        axes, thick = figure.subplots(), 0.8 / len(names)
        for index, name in enumerate(names):
            shown = [(place, values[index]) for place, values in enumerate(rows.values())]
            known = [(place + index * thick, value) for place, value in shown if value is not None]
            bars = axes.barh([y for y, _ in known], [value for _, value in known], thick, label=name, align="edge")
            for number, bar in enumerate(bars):
                bar.set_gid(f"bar {index} {number}")
        axes.set_yticks([place + 0.4 for place in range(len(rows))], list(rows))
        axes.set(xlim=(0, 1), xlabel="share of tokens recovered")
        axes.invert_yaxis()
        figure.legend(loc="outside upper center", ncols=2)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def page(records: Records, seeds: Sequence[int], rounds: int) -> str:
    """The whole page."""
    text = TEMPLATE.read_text()
    given = " ".join(map(str, seeds))
    facts = {"seeds": str(len(seeds)), "given": given, "rounds": str(rounds), "clip": f"{CLIP:g}", "low": f"{LOW:g}"}
    facts |= {"high": f"{HIGH:g}", "often": str(OFTEN), "attacked": str(ATTACKED), "picture": PICTURE}
    missing = [f"{TITLES[task]} with {CELLS[cell].title}" for task, cell in wanted() if (task, cell) not in records]
    facts["missing"] = f"Not run for this page: {'; '.join(missing)}." if missing else ""
    facts |= {f"{task}_table": table(task, records) for task in TITLES}
    facts["minutes"] = f"{sum(one['cpu_s'] for each in records.values() for one in each) / 60:.0f}"
    return text.format(**facts)


def cells(args: argparse.Namespace) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    """Each cell of each seed as it comes, with its task and name."""
    data = {"questions": args.questions, "text2sql": args.text2sql, "dialog": args.dialog}
    for seed in args.seeds:
        for task, cell in wanted():
            if args.only not in f"{task}-{cell}":
                continue
            folder = args.runs.resolve() / f"{task}-{cell}-{seed}"
            if args.done and not (folder / "cell.json").is_file():
                continue
            record = run_cell(task, cell, folder, seed, data, args.rounds)
            print(f"{folder.name}: {record['cpu_s']:.0f} s", flush=True)
            yield (task, cell), record


def main(arguments: Sequence[str] | None = None) -> int:
    """All cells, then page and picture; see the top of the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in ("questions", "text2sql", "dialog"):
        parser.add_argument(name, type=Path, metavar=name.upper())
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--runs", type=Path, default=Path("runs/defences"))
    parser.add_argument("--page", type=Path, default=DOCS / "results-defences.md")
    parser.add_argument("--done", action="store_true", help="train nothing: the page of the cells that are done")
    parser.add_argument(
        "--only", default="", help="only cells whose name has this in it, and no page; to try things out"
    )
    args = parser.parse_args(arguments)
    records: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for place, record in cells(args):
        records.setdefault(place, []).append(record)
    if args.only:
        print("\n".join(f"{task}\n{table(task, records)}" for task in dict.fromkeys(task for task, _ in records)))
        return 0
    args.page.write_text(page(records, args.seeds, args.rounds))
    images = args.page.parent / "images"
    images.mkdir(exist_ok=True)
    (images / PICTURE).write_text(picture(records))
    return 0


if __name__ == "__main__":
    sys.exit(main())
