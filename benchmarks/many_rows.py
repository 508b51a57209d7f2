"""Seconds and memory of `fedtorch data check` on many rows: the first time, when they are prepared too, and the second.

python benchmarks/many_rows.py [--rows 1000000] [--clients 50] [--json OUT]
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.command import parser_of, write_figures

ROOT = Path(__file__).resolve().parents[1]
CONFIG = """
task:
  name: text_classification
  model: {random: bert, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 16}
  data: {source: rows.jsonl, clients: {by: home}, tokenizer_size: 500}
  max_length: 64
"""


def write(folder: Path, rows: int, clients: int) -> None:
    """rows.jsonl, of twelve words each, and a config."""
    draw, words = random.Random(1), [f"word{number}" for number in range(3000)]
    with (folder / "rows.jsonl").open("w") as file:
        for number in range(rows):
            text, label = " ".join(draw.choices(words, k=12)), draw.choice("abc")
            file.write(json.dumps({"text": text, "label": label, "home": f"h{number % clients}"}) + "\n")
    (folder / "rows.yaml").write_text(CONFIG)


def check(folder: Path) -> dict[str, float]:
    """Wall and processor seconds, and the most memory of one of its processes, of the command in a process of its own.

    Raises:
        ChildProcessError: it failed.
    """
    words = [sys.executable, "-m", "fedtorch.setup.data_check", str(folder / "rows.yaml")]
    begun = time.perf_counter()
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    child = subprocess.Popen(words, cwd=folder, env=environ, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    if code := os.waitstatus_to_exitcode(status):
        raise ChildProcessError(f"data check ended with {code}")
    return {
        "wall_s": round(time.perf_counter() - begun, 1),
        "cpu_s": round(used.ru_utime + used.ru_stime, 1),
        "peak_mb": round(used.ru_maxrss / 1024),
    }


def measure(rows: int, clients: int) -> dict[str, Any]:
    """Both times."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), rows, clients)
        return {"rows": rows, "clients": clients, "first": check(Path(folder)), "again": check(Path(folder))}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; see the top of the file."""
    parser = parser_of(__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--clients", type=int, default=50)
    args = parser.parse_args(arguments)
    found = measure(args.rows, args.clients)
    for name in ("first", "again"):
        wall, cpu, peak = found[name].values()
        print(f"{name}: {wall:.1f} s, {cpu:.1f} s of processor time, at most {peak} MB in a process")
    write_figures(args.json, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
