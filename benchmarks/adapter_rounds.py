"""Seconds and bytes of a round with an adapter: against all weights of the same model, and against peft in a bare loop.

python benchmarks/adapter_rounds.py [--rounds N] [--repeat N] [--json OUT] [--tiny]

Four like clients, GPT-2, LoRA of rank 8 (peft's choice of layers). The bare loop is `plain.py` over `get_peft_model`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

from benchmarks.command import console_of, parser_of, write_figures
from benchmarks.measured import Timing, time_plain, time_runner
from benchmarks.processes import run_ranks
from benchmarks.rounds import Case, measure_rounds
from benchmarks.workloads import RandomTokens, Workload, shrunk
from fedtorch.config.schema import ClientConfig

ADAPTER = Workload(
    title="4 like clients, LoRA of rank 8 beside a GPT-2 of 4.2 M parameters, AdamW",
    task=RandomTokens("gpt2", (16, 16, 16, 16), length=32, vocabulary=4000, width=256, layers=4, rank=8),
    client=ClientConfig(batch_size=8, lr=1e-3),
    per_round="all",
    rounds=4,
)
BARE, OURS, WHOLE = "peft in a bare loop", "fedtorch, adapter", "fedtorch, all weights"


def cases(workload: Workload) -> list[Case]:
    """In one process, and on a server with two workers; the bare loop on two."""
    whole = replace(workload, task=replace(workload.task, rank=0))
    return [
        Case(f"{BARE}, 1 process", 1),
        Case(f"{OURS}, 1 process", 1, f"{BARE}, 1 process", options={}),
        Case(f"{WHOLE}, 1 process", 1, f"{OURS}, 1 process", options={}, workload=whole),
        Case(f"{BARE}, 2 processes", 2),
        Case(f"{OURS}, server + 2", 3, f"{BARE}, 2 processes", options={}),
        Case(f"{WHOLE}, server + 2", 3, f"{OURS}, server + 2", options={}, workload=whole),
    ]


def weights_of(function: Callable[..., Timing], workload: Workload) -> np.ndarray:
    """Where it ends, flat, fp32."""
    weights = function(workload, keep=True).weights
    assert weights is not None
    return weights


def compare_weights(workload: Workload) -> dict[str, float]:
    """How far apart the bare loop and fedtorch end, relative to the way the weights went, and how many there are."""
    plain, ours = (
        torch.from_numpy(run_ranks(partial(weights_of, function, workload), 1)[0].result)
        for function in (time_plain, time_runner)
    )
    start = torch.cat([p.detach().view(-1) for p in workload.task.build_model(0).parameters() if p.requires_grad])
    return {"numbers": float(len(start)), "apart": float((plain - ours).norm() / (plain - start).norm())}


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure and print; the figures."""
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=ADAPTER.rounds, help="timed rounds in each run")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each case, interleaved (default 3)")
    parser.add_argument("--tiny", action="store_true", help="shrink model and data: does it run? not for timing")
    args = parser.parse_args(arguments)
    console = console_of(150)
    workload = replace(shrunk(ADAPTER) if args.tiny else ADAPTER, rounds=args.rounds)
    ends = compare_weights(workload)
    records = measure_rounds("adapter", workload, cases(workload), args.repeat, console)
    console.print(f"bare loop and fedtorch end {ends['apart']:.1e} of their way apart, {ends['numbers']:.0f} numbers")
    for record in records:
        moved = record["moved_bytes"][0]
        if "bytes_up" in moved:
            console.print(f"{record['case']}: {moved['bytes_up']:,.0f} bytes up and {moved['bytes_down']:,.0f} down a "
                          "round, of all clients")  # fmt: skip
    found = {"weights": ends, "cases": records}
    write_figures(args.json, found)
    return found


if __name__ == "__main__":
    main()
