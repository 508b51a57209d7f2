"""Measure what the privacy of rows and of persons costs in score, on real rows: questions of WikiSQL, dialogs of SGD.

python benchmarks/record_utility.py [--data DIR] [--rows questions dialogs] [--seeds 0 1 2] [--epsilons 1 3 8]
    [--kinds KIND ...] [--rounds 4] [--jobs 2] [--out DIR]

For each kind of rows (benchmarks/record_rows.py) a small encoder learns which frequent word comes first, on the public
part alone, and is fixed; trained and sent are LoRA of rank 4 and a head. Scores are macro F1 on test rows, which are
nobody's. All seeds have the same rows and encoder; first weights, batches and noise differ. Shared noise is made in one
process: a round's sum with a share of the noise from each silo, which is what the secure sum opens. `--kinds public`
trains one silo of three quarters of the public part and scores on the rest, with `--lr` and `--clip`: settings are
chosen there. Writes utility.md, utility.json and a picture after every cell, and prints the first. The same command
goes on where it was ended. Within an hour on two cores.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.command import write_figures
from benchmarks.record_rows import KINDS, Rows, write_rows

ROOT = Path(__file__).resolve().parents[1]
DELTA = 1e-4
ENCODER = "{random: bert, hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 4, intermediate_size: 128}"
USUAL = """
run: {{name: {name}, dir: {folder}, seed: {seed}, export: none}}
eval: {{every: 0, final_split: test}}
checkpoint: {{every: 1000000}}
system: {{device: cpu, threads: 1}}
track: {{tensorboard: false, progress: "off"}}
"""
WAYS = ("none", "local", "shared-1", "shared-0", "client", "alone", "together")
"""no privacy; noise of each silo's; shared, with so many colluders; `kind: client`; every silo by itself; one silo with
all rows"""
Declared = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Cell:
    """A run."""

    rows: str
    """questions or dialogs"""
    way: str
    """one of WAYS, or `public`"""
    unit: str
    """row, table, dialog; or silo"""
    epsilon: float | None
    """None: no privacy"""
    seed: int

    @property
    def name(self) -> str:
        """The run's name, and its folder's."""
        epsilon = "none" if self.epsilon is None else f"eps{self.epsilon:g}"
        return f"{self.rows}-{self.way}-{self.unit}-{epsilon}-{self.seed}"


@dataclass(frozen=True)
class Settings:
    """All that cells have in common."""

    out: Path
    declared: Mapping[str, Declared]
    """kind of rows -> silo -> unit -> how many"""
    rounds: int
    """of the silos; each step is one where noise is shared"""
    lr: float
    clip: float


def encoder_config(kind: Rows, out: Path) -> str:
    """The public part alone, another label."""
    data = f"{{source: {out / kind.name / 'words.jsonl'}, clients: {{iid: 1}}, splits: {{dev: 0, test: 0.1}}}}"
    text = USUAL.format(name=f"{kind.name}-encoder", folder=out / "runs" / f"{kind.name}-encoder", seed=0)
    text = text.replace(", export: none", "")
    text += f"task: {{name: text_classification, data: {data}, model: {ENCODER}, max_length: 48}}\n"
    client = "{optimizer: adamw, lr: 0.002, batch_size: 32, epochs: 1}"
    return text + f"rounds: 10\nalgorithm: {{name: fedavg}}\nclient: {client}\n"


def config_of(cell: Cell, settings: Settings) -> str:
    """The config of a cell's run."""
    kind, out = KINDS[cell.rows], settings.out
    folder, shared = out / kind.name, cell.way.startswith("shared")
    one = cell.way if cell.way in ("together", "public") else ""
    rows = f"source: {folder / (one or 'all')}.jsonl, splits: {{column: part}}"
    if cell.way == "alone":  # the test file is every silo's
        rows = f"source: {folder / 'silos.jsonl'}, splits: {{dev: 0, test: {folder / 'test.jsonl'}}}"
    data = f"{{{rows}, clients: {{by: silo}}, labels: [{', '.join(kind.labels)}]}}"
    model = f"{{path: {out / 'runs' / f'{kind.name}-encoder' / 'model'}, adapter: {{kind: lora, r: 4}}}}"
    text = USUAL.format(name=cell.name, folder=out / "runs" / cell.name, seed=cell.seed)
    text += f"task: {{name: text_classification, data: {data}, model: {model}, max_length: 48}}\n"
    weights = "declared" if cell.way == "local" else "equal"
    text += (
        f"algorithm: {{name: fedavg, weights: {weights}}}\nrounds: {settings.rounds * (kind.steps if shared else 1)}\n"
    )
    batch = kind.batch.get(cell.unit, kind.batch["row"])
    batch *= len(_silos(settings, kind)) if cell.way == "together" else 1
    local = f"optimizer: adamw, lr: {settings.lr}, steps: {kind.steps}"
    text += f"client: {{{'optimizer: sgd, lr: 1.0, steps: 1' if shared else local}, batch_size: {batch}}}\n"
    text += f"server: {{optimizer: adam, lr: {settings.lr}}}\n" if shared else ""
    text += "paradigm: local\n" if cell.way == "alone" else ""
    if cell.epsilon is None:
        return text
    if cell.way == "client":
        text += "clients: {sampling: poisson, rate: 0.9}\n"
        return text + f"privacy: {{kind: client, clip: {settings.clip}, epsilon: {cell.epsilon}, delta: 0.1}}\n"
    return text + _record(cell, settings, kind, one)


