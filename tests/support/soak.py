"""A long run with a random fault every ten rounds: the same bits, and no growth of memory or open files.

PYTHONPATH=.:tests/support python tests/support/soak.py --rounds 1000
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor import PHASES, supervise, toy_config
from torch import Tensor

from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.core.server import ServerState
from fedtorch.core.update import Report
from fedtorch.train.job import ClientJob

EVERY = 10  # rounds between two faults
ENDING = ("kill", "kill", "kill", "term", "term", "stop")
PASSING = ("nan", "explode", "raise", "oom", "sleep", "disk")
SETTLED = 20  # rounds after which a process should grow no more
MAX_GROWTH_KB = 8 * 1024  # of resident memory; the allocator's own noise is some 1 MB


@dataclass(frozen=True)
class Sampled(FedAvg):
    """FedAvg that notes this process's memory and open files in every round."""

    folder: str = ""

    def client_update(self, job: ClientJob) -> Report:
        self.sample()
        return super().client_update(job)

    def server_update(self, server: ServerState, grad: Tensor) -> None:
        self.sample()
        super().server_update(server, grad)

    def sample(self) -> None:
        """One line: resident kB, open files."""
        name = f"rank{os.environ.get('RANK', 0)}.attempt{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}.txt"
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        resident = pages * os.sysconf("SC_PAGE_SIZE") // 1024
        with suppress(OSError), (Path(self.folder) / name).open("a") as file:  # the disk may be full on purpose
            file.write(f"{resident} {len(os.listdir('/proc/self/fd'))}\n")


def draw(rounds: int, seed: int) -> tuple[list[str], list[str], Counter[str]]:
    """(faults that change what a client sends, all faults, how often each kind); the first half may end processes."""
    rng, attempt = random.Random(seed), 0
    of_clients, others, kinds = [], [], Counter[str]()
    for round in range(EVERY, rounds - 2, EVERY):
        ends = round < rounds // 2 and rng.random() < 0.6
        kind = rng.choice(ENDING if ends else PASSING)
        kinds[kind] += 1
        rank, client = rng.randrange(3), rng.choice("abcd")
        if ends:
            phase = rng.choice(PHASES)
            done = 0 if phase in ("init", "preflight") else round
            others.append(f"{kind}:phase={phase},rank={rank},round={done},attempt={attempt}")
            attempt += 1
        elif kind == "disk":
            others.append(f"diskfull:phase=checkpoint,rank={rank},round={round}")
            others.append(f"diskroom:phase=checkpoint,rank={rank},round={round + 1}")
        elif kind == "sleep":
            others.append(f"sleep:phase=train,client={client},round={round},seconds=0.3")
        else:
            phase = "update" if kind in ("nan", "explode") else "train"
            step = ",step=1" if phase == "train" else ""
            of_clients.append(f"{kind}:phase={phase},client={client},round={round}{step}")
    return of_clients, [*of_clients, *others], kinds


def soak(folder: Path, rounds: int, seed: int = 0) -> dict[str, Any]:
    """Run with all faults on three ranks, and with those of clients alone in one process; what was seen."""
    of_clients, faults, kinds = draw(rounds, seed)
    ending = sum(kinds[kind] for kind in set(ENDING))
    usage = folder / "usage"
    usage.mkdir(parents=True)
    sets = [f"rounds={rounds}", "clients.max_update_norm=1000", "system.timeout=30", "eval.every=5"]
    started = time.monotonic()
    algorithm = f'{{name: "soak:Sampled", folder: "{usage}"}}'
    config = toy_config(folder / "faulty", algorithm=algorithm)
    ended = supervise(
        config, faults=";".join(faults), sets=sets, max_restarts=2 * ending + 3, grace_s=12, timeout=60 + 5 * rounds
    )
    alone = supervise(
        toy_config(folder / "alone", algorithm=algorithm.replace(str(usage), str(folder))),
        1, faults=";".join(of_clients), sets=sets, max_restarts=0, timeout=60 + 5 * rounds,
    )  # fmt: skip
    return {
        "rounds": rounds,
        "faults": dict(kinds),
        "attempts": len(ended.codes),
        "code": ended.code,
        "same bits": not ended.code and ended.digest == alone.digest,
        **growth(usage),
        "seconds": round(time.monotonic() - started),
    }


def growth(usage: Path) -> dict[str, int]:
    """How much any process grew after its first SETTLED samples, and how many samples the longest one has."""
    grown, opened, longest = 0, 0, 0
    for path in usage.iterdir():
        samples = [tuple(map(int, line.split())) for line in path.read_text().splitlines()]
        early, late = samples[:SETTLED], samples[SETTLED:]
        if late:
            grown = max(grown, max(kb for kb, _ in late) - max(kb for kb, _ in early))
            opened = max(opened, max(files for _, files in late) - max(files for _, files in early))
        longest = max(longest, len(samples))
    return {"growth kB": grown, "growth of open files": opened, "longest process, samples": longest}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(soak(Path(folder), args.rounds, args.seed), indent=1))


if __name__ == "__main__":
    main()
