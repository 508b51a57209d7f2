"""How much slower are rounds whose parties sign, and rounds that silos check? Every figure measured in this run.

python benchmarks/checked_rounds.py [--rounds N] [--repeat N] [--steps N] [--json OUT]
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.table import Table

from benchmarks.command import console_of, parser_of, write_figures
from benchmarks.measured import NOT_TIMED, Timing
from benchmarks.processes import run_ranks
from benchmarks.workloads import RandomTokens, Workload, shrunk
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.checkpoint.store import Checkpoints
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.job.parties import Identity
from fedtorch.comm.options import Network
from fedtorch.config.schema import ClientConfig, Config, TrustConfig
from fedtorch.rounds.runner import Runner
from fedtorch.setup.build import build
from fedtorch.trust.keys import new_key, read_key
from fedtorch.trust.members import read_members

KINDS: dict[str, Any] = {"secret": None, "keys": None, "0.05": 0.05, "all": "all"}
"""What parties have, and what silos check."""
WORKLOAD = Workload(
    title="3 silos, GPT-2 of 10 M parameters, SGD",
    task=RandomTokens("gpt2", (8,) * 3, length=32, vocabulary=8000, width=320, layers=6, heads=5),
    client=ClientConfig(batch_size=8, optimizer="sgd", lr=0.01),
    per_round="all",
    rounds=5,
)


def config_of(workload: Workload, folder: Path, kind: str, steps: int) -> Config:
    """The run of a kind."""
    names = list(workload.task.manifest())
    pinned = {name: rank for rank, name in enumerate(names, start=1)}
    system = {"placement": "pinned", "pinned_to": "rank", "pinned": pinned, "shared_memory": "never"}
    config = workload.config(folder / kind, rounds=workload.rounds + NOT_TIMED, **system, exchange="send")
    client = replace(config.client, epochs=None, steps=steps)
    trust = TrustConfig(str(folder / "members.yaml"), verify=KINDS[kind]) if kind != "secret" else TrustConfig()
    return replace(config, client=client, trust=trust, algorithm=FedAvg(weights="equal"))


def make_parties(folder: Path, names: Sequence[str]) -> None:
    """Keys and the list of members."""
    lines = ["federation: benchmark", "members:"]
    for name in ("hub", *names):
        key = new_key(folder / f"{name}.key")
        lines.append(f"  {name}: {{role: {'server' if name == 'hub' else 'silo'}, key: {key.public.hex()}}}")
    (folder / "members.yaml").write_text("\n".join(lines) + "\n")


def time_rounds(workload: Workload, folder: Path, kind: str, steps: int) -> Timing:
    """Run the workload on this rank; its timing."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    built = build(config_of(workload, folder, kind, steps), num_ranks=size, rank=rank)
    proof: str | Identity = "the secret of all ranks"
    if kind != "secret":
        parties = {0: "hub", **{at: name for name, at in built.config.system.pinned.items()}}
        key = read_key(folder / f"{parties[rank]}.key")
        proof = Identity(key, read_members(folder / "members.yaml"), parties)
    apart = Network(shares_memory=False)
    ends = [(time.perf_counter(), time.process_time())]
    with DistributedCommunicator.join(built.names, 120, "send", network=apart, secret=proof) as comm:
        comm.preflight(built.facts())
        if kind != "secret":
            comm.begin_checks(has_records=KINDS[kind] is not None, has_tags=KINDS[kind] is not None)
        checkpoints = Checkpoints(built.config.folder / "checkpoints", keep=1)
        runner = Runner(built.components(comm, checkpoints, stop=lambda: False))
        one_round = runner._one_round

        def timed() -> None:
            one_round()
            ends.append((time.perf_counter(), time.process_time()))

        runner._one_round = timed  # type: ignore[method-assign]
        runner.run()
    took = [(end[0] - start[0], end[1] - start[1]) for start, end in pairwise(ends)][2 : 2 + workload.rounds]
    return Timing([wall for wall, _ in took], [cpu for _, cpu in took])


def measure(workload: Workload, repeat: int, steps: int) -> list[dict[str, Any]]:
    """Runs of all kinds in turn; of each its seconds in a round, those of the processor, and both over the first's."""
    names = list(workload.task.manifest())
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    for _ in range(repeat):
        for kind in KINDS:
            folder = Path(tempfile.mkdtemp(prefix="fedtorch-checked-"))
            try:
                make_parties(folder, names)
                ended = run_ranks(partial(time_rounds, workload, folder, kind, steps), len(names) + 1)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            rounds = len(ended[0].result.round_s)
            cpu = sum(sum(end.result.cpu_s) for end in ended) / rounds
            found[kind].append((median(ended[0].result.round_s), cpu))
    first, records = found["secret"], list[dict[str, Any]]()
    for kind, pairs in found.items():
        record: dict[str, Any] = {"kind": kind, "steps": steps, "runs": len(pairs)}
        for place, name in enumerate(("s", "cpu_s")):
            ratios = sorted(pair[place] / base[place] for pair, base in zip(pairs, first, strict=True))
            record |= {name: median(pair[place] for pair in pairs), f"{name}_ratio": median(ratios)}
            record[f"{name}_range"] = [ratios[0], ratios[-1]]
        records.append(record)
    return records


def table_of(title: str, records: Sequence[dict[str, Any]]) -> Table:
    """A row for each kind."""
    table = Table(title=f"{title}: a round beside one with a secret", title_justify="left")
    for head in ("parties have, silos check", "s", "ratio (range)", "CPU s of all", "ratio (range)"):
        table.add_column(head, justify="left" if head.startswith("parties") else "right")
    for record in records:
        cells = [record["kind"]]
        for name in ("s", "cpu_s"):
            low, high = record[f"{name}_range"]
            cells += [f"{record[name]:.3f}", f"{record[f'{name}_ratio']:.3f} ({low:.2f}-{high:.2f})"]
        table.add_row(*cells)
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; see the top of the file."""
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=WORKLOAD.rounds, help="timed rounds in each run")
    parser.add_argument("--repeat", type=int, default=5, help="runs of each kind")
    parser.add_argument("--steps", type=int, default=2, help="of a client in a round, so that training takes as long")
    parser.add_argument("--tiny", action="store_true", help="shrink models and data: does it run? not for timing")
    args = parser.parse_args(arguments)
    workload = replace(shrunk(WORKLOAD) if args.tiny else WORKLOAD, rounds=args.rounds)
    records = measure(workload, args.repeat, args.steps)
    console_of(120).print(table_of(workload.title, records))
    write_figures(args.json, records)
    return 0


if __name__ == "__main__":
    sys.exit(main())
