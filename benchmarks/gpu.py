"""Everything that asks for a GPU, part by part, in one table: tests, runs, NCCL, exchange, DeepSpeed, large models.

python benchmarks/gpu.py --out FOLDER [--parts tests,nccl,...] [--limit 90] [--beside 3] [--device cuda|cpu] [--small]

Every part is a process of its own with a limit of time, so that one that hangs or crashes ends no other. It writes
FOLDER/PART.jsonl line by line, and FOLDER/table.md says after each part what came out and what could not be run. Parts
that time nothing may run beside each other; the timed ones have the machine to themselves. Works offline.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.gpu_part import LIMIT_S, Setting, last_lines, run_limited

PARTS = {
    "facts": "gpu_facts",
    "tests": "gpu_runs",
    "nccl": "gpu_nccl",
    "fault": "gpu_fault",
    "ranks": "gpu_runs",
    "smoke": "gpu_runs",
    "deepspeed": "gpu_models",
    "copies": "gpu_facts",
    "exchange": "gpu_exchange",
    "papers": "gpu_models",
    "large": "gpu_models",
}
"""Part -> module in this folder with a function of that name; the most important first."""
TIMED = ("deepspeed", "copies", "exchange", "papers", "large")
COLUMNS = ("part", "what", "outcome", "seconds", "peak, MB", "busy, %", "more")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts and print the table; 0 where every row has the outcome `ok` or `left out`."""
    args = _parser().parse_args(arguments)
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if args.only:
        setting = Setting(args.only, args.device, args.small, out, args.jobs, args.limit)
        getattr(import_module(f"benchmarks.{PARTS[args.only]}"), args.only)(setting)
        return 0
    rows: dict[str, list[dict[str, Any]]] = {}

    def run(part: str) -> None:
        rows[part] = run_part(part, args, out)
        done = [row for name in args.parts for row in rows.get(name, ())]
        (out / "table.md").write_text(table(done))

    beside = [part for part in args.parts if part not in TIMED]
    with ThreadPoolExecutor(args.beside) as pool:
        list(pool.map(run, beside))
    for part in args.parts:
        if part in TIMED:
            run(part)
    print((out / "table.md").read_text())
    return int(any(row["outcome"] not in ("ok", "left out") for each in rows.values() for row in each))


def run_part(part: str, args: argparse.Namespace, out: Path) -> list[dict[str, Any]]:
    """The rows of a part, with one for the part itself where it did not come to its end."""
    print(f"{part}: begun", flush=True)
    file = out / f"{part}.jsonl"
    file.unlink(missing_ok=True)
    words = ["--only", part, "--device", args.device, "--out", str(out), "--jobs", str(args.jobs)]
    words += ["--limit", str(args.limit), *(["--small"] if args.small else [])]
    ended = run_limited([sys.executable, str(Path(__file__).resolve()), *words], args.limit, out / f"{part}.log")
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    if ended.code != 0:
        outcome = f"ran past {args.limit:g} s" if ended.code is None else f"ended with code {ended.code}"
        rows.append({"what": "the part itself", "outcome": outcome, "said": last_lines(ended.text)})
    print(f"{part}: {len(rows)} rows in {ended.seconds:.0f} s", flush=True)
    return [{"part": part, **row} for row in rows]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown; figures without a column of their own are in the last one."""
    lines = [COLUMNS, ("---",) * len(COLUMNS)]
    for row in rows:
        rest = dict(row)
        cells = [rest.pop(name, "") for name in ("part", "what", "outcome", "seconds", "peak_mb", "busy_percent")]
        more = "; ".join(f"{name.replace('_', ' ')} {_plain(value)}" for name, value in rest.items() if value != "")
        lines.append(tuple(map(_shown, (*cells, more))))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
    return "" if value is None else str(value)


def _shown(value: Any) -> str:
    return _plain(value).replace("|", "\\|").replace("\n", " / ")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for rows, logs and the table")
    parser.add_argument("--parts", type=_parts, default=list(PARTS), help=f"any of {','.join(PARTS)}; by default all")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds that a part may take")
    parser.add_argument("--beside", type=int, default=1, help="parts that time nothing and run at the same time")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) * 3 // 4), help="runs at a time")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: a rehearsal")
    parser.add_argument("--small", action="store_true", help="sizes for a rehearsal")
    parser.add_argument("--only", choices=list(PARTS), help=argparse.SUPPRESS)
    return parser


def _parts(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    if unknown := [name for name in names if name not in PARTS]:
        raise argparse.ArgumentTypeError(f"there is no part {unknown[0]}; there are {', '.join(PARTS)}")
    return [name for name in PARTS if name in names]


if __name__ == "__main__":
    sys.exit(main())
