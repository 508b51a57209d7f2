"""How much slower are rounds whose parties sign, and rounds that silos check? Every figure measured in this run.

python benchmarks/checked_rounds.py [--mbit N] [--rounds N] [--repeat N] [--steps N] [--json OUT]

By default all parties talk over loopback. With --mbit each has a network of its own, with a wire of so many Mbit/s in
each direction to one switch (namespaces; Linux, root). They share this machine's processors in both, so work that
parties do side by side takes longer than on hosts of their own.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.table import Table

from benchmarks.command import console_of, parser_of, write_figures
from benchmarks.measured import BEFORE, NOT_TIMED, Timing
from benchmarks.processes import run_ranks
from benchmarks.wires import Switch, enter_network, why_not
from benchmarks.workloads import RandomTokens, Workload, shrunk
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.checkpoint.store import Checkpoints
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.job.parties import Identity
from fedtorch.comm.options import Network
from fedtorch.config.schema import ClientConfig, Config, TrustConfig
from fedtorch.core.update import Report
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


def enter_host(hosts: Sequence[tuple[int, str]]) -> None:
    """Go on in this rank's own network. hosts: of each rank a process that is there, and its address."""
    enter_network(hosts[int(os.environ["RANK"])][0])
    alone = {"MASTER_ADDR": hosts[0][1], "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    os.environ.update(alone)


def time_rounds(
    workload: Workload, folder: Path, kind: str, steps: int, hosts: Sequence[tuple[int, str]] = ()
) -> Timing:
    """Run the workload on this rank; its timing, and how long its clients train in a round. hosts: of `enter_host`."""
    if hosts:
        enter_host(hosts)
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
        one_round, train, trained = runner._one_round, runner.trainer.train_cohort, list[float]()

        def timed() -> None:
            one_round()
            ends.append((time.perf_counter(), time.process_time()))

        def train_timed() -> list[Report]:
            begun = time.perf_counter()
            reports = train()
            trained.append(time.perf_counter() - begun)
            return reports

        runner._one_round, runner.trainer.train_cohort = timed, train_timed  # type: ignore[method-assign]
        runner.run()
    counted = slice(BEFORE, BEFORE + workload.rounds)
    took = [(end[0] - start[0], end[1] - start[1]) for start, end in pairwise(ends)][counted]
    return Timing([wall for wall, _ in took], [cpu for _, cpu in took], {"train": median(trained[counted])})


def run_kind(workload: Workload, kind: str, steps: int, mbit: float | None) -> list[Timing]:
    """A run of all parties; the timing of each. mbit: None: over loopback."""
    names = list(workload.task.manifest())
    folder = Path(tempfile.mkdtemp(prefix="fedtorch-checked-"))
    try:
        make_parties(folder, names)
        with nullcontext() if mbit is None else Switch(len(names) + 1, mbit / 1e3) as switch:
            hosts = [] if switch is None else [(machine.pid, machine.address) for machine in switch.machines]
            ended = run_ranks(partial(time_rounds, workload, folder, kind, steps, hosts), len(names) + 1)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return [end.result for end in ended]


def measure(workload: Workload, repeat: int, steps: int, mbit: float | None = None) -> list[dict[str, Any]]:
    """Runs of all kinds in turn; of each its seconds in a round, those of the processor, and both over the first's."""
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    train, server, silo = ({kind: list[float]() for kind in KINDS} for _ in range(3))
    for _ in range(repeat):
        for kind in KINDS:
            hub, *silos = run_kind(workload, kind, steps, mbit)
            train[kind].append(median(each.phases_s["train"] for each in silos))
            cpu_s = [sum(each.cpu_s) / len(each.cpu_s) for each in (hub, *silos)]
            server[kind].append(cpu_s[0])
            silo[kind].append(median(cpu_s[1:]))
            found[kind].append((median(hub.round_s), sum(cpu_s)))
    first, records = found["secret"], list[dict[str, Any]]()
    for kind, pairs in found.items():
        record: dict[str, Any] = {"kind": kind, "steps": steps, "mbit": mbit, "runs": len(pairs)}
        record |= {"train_s": median(train[kind]), "server_cpu_s": median(server[kind])}
        record["silo_cpu_s"] = median(silo[kind])
        for place, name in enumerate(("s", "cpu_s")):
            ratios = sorted(pair[place] / base[place] for pair, base in zip(pairs, first, strict=True))
            record |= {name: median(pair[place] for pair in pairs), f"{name}_ratio": median(ratios)}
            record[f"{name}_range"] = [ratios[0], ratios[-1]]
        records.append(record)
    return records


def table_of(title: str, records: Sequence[dict[str, Any]]) -> Table:
    """A row for each kind."""
    table = Table(title=f"{title}: a round beside one with a secret", title_justify="left")
    heads = ("parties have, silos check", "s", "of it training", "ratio (range)")
    for head in (*heads, "CPU s of all", "of the server", "of a silo", "ratio (range)"):
        table.add_column(head, justify="left" if head.startswith("parties") else "right")
    for record in records:
        cells = [record["kind"]]
        for name, parts in (("s", ("train_s",)), ("cpu_s", ("server_cpu_s", "silo_cpu_s"))):
            low, high = record[f"{name}_range"]
            cells += [f"{record[each]:.3f}" for each in (name, *parts)]
            cells.append(f"{record[f'{name}_ratio']:.3f} ({low:.2f}-{high:.2f})")
        table.add_row(*cells)
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; see the top of the file."""
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=WORKLOAD.rounds, help="timed rounds in each run")
    parser.add_argument("--repeat", type=int, default=5, help="runs of each kind")
    parser.add_argument("--steps", type=int, default=2, help="of a client in a round, so that training takes as long")
    parser.add_argument("--mbit", type=float, help="of each party's wire in each direction; none: over loopback")
    parser.add_argument("--tiny", action="store_true", help="shrink models and data: does it run? not for timing")
    args = parser.parse_args(arguments)
    workload = replace(shrunk(WORKLOAD) if args.tiny else WORKLOAD, rounds=args.rounds)
    if args.mbit is not None and not 1 <= args.mbit <= 1e6:
        parser.error(f"--mbit is {args.mbit:g}; expected a number of Mbit/s from 1 to 1000000")
    if args.mbit is not None and (reason := why_not()):
        parser.error(f"--mbit: {reason}")
    records = measure(workload, args.repeat, args.steps, args.mbit)
    console_of(160).print(table_of(workload.title, records))
    write_figures(args.json, records)
    return 0


if __name__ == "__main__":
    sys.exit(main())
