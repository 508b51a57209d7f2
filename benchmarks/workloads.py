"""What is timed: three federations on random tokens, each a task, a config, and nothing that has to be downloaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from benchmarks.token_models import Family, loss_of, model_of
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.config.schema import (
    CheckpointConfig,
    ClientConfig,
    ClientsConfig,
    Config,
    EvalConfig,
    RunConfig,
    SystemConfig,
)
from fedtorch.core.seeds import generator_for, seed_for
from fedtorch.models.adapters.lora import add_adapter
from fedtorch.models.adapters.settings import Adapter
from fedtorch.tasks.base import Scores, Task

NEVER = 1_000_000  # rounds between checkpoints


@dataclass(frozen=True)
class RandomTokens(Task):
    """Random token rows of one length, a different set for every client, and a model of one of three families."""

    family: Family
    sizes: tuple[int, ...]
    """training examples per client; there is no other split, so nothing is ever evaluated"""
    length: int
    """tokens of a row"""
    vocabulary: int
    width: int
    """of the model; its feed-forward layers are four times as wide"""
    layers: int
    heads: int = 4
    rank: int = 0
    """of LoRA beside its layers, by peft's choice of them; 0: all weights are trained"""

    def manifest(self) -> Mapping[str, Mapping[str, int]]:
        """`c0`, `c1`, ... with their training examples."""
        return self._manifest

    @cached_property
    def _manifest(self) -> dict[str, dict[str, int]]:
        return {f"c{place}": {"train": size} for place, size in enumerate(self.sizes)}

    def check(self, client: str) -> None:
        """There is no file to check."""

    def load(self, client: str, split: str) -> Sequence[Tensor]:
        """Rows of tokens, shape (length,)."""
        size = self._manifest[client][split]
        rows = torch.randint(1, self.vocabulary, (size, self.length), generator=generator_for(0, "tokens", client))
        return list(rows)

    def build_model(self, seed: int) -> nn.Module:
        """A model of the family with random weights, and the adapter."""
        model = self._whole(seed)
        if self.rank:
            add_adapter(model, Adapter(r=self.rank), seed)
        return model

    def plain_model(self, seed: int) -> nn.Module:
        """The same without our code: peft's own wrapper, from the same seeds."""
        model = self._whole(seed)
        if not self.rank:
            return model
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(seed_for(seed, "adapter"))
        # GPT-2's layers hold their matrices transposed
        options = LoraConfig(r=self.rank, lora_alpha=16, fan_in_fan_out=self.family == "gpt2")
        return get_peft_model(model, options)

    def _whole(self, seed: int) -> Any:
        torch.manual_seed(seed)
        return model_of(self.family, self.vocabulary, self.width, self.layers, self.heads, self.length)

    def collate(self, examples: Sequence[Tensor], train: bool) -> Tensor:
        """Shape (examples, length)."""
        return torch.stack(list(examples))

    def loss(self, model: nn.Module, batch: Tensor) -> tuple[Tensor, int]:
        """See `loss_of`."""
        return loss_of(self.family, model, batch)

    def predict(self, model: nn.Module, examples: Sequence[Any], batch_size: int) -> list[Any]:
        """Never called: no client has an evaluation split."""
        raise NotImplementedError

    def score(self, examples: Sequence[Any], predictions: Sequence[Any]) -> Scores:
        """Never called."""
        raise NotImplementedError


@dataclass(frozen=True)
class Workload:
    """A federation and how it trains."""

    title: str
    task: RandomTokens
    client: ClientConfig
    per_round: int | Literal["all"]
    rounds: int
    """how many are timed in one run"""

    def config(self, folder: Path, *, rounds: int, **system: Any) -> Config:
        """A config without evaluation, whose only checkpoint is the one after the last round."""
        return Config(
            run=RunConfig(name="benchmark", dir=str(folder)),
            rounds=rounds,
            task=self.task,
            algorithm=FedAvg(),
            client=self.client,
            clients=ClientsConfig(per_round=self.per_round),
            eval=EvalConfig(every=0),
            checkpoint=CheckpointConfig(every=NEVER),
            system=SystemConfig(**{"device": "cpu", "threads": 1, **system}),
        )


def _uneven(num_clients: int, smallest: int, largest: int) -> tuple[int, ...]:
    """Sizes between the two, most of them small, in no particular order."""
    draws = torch.rand(num_clients, generator=generator_for(0, "sizes")).double()
    return tuple((smallest * (largest / smallest) ** draws).round().long().tolist())


WORKLOADS = {
    "a": Workload(
        title="8 very unequal clients, T5 of 2.9 M parameters, AdamW",
        task=RandomTokens("t5", (4, 40, 16, 8, 24, 12, 8, 32), length=32, vocabulary=4096, width=192, layers=2),
        client=ClientConfig(batch_size=8, schedule="linear"),
        per_round="all",
        rounds=3,
    ),
    "b": Workload(
        title="1000 clients, 10 per round, BERT of 1.1 M parameters, AdamW",
        task=RandomTokens("bert", _uneven(1000, 8, 64), length=32, vocabulary=2000, width=128, layers=4),
        client=ClientConfig(batch_size=16),
        per_round=10,
        rounds=5,
    ),
    "c": Workload(
        title="4 clients, GPT-2 of 60 M parameters, one step of SGD on one short row",
        task=RandomTokens("gpt2", (1, 1, 1, 1), length=16, vocabulary=32_000, width=640, layers=8, heads=10),
        client=ClientConfig(optimizer="sgd", lr=0.01, batch_size=1),
        per_round="all",
        rounds=3,
    ),
}


def shrunk(workload: Workload) -> Workload:
    """The same kind of federation, small enough for a test."""
    task = replace(workload.task, sizes=(3, 9, 2, 5), length=8, vocabulary=32, width=16, layers=1, heads=2)
    per_round = workload.per_round if workload.per_round == "all" else 3
    return replace(workload, task=task, client=replace(workload.client, batch_size=4), per_round=per_round, rounds=2)


def hosting(num_clients: int) -> Workload:
    """Workload (b) with `num_clients` clients, all of which train in every round."""
    task = replace(WORKLOADS["b"].task, sizes=(4,) * num_clients)
    return replace(WORKLOADS["b"], title=f"{num_clients} clients", task=task, per_round="all", rounds=2)
