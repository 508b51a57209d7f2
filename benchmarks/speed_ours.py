"""The rounds without any system (`plain`) and through fedtorch: `torchrun speed_ours.py WAY WORKLOAD ROUNDS FINAL`.

These two draw who takes part and the batches themselves; `plan_of` writes down what they draw, for the peers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

from benchmarks import measured
from benchmarks.speed_plan import Plan, Spec, Turn, tell_round
from benchmarks.workloads import WORKLOADS, Workload, shrunk
from fedtorch.config.schema import CheckpointConfig
from fedtorch.core.client import Client
from fedtorch.core.mechanism import RoundFacts
from fedtorch.core.sampling import Uniform, cohort
from fedtorch.core.seeds import seed_for
from fedtorch.train.batches import Batching

KEEPS = {"keep_freed_mb": 1024}
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "plain-alone": {},
    "plain-keeping": KEEPS,
    "fedtorch": {"server_works": False},
    "fedtorch-keeping": {"server_works": False, **KEEPS},
    "fedtorch-working": {"server_works": True},
    "fedtorch-working-keeping": {"server_works": True, **KEEPS},
    "fedtorch-user": {"server_works": False, "kept": CheckpointConfig()},
    "fedtorch-working-user": {"server_works": True, "kept": CheckpointConfig()},
}
"""way -> keys of the runner's `system`, of which the plain loop knows `keep_freed_mb`; `kept`: also checkpoints by the
package's defaults, records and TensorBoard, as a user's run has them"""
WITHOUT = {"fedtorch-user": "fedtorch", "fedtorch-working-user": "fedtorch-working"}
"""way that keeps what a user's run does -> the same that keeps nothing"""


def workload_of(letter: str, rounds: int, tiny: bool) -> Workload:
    """The workload with `rounds` timed rounds."""
    whole = WORKLOADS[letter]
    return replace(shrunk(whole) if tiny else whole, rounds=rounds)


def plan_of(workload: Workload) -> Plan:
    """What the plain loop and the runner draw in all rounds, those that are not timed as well."""
    task, hp = workload.task, workload.client
    spec = Spec(
        task.family, task.vocabulary, task.width, task.layers, task.heads, task.length, hp.optimizer, hp.lr,
        hp.schedule == "linear",
    )  # fmt: skip
    batching = Batching(hp.batch_size)
    clients = [Client(name, index, sizes) for index, (name, sizes) in enumerate(task.manifest().items())]
    count = len(clients) if workload.per_round == "all" else workload.per_round
    rounds = []
    for number in range(workload.rounds + measured.NOT_TIMED):
        turns = []
        for client, _ in cohort(clients, count, Uniform(), seed=0, round=number):
            steps = batching.epochs(
                client.sizes["train"], first=number, count=1, seed=seed_for(0, "train"), client=client.name
            )
            batches = [step.micro_batches[0] for step in steps]
            turns.append(Turn(client.name, seed_for(0, "train/dropout", client.name, number), batches))
        rounds.append(turns)
    start = {name: value.detach() for name, value in task.plain_model(0).named_parameters()}
    trained = sorted({turn.client for turns in rounds for turn in turns})
    return Plan(spec, {name: torch.stack(list(task.load(name, "train"))) for name in trained}, start, rounds)


class Telling(measured.Watch):
    """Says on the first rank when a round is over."""

    def round(self, round: int, facts: RoundFacts) -> None:
        """A round has ended."""
        super().round(round, facts)
        if os.environ["RANK"] == "0":
            tell_round()


def main(arguments: Sequence[str]) -> None:
    """Train and write the final weights."""
    way, letter, rounds, final, *tiny = arguments
    torch.set_num_threads(1)
    workload = workload_of(letter, int(rounds), bool(tiny))
    if way.startswith("plain"):
        timing = measured.time_plain(workload, keep=True, watch_of=Telling, **WAYS[way])
    else:
        timing = measured.time_runner(workload, keep=True, watch_of=Telling, **WAYS[way])
    if os.environ["RANK"] == "0":
        assert timing.weights is not None
        np.save(final, timing.weights)


if __name__ == "__main__":
    main(sys.argv[1:])