def _record(cell: Cell, settings: Settings, kind: Rows, one: str) -> str:
    """The section `privacy`; one: the name of the only silo."""
    silos = {name: settings.declared[kind.name][name][cell.unit] for name in _silos(settings, kind)}
    delta = DELTA / len(silos) if one == "together" else DELTA  # which has so many times the units
    if one:
        public = settings.declared[kind.name]["public"][cell.unit]
        silos = {"public": public} if one == "public" else {"all": sum(silos.values())}
    unit = "row" if cell.unit == "row" else f"{{column: {kind.person}, max_rows: {kind.most}}}"
    more, keeps = "", f"epsilon: {cell.epsilon}, ledger: {settings.out / 'silos' / cell.name}"
    if cell.way.startswith("shared"):  # the sum that is opened, made in one process: each silo adds its share
        z = noise(cell.epsilon or 0.0, kind.batch[cell.unit] / min(silos.values()), settings.rounds * kind.steps)
        share = z / math.sqrt(len(silos) - int(cell.way[-1]))
        keeps = f"noise_multiplier: {share}, simulate: true, seed: {cell.seed}, reveal: [scores]"
    elif cell.way == "alone":
        more = "reveal: [scores], "  # on test rows, which are nobody's
    return (
        f"privacy: {{kind: record, {more}unit: {unit}, units: {json.dumps(silos)}, clip: {settings.clip}, {keeps}, "
        f"delta: {delta}, physical: 64}}\n"
    )


def _silos(settings: Settings, kind: Rows) -> list[str]:
    return [name for name in settings.declared[kind.name] if name != "public"]


@cache
def noise(epsilon: float, rate: float, steps: int) -> float:
    """The least noise multiplier that keeps the promise."""
    from fedtorch.privacy.accounting import least_noise

    return least_noise(epsilon, rate, steps, DELTA)


def run(out: Path, name: str, config: str) -> dict[str, Any]:
    """Train, unless it was done before; what results.json says, with the seconds of processor and of the clock."""
    import fedtorch

    path, folder = out / f"{name}.yaml", out / "runs" / name
    said = folder / "measured.json"
    if said.is_file() and path.read_text() == config:
        known: dict[str, Any] = json.loads(said.read_text())
        return known
    path.write_text(config)
    shutil.rmtree(out / "silos" / name, ignore_errors=True)  # a run that was cut short has paid there
    begun, used = time.perf_counter(), time.process_time()
    with (out / f"{name}.log").open("w") as file, redirect_stdout(file), redirect_stderr(file):
        fedtorch.run(path, resume="never")
    found: dict[str, Any] = json.loads((folder / "results.json").read_text())
    found |= {"seconds": time.perf_counter() - begun, "processor": time.process_time() - used}
    write_figures(said, found)
    return found


def score(found: Mapping[str, Any]) -> float:
    """Macro F1 over the test rows; of silos alone the mean of their models'."""
    summary = found["summary"]
    figures = [each["f1_macro"] for each in summary["clients"].values()]
    return mean(figures or [summary["pooled"]["f1_macro"]])


