"""Measures what a round costs whatever is sent: whole rounds of light ranks, whose model has a few numbers.

python -m fedtorch.planning.light_rounds       one JSON object on standard output
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from fedtorch.checkpoint.store import Checkpoints
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.job.forked_ranks import fork_ranks
from fedtorch.config.schema import Config, SystemConfig
from fedtorch.planning.cost_model import Constants, Site, seconds
from fedtorch.planning.probe import SOCKETS
from fedtorch.planning.round_work import RoundWork
from fedtorch.planning.step_time import training_seconds
from fedtorch.rounds.runner import Runner
from fedtorch.setup.bare_rounds import BareTask, bare_config
from fedtorch.setup.build import build

MANY = 16
"""Light ranks, whose rounds show what each further rank adds."""
FEW_CLIENTS, MANY_CLIENTS = 2, 34
"""Of a worker; the difference shows what each of them adds."""
NUMBERS = 64
"""Of the model."""
_BUSY_NUMBERS, _BUSY_PASSES = 1 << 23, 16  # 32 MB: some 20 ms
_ROUNDS, _NOT_TIMED = 12, 3  # the first ones connect, and touch memory for the first time


@dataclass(frozen=True)
class LightTask(BareTask):
    """A model whose step takes next to no time."""

    def load(self, client: str, split: str) -> Sequence[Tensor]:
        """One row, shape (NUMBERS,)."""
        return [torch.ones(NUMBERS)]

    def build_model(self, seed: int) -> nn.Module:
        """One layer without a bias, which begins at 0."""
        layer = nn.Linear(NUMBERS, 1, bias=False)
        nn.init.zeros_(layer.weight)
        return layer

    def collate(self, examples: Sequence[Tensor], train: bool) -> Tensor:
        """Shape (examples, NUMBERS)."""
        return torch.stack(list(examples))

    def loss(self, model: nn.Module, batch: Tensor) -> tuple[Tensor, int]:
        """The squared distance from 1."""
        return (model(batch) - 1).square().sum(), len(batch)


@dataclass(frozen=True)
class LightRounds:
    """Measurements of light rounds."""

    few: Sequence[Mapping[str, Any]]
    """What `one_rank` says of two ranks, the other of which trains `FEW_CLIENTS`."""
    more: Sequence[Mapping[str, Any]]
    """Of two ranks and `MANY_CLIENTS`."""
    many: Sequence[Mapping[str, Any]]
    """Of `MANY` ranks and `FEW_CLIENTS` of each but the server."""
    step_s: float
    """What a client's one step takes, by itself, with what comes before it."""


class _Clock:
    """In place of a tracker: when each round ended, on the clock and in seconds of this process.

    Where it keeps a worker busy, that is before the first client of each round, and in none of the figures: the server
    waits meanwhile as it does for real clients, and what the worker does then finds nothing in its caches.
    """

    def __init__(self, keeps_busy: bool) -> None:
        self.ends: list[tuple[float, float]] = []
        self._memory = torch.ones(_BUSY_NUMBERS if keeps_busy else 0)
        self._paused = [0.0, 0.0]
        self._is_first = True

    def round(self, *_: Any, **__: Any) -> None:
        """A round has ended."""
        self.ends.append((time.perf_counter() - self._paused[0], time.process_time() - self._paused[1]))
        self._is_first = True

    def working(self, text: str) -> None:
        """Called before every client and in every step."""
        if self._is_first and len(self._memory):
            self._is_first = False
            wall, busy = time.perf_counter(), time.process_time()
            for _ in range(_BUSY_PASSES):
                self._memory.mul_(1.0)
            self._paused[0] += time.perf_counter() - wall
            self._paused[1] += time.process_time() - busy

    def end(self, *_: Any) -> None:
        """Do nothing: what follows the last round is not timed."""

    def usual(self) -> tuple[float, float]:
        """(seconds on the clock, processor seconds) of a round, each the median of those that count."""
        ends = self.ends[_NOT_TIMED:]
        each = [(after[0] - before[0], after[1] - before[1]) for before, after in zip(ends, ends[1:], strict=False)]
        return median(wall for wall, _ in each), median(busy for _, busy in each)


def config(folder: Path, clients: int) -> Config:
    """Config of rounds in which so many clients take a step each; rank 0 trains none of them."""
    system = SystemConfig(device="cpu", server_works=False, shared_memory="never")
    return bare_config(LightTask(clients), folder, _ROUNDS + _NOT_TIMED, lr=1e-3, system=system)


def one_rank(folder: Path, clients: int) -> dict[str, Any]:
    """This rank's seconds of a round; all ranks of the job call it alike. Of two ranks one waits for the other."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    built, clock = build(config(folder, clients), num_ranks=size, rank=rank), _Clock(size == 2)
    with DistributedCommunicator.join(built.names, timeout_s=120, network=SOCKETS) as comm:
        comm.preflight(built.facts())
        tracker: Any = clock
        checkpoints = Checkpoints(folder / "checkpoints", keep=1)
        Runner(built.components(comm, checkpoints, stop=lambda: False, tracker=tracker)).run()
    return {"rank": rank, "round": clock.usual()}


def measure(ranks: int, clients: int) -> list[dict[str, Any]]:
    """Return what `one_rank` says on each rank, where every one but the server trains so many clients."""
    with tempfile.TemporaryDirectory() as folder:
        return fork_ranks(ranks, partial(one_rank, Path(folder), clients * (ranks - 1)))


def with_rounds(constants: Constants, found: LightRounds) -> Constants:
    """The constants, those of rounds being what light rounds take longer than the others say."""
    (few, few_busy), (more, more_busy), (many, _) = (each[1]["round"] for each in (found.few, found.more, found.many))
    each_s, busy_s = ((b - a) / (MANY_CLIENTS - FEW_CLIENTS) for a, b in ((few, more), (few_busy, more_busy)))
    client_round_s = max(0.0, busy_s - found.step_s)
    known = replace(constants, client_round_s=client_round_s, report_s=max(0.0, each_s - found.step_s - client_round_s))
    known = replace(known, round_s=0.0, round_rank_s=0.0)
    known = replace(known, round_s=max(0.0, few - _predicted(known, 2, found.step_s)))
    further = (many - _predicted(known, MANY, found.step_s)) / (MANY - 2)
    return replace(known, round_rank_s=max(0.0, further))


def _predicted(constants: Constants, ranks: int, step_s: float) -> float:
    """Seconds of a light round on so many ranks of this machine."""
    work = RoundWork(NUMBERS, (0, *[FEW_CLIENTS] * (ranks - 1)), (0.0, *[FEW_CLIENTS * step_s] * (ranks - 1)))
    return seconds(work, Site(ranks, ranks, math.inf, constants.cores), constants).total


def main() -> int:
    """Print what was measured; the top of the file has the usage."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        step_s = sum(training_seconds(build(config(Path(folder), 1), num_ranks=1, rank=0)))
    few, more = measure(2, FEW_CLIENTS), measure(2, MANY_CLIENTS)
    print(json.dumps(asdict(LightRounds(few, more, measure(MANY, FEW_CLIENTS), step_s))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
