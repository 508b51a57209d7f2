"""The bare limit: the same federated averaging as a plain PyTorch loop, in one process or in two that share memory.

The same examples in the same batches and order, the same dropout seeds, optimiser and schedule as the runner's. No
reports, checks, failures, states or heartbeats; the average is a plain fp32 sum. Nothing is built per client either.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from transformers.optimization import get_scheduler

from benchmarks.workloads import Workload
from fedtorch.core.client import Client
from fedtorch.core.sampling import Uniform, cohort
from fedtorch.core.seeds import seed_for
from fedtorch.train.batches import Batching

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": lambda parameters, lr: torch.optim.AdamW(parameters, lr=lr, weight_decay=0.0, fused=True),
    "sgd": lambda parameters, lr: torch.optim.SGD(parameters, lr=lr),
}


@dataclass
class Share:
    """This process's place among `size`; with two, the default process group joins them, on one machine."""

    rank: int = 0
    size: int = 1

    def vectors(self, count: int, size: int) -> list[Tensor]:
        """`count` vectors of fp32 zeros, shape (size,); with two processes both see the same memory."""
        if self.size == 1:
            return [torch.zeros(size) for _ in range(count)]
        folder = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())
        path = folder / f"fedtorch-plain-{os.environ['MASTER_PORT']}"
        if self.rank == 0:
            torch.from_file(str(path), shared=True, size=count * size)  # makes it
        dist.barrier()
        whole = torch.from_file(str(path), shared=True, size=count * size)
        dist.barrier()
        if self.rank == 0:
            path.unlink()
        return list(whole.split(size))

    def part(self, vector: Tensor) -> Tensor:
        """This process's of its equal parts."""
        return vector.tensor_split(self.size)[self.rank]

    def meet(self) -> None:
        """What the other wrote before is seen after."""
        if self.size > 1:
            dist.barrier()


@torch.no_grad()
def _views(flat: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    parts = flat.split([parameter.numel() for parameter in parameters])
    return [part.view_as(parameter) for part, parameter in zip(parts, parameters, strict=True)]


def best_half(steps: Sequence[int]) -> list[int]:
    """The places of one half of the clients (the first is in it), such that the larger half is as small as can be."""
    places = range(1, len(steps))
    halves = ([0, *rest] for count in range(len(steps)) for rest in itertools.combinations(places, count))
    total = sum(steps)
    return min(halves, key=lambda half: abs(total - 2 * sum(steps[place] for place in half)))


def plain_rounds(workload: Workload, rounds: int, share: Share, on_round: Callable[[], None]) -> Tensor:
    """Train `rounds` rounds, calling `on_round` after each, and return the final weights, flat."""
    task, hp, seed = workload.task, workload.client, 0
    model = task.plain_model(seed)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = OPTIMIZERS[hp.optimizer](parameters, hp.lr)
    start = torch.cat([parameter.detach().view(-1) for parameter in parameters])
    weights, *averages = share.vectors(1 + share.size, len(start))
    share.part(weights).copy_(share.part(start))
    average = averages[share.rank]
    share.meet()
    batching = Batching(hp.batch_size)
    clients = [Client(name, index, sizes) for index, (name, sizes) in enumerate(task.manifest().items())]
    per_round = len(clients) if workload.per_round == "all" else workload.per_round
    model.train()
    for number in range(rounds):
        drawn = [client for client, _ in cohort(clients, per_round, Uniform(), seed=seed, round=number)]
        total = sum(client.sizes["train"] for client in drawn)
        first = set(best_half([batching.steps_per_epoch(client.sizes["train"]) for client in drawn]))
        average.zero_()
        sums = _views(average, parameters)
        for place, client in enumerate(drawn):
            if share.size == 2 and (place in first) != (share.rank == 0):
                continue
            examples = task.load(client.name, "train")
            plans = list(
                batching.epochs(len(examples), first=number, count=1, seed=seed_for(seed, "train"), client=client.name)
            )
            with torch.no_grad():
                torch._foreach_copy_(parameters, _views(weights, parameters))
            for state in optimizer.state.values():
                for value in state.values():
                    if value is not None:
                        value.zero_()
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] = hp.lr
            schedule = get_scheduler(hp.schedule, optimizer, num_warmup_steps=0, num_training_steps=len(plans))
            torch.manual_seed(seed_for(seed, "train/dropout", client.name, number))
            for plan in plans:
                batch = task.collate([examples[i] for i in plan.micro_batches[0]], True)
                loss, count = task.loss(model, batch)
                (loss / count).backward()
                optimizer.step()
                schedule.step()
                optimizer.zero_grad(set_to_none=True)
            with torch.no_grad():
                torch._foreach_add_(sums, parameters, alpha=len(examples) / total)
        if share.size == 1:
            weights, average = average, weights
        else:
            share.meet()
            torch.add(*map(share.part, averages), out=share.part(weights))
            share.meet()
        on_round()
    return weights.clone()