def cells_of(args: argparse.Namespace) -> list[Cell]:
    """All of them, a whole seed first; ways beside local and shared noise have one ε, and so has a second unit."""
    cells, middle = [], args.epsilons[len(args.epsilons) // 2]
    epsilons = {"none": [None], "client": [max(args.epsilons)], "alone": [middle], "together": [middle]}
    for seed in args.seeds:
        for way in args.kinds:
            for name in args.rows:
                unit = {"none": "none", "client": "silo"}.get(way, KINDS[name].units[0])
                cells += [Cell(name, way, unit, epsilon, seed) for epsilon in epsilons.get(way, args.epsilons)]
        others = [(name, unit) for name in args.rows for unit in KINDS[name].units[1:]]
        ways = [way for way in args.kinds if way in ("local", "shared-1")]
        cells += [Cell(name, way, unit, middle, seed) for name, unit in others for way in ways]
    return cells


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all cells and print the table; see the top of the file."""
    args = _parser().parse_args(arguments)
    out = args.out.resolve()
    declared = {name: write_rows(KINDS[name], args.data, out / name) for name in args.rows}
    settings = Settings(out, declared, args.rounds, args.lr, args.clip)
    (out / "runs").mkdir(exist_ok=True)
    cells, found = cells_of(args), dict[Cell, dict[str, Any]]()
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
        encoders = [pool.submit(run, out, f"{name}-encoder", encoder_config(KINDS[name], out)) for name in args.rows]
        for encoder in encoders:
            encoder.result()
        jobs = {pool.submit(run, out, cell.name, config_of(cell, settings)): cell for cell in cells}
        for done in as_completed(jobs):
            found[jobs[done]] = done.result()
            write(out, {known: found[known] for known in cells if known in found}, settings)
    print((out / "utility.md").read_text())
    return 0


def write(out: Path, found: Mapping[Cell, Mapping[str, Any]], settings: Settings) -> None:
    """Table, figures and picture of the cells that are done."""
    (out / "utility.md").write_text(table_of(found, settings))
    kept = ("seconds", "processor", "digest", "privacy")
    figures = {
        cell.name: {"score": score(each), **{key: each.get(key) for key in kept}} for cell, each in found.items()
    }
    write_figures(out / "utility.json", figures)
    draw(found, out / "record_utility.svg")


def means(found: Mapping[Cell, Mapping[str, Any]]) -> dict[tuple[str, str, str, float | None], list[float]]:
    """(rows, way, unit, ε) -> the scores of its seeds."""
    each: dict[tuple[str, str, str, float | None], list[float]] = {}
    for cell, result in found.items():
        each.setdefault((cell.rows, cell.way, cell.unit, cell.epsilon), []).append(score(result))
    return each


def table_of(found: Mapping[Cell, Mapping[str, Any]], settings: Settings) -> str:
    """A line for each kind of rows, way and unit, a column for each ε: the mean over the seeds, ± their deviation."""
    each = means(found)
    epsilons = sorted({e for *_, e in each if e is not None}) or [math.inf]
    lines = []
    for rows in dict.fromkeys(rows for rows, *_ in each):
        kind = KINDS[rows]
        units = {unit: [settings.declared[rows][name][unit] for name in _silos(settings, kind)] for unit in kind.units}
        shown = "; ".join(f"{unit}s {' '.join(map(str, sorted(counts)))}" for unit, counts in units.items())
        lines += [
            f"{rows}: declared {shown}; {settings.rounds * kind.steps} steps of {dict(kind.batch)}, delta {DELTA:g}, "
            f"clip {settings.clip:g}, lr {settings.lr:g}; macro F1 on {kind.scores}; seeds",
            "",
            "| way | unit | " + " | ".join(f"ε {e:g}" for e in epsilons) + " | seeds |",
            "|---|---|" + "---:|" * (len(epsilons) + 1),
        ]
        for way, unit in dict.fromkeys((way, unit) for r, way, unit, _ in each if r == rows):
            cells = [each.get((rows, way, unit, e), each.get((rows, way, unit, None), [])) for e in epsilons]
            seeds = min((len(scores) for scores in cells if scores), default=0)
            lines.append(f"| {way} | {unit} | " + " | ".join(map(_shown, cells)) + f" | {seeds} |")
        lines.append("")
    return "\n".join(lines)


def _shown(scores: Sequence[float]) -> str:
    if not scores:
        return ""
    return f"{mean(scores):.3f}" + (f" ± {stdev(scores):.3f}" if len(scores) > 1 else "")


def draw(found: Mapping[Cell, Mapping[str, Any]], path: Path) -> None:
    """ε against score, a panel for each kind of rows and a line for each way and unit."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "record_utility"
    import matplotlib.pyplot as plt

    each = means(found)
    kinds = list(dict.fromkeys(rows for rows, *_ in each))
    figure, panels = plt.subplots(1, len(kinds), figsize=(6 * len(kinds), 4), squeeze=False)
    for axes, rows in zip(panels[0], kinds, strict=True):
        for way, unit in dict.fromkeys((way, unit) for r, way, unit, e in each if r == rows and e is not None):
            points = sorted((e, s) for (r, w, u, e), s in each.items() if (r, w, u) == (rows, way, unit))
            at, spread = [e for e, _ in points], [stdev(s) if len(s) > 1 else 0.0 for _, s in points]
            axes.errorbar(at, [mean(s) for _, s in points], spread, marker="o", capsize=2, label=f"{way}, {unit}")
        if none := [mean(s) for (r, _, _, e), s in each.items() if r == rows and e is None]:
            axes.axhline(none[0], color="grey", linestyle="--", label="no privacy")
        axes.set(title=rows, xlabel="ε of each silo", ylabel="macro F1", xscale="log")
        ticks = sorted({e for r, *_, e in each if r == rows and e is not None})
        axes.set_xticks(ticks, [f"{e:g}" for e in ticks], minor=False)
        axes.minorticks_off()
        axes.legend(fontsize=7)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--rows", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 3.0, 8.0])
    parser.add_argument("--kinds", nargs="+", default=list(WAYS), choices=[*WAYS, "public"])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--clip", type=float, default=0.5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/record_utility"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
