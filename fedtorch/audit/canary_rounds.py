"""Rounds of a run with privacy in which every client is a canary: its draw, clip, sum, noise and step, no text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from fedtorch.checkpoint.store import Checkpoints
from fedtorch.comm.base import Communicator
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.job.forked_ranks import fork_ranks
from fedtorch.comm.local import LocalCommunicator
from fedtorch.config.schema import ClientsConfig, Config
from fedtorch.core.seeds import seed_for
from fedtorch.core.state_keys import CLIP
from fedtorch.privacy.adaptive import bit_noise, update_noise
from fedtorch.privacy.secure_sum.terms import LEAST_PARTIES
from fedtorch.privacy.settings import PrivacyConfig
from fedtorch.rounds.runner import Runner
from fedtorch.setup.bare_rounds import BareTask, bare_config
from fedtorch.setup.build import build

EMPTY = 1000
"""Directions in which no canary ever is: more numbers whose noise is looked at."""
TOO_LONG = 4.0
"""Canaries send so many times the clip, so that one which is not clipped is seen."""


class Directions(nn.Module):
    """One number for each direction."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(count))


def coins(count: int, seed: int) -> Tensor:
    """Which of so many canaries are in: a fair coin for each, shape (count,), bool."""
    generator = torch.Generator().manual_seed(seed_for(seed, "canaries"))
    return torch.randint(2, (count,), generator=generator).bool()


@dataclass(frozen=True)
class CanaryTask(BareTask):
    """Each client is a canary in a direction of its own, or sends 0: it is left out."""

    seed: int = 0
    """of the coins"""
    length: float = 1.0
    """of what a canary sends"""

    @property
    def is_in(self) -> Tensor:
        """A fair coin for each, shape (clients,), bool."""
        return coins(self.clients, self.seed)

    def load(self, client: str, split: str) -> Sequence[Any]:
        """Its direction, and how far it goes there."""
        place = int(client.removeprefix("c"))
        return [(place, self.length * float(self.is_in[place]))]

    def build_model(self, seed: int) -> nn.Module:
        """Zeros."""
        return Directions(self.clients + EMPTY)

    def collate(self, examples: Sequence[Any], train: bool) -> Any:
        """The row itself."""
        return examples

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, int]:
        """Linear, so that a step of SGD with rate 1 is the canary."""
        ((place, length),) = batch
        return model.get_parameter("w")[place] * length, 1


@dataclass(frozen=True)
class Canaried:
    """The releases of canary rounds."""

    presence: Tensor
    """shape (rounds, directions): along each direction, in units of the round's clip; see `canaries.judged`"""
    is_in: Tensor
    """shape (canaries,), bool: who was in"""
    noise: float
    """standard deviation that is promised for a number of `presence`; above the noise multiplier where a clip moves, or
    where more silos add noise than have to"""
    rate: float = 1.0
    """with which a canary that is in takes part in a round; of canary units"""


class _Watched(Runner):
    """A runner that keeps what each round released, in units of its clip.

    In one process every other round's noise is drawn ahead, as it is beside other ranks.
    """

    released: list[Tensor]

    def _one_round(self) -> None:
        server, first = self.context.server, self.components.config.privacy.first_clip
        before, clip = server.weights.clone(), float(server.numbers.get(CLIP, first))
        if self.context.round % 2 and self.components.comm.size == 1:
            self.context.mechanism.expect(self.context.round, len(before))
        super()._one_round()
        self.released.append((before - self.context.server.weights).double() / clip)


def canary_rounds(*, canaries: int, rounds: int, rate: float, promise: PrivacyConfig, seed: int = 0) -> Canaried:
    """Run them as a run with this promise does, under a simulated key; see `canaries.judged`.

    With a secure sum they run on as many ranks as that takes, which are forked; else in this process.
    promise: its noise multiplier must be given. seed: of the key and of the coins. Nothing but a temporary folder is
    written.
    """
    assert promise.noise_multiplier is not None
    noise, expected = promise.noise_multiplier, rate * canaries
    if promise.adaptive is not None:
        noise = update_noise(noise, bit_noise(promise.adaptive, expected))
    promise = PrivacyConfig(
        "client",
        clip=promise.clip,
        noise_multiplier=promise.noise_multiplier,
        noise=promise.noise,
        delta=1e-9,
        simulate=True,
        seed=seed,
        secure_sum=promise.secure_sum,
    )
    task = CanaryTask(canaries, seed, TOO_LONG * promise.first_clip)
    with TemporaryDirectory() as folder:
        clients = ClientsConfig(sampling="poisson", rate=rate)
        config = bare_config(task, Path(folder), rounds, lr=1.0, clients=clients, privacy=promise)
        if promise.secure_sum is None:
            each = released(config, LocalCommunicator(_names(config)))
        else:
            each = fork_ranks(LEAST_PARTIES + 1, partial(one_of_several, config))[0]["released"]
    return Canaried(torch.tensor(each, dtype=torch.float64) * expected, task.is_in, noise)


def one_of_several(config: Config) -> dict[str, Any]:
    """Run the rounds on a rank of the job; gives the releases on the server's rank, and none elsewhere."""
    with DistributedCommunicator.join(_names(config), timeout_s=120) as comm:
        comm.preflight({})
        each = released(config, comm)
        return {"released": each if comm.is_server else []}


def released(config: Config, comm: Communicator) -> list[list[float]]:
    """Along each direction, of every round."""
    built = build(config, num_ranks=comm.size, rank=comm.rank)
    checkpoints = Checkpoints(config.folder / "checkpoints", keep=1)
    runner = _Watched(built.components(comm, checkpoints, stop=lambda: False))
    runner.released = []
    runner.run()
    return [each.tolist() for each in runner.released]


def _names(config: Config) -> tuple[str, ...]:
    return tuple(config.task.manifest())
