"""Measure what saves inside a round cost: seconds with and without them in turns, in one process.

python benchmarks/step_saves.py [--width N] [--layers N] [--steps N] [--every N] [--repeat N] [--lose S] [--json OUT]

A client of a GPT-2 trains `steps` steps of AdamW, with a save after every `every` of them and at its end, and without,
in turns. The last line says what that is where saves come only as often as a kill may lose `lose` seconds of work: the
longer a step takes, the rarer a save has to be.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from rich.table import Table

from benchmarks.command import console_of, parser_of, write_figures
from benchmarks.workloads import RandomTokens, Workload
from fedtorch.checkpoint.store import Checkpoints
from fedtorch.comm.local import LocalCommunicator
from fedtorch.config.schema import ClientConfig
from fedtorch.rounds.runner import Runner
from fedtorch.setup.build import build


def seconds_of(workload: Workload, every_steps: int | None) -> tuple[float, int]:
    """Seconds of a round's training in a fresh runner, and the model's numbers."""
    with tempfile.TemporaryDirectory() as folder:
        config = workload.config(Path(folder), rounds=1)
        config = replace(config, checkpoint=replace(config.checkpoint, every_steps=every_steps))
        built = build(config, num_ranks=1, rank=0)
        comm, kept = (
            LocalCommunicator(tuple(workload.task.manifest())),
            Checkpoints(config.folder / "checkpoints", keep=1),
        )
        components = built.components(comm, kept, stop=lambda: False)
        runner, spent = Runner(components), []
        train = runner.trainer.train_cohort

        def timed() -> Any:
            started = time.perf_counter()
            found = train()
            spent.append(time.perf_counter() - started)
            return found

        runner.trainer.train_cohort = timed  # type: ignore[method-assign]
        runner.run()
        return spent[0], components.engine.shared.size


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    for name, value in (("width", 512), ("layers", 4), ("steps", 12), ("every", 4), ("repeat", 5), ("lose", 300)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = RandomTokens("gpt2", (2 * options.steps,), 64, 4000, options.width, options.layers)
    client = ClientConfig(optimizer="adamw", lr=1e-4, batch_size=2, steps=options.steps, epochs=None)
    workload = Workload("long round", rows, client, "all", 1)
    seconds_of(workload, options.every)  # memory is touched for the first time
    pairs = [(seconds_of(workload, None), seconds_of(workload, options.every)) for _ in range(options.repeat)]
    plain = median(without[0] for without, _ in pairs)
    ratio = median(saving[0] / without[0] for without, saving in pairs)
    saves = -(-options.steps // options.every)
    step, save = plain / options.steps, (ratio - 1) * plain / saves
    rare = max(1, int(options.lose / step))
    found = {"numbers": pairs[0][0][1], "step_s": step, "save_s": save, "every_steps": options.every, "ratio": ratio}
    found |= {"rare_steps": rare, "rare_ratio": 1 + save / (rare * step)}
    table = Table("numbers", "s a step", "s a save", f"every {options.every} steps", f"every {rare} ({options.lose} s)")
    cells = [f"{found['numbers']:,}", f"{step:.2f}", f"{save:.2f}", f"{ratio:.3f}", f"{found['rare_ratio']:.4f}"]
    table.add_row(*cells)
    console_of(100).print(table)
    write_figures(options.json, found)


if __name__ == "__main__":
    main()
