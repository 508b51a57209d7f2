"""Clients trained by somebody else's trainer: one job, or a run in one process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from harness import make_config, make_runner
from own_rows import GPT2, completer, write_rows

from fedtorch.algorithms.base import Algorithm
from fedtorch.config.schema import Config, EvalConfig
from fedtorch.core.client import Client, ClientState
from fedtorch.rounds.runner import Runner
from fedtorch.tasks.causal_lm import CausalLM
from fedtorch.train.job import ClientJob
from fedtorch.train.outgoing import Outgoing
from fedtorch.train.settings import ClientConfig, TrainerConfig
from fedtorch.trainers.named import trainer_of

RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
CLIENTS = ("north", "south", "west")
DROPOUT = {**GPT2, "embd_pdrop": 0.1, "attn_pdrop": 0.1, "resid_pdrop": 0.1}
ARGS = {"per_device_train_batch_size": 2, "learning_rate": 1e-2}


def answers(size: int = 30) -> list[dict[str, Any]]:
    """Prompts with completions, in turn at the clients."""
    verbs, nouns = ("saw", "ate", "sold"), ("fish", "bread", "a boat", "the sea")
    return [
        {"prompt": f"who {verbs[i % 3]} {nouns[i % 4]}?", "completion": f" {nouns[i % 4]} {i}", "home": CLIENTS[i % 3]}
        for i in range(size)
    ]


def task_of(folder: Path, **changes: Any) -> CausalLM:
    """A decoder of a few hundred weights, with dropout."""
    return completer(write_rows(folder / "rows.jsonl", answers()), model=DROPOUT, **changes)


def config_of(folder: Path, trainer: TrainerConfig | str, algorithm: Algorithm | None = None, **changes: Any) -> Config:
    """Two rounds of three steps; `client` has further fields of that section."""
    client = {"steps": 3, **changes.pop("client", {})}
    task = changes.pop("task", None) or task_of(folder)
    trainer = TrainerConfig(trainer) if isinstance(trainer, str) else trainer
    settings = {"rounds": 2, "eval": EvalConfig(every=0), **changes}
    return make_config(folder / "run", task, algorithm, client=ClientConfig(trainer=trainer, **client), **settings)


def job_of(runner: Runner, name: str = "north", *, round: int = 0, state: ClientState | None = None) -> ClientJob:
    """One client's work in a round, which nobody else is told of."""
    components, config = runner.context.components, runner.context.config
    examples = components.training.load(name, "train")
    assert config.client.trainer is not None
    return ClientJob(
        client=Client(name, 0, {"train": len(examples)}),
        round=round,
        run_seed=config.run.seed,
        received={"weights": components.engine.initial_shared},
        state=state or ClientState(),
        outgoing=Outgoing(torch.zeros(0), (), "nobody"),
        engine=components.engine,
        task=components.training,
        hp=config.client,
        examples=examples,
        on_step=lambda n: None,
        rounds=config.rounds,
        trainer=trainer_of(config.client.trainer),
    )


def runner_of(folder: Path, trainer: TrainerConfig | str, **changes: Any) -> Runner:
    """A run that has not begun."""
    return make_runner(config_of(folder, trainer, **changes))


class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> Any:
        return self.rows[place]


@contextmanager
def as_a_script() -> Iterator[None]:
    """Without what other tests leave of ranks in the environment, of which accelerate would make a group."""
    gone = {name: os.environ.pop(name) for name in [*os.environ] if name in RANKS or name.startswith("MASTER_")}
    try:
        yield
    finally:
        os.environ.update(gone)


@as_a_script()
def by_hand(model: Any, rows: Any, collate: Any, seed: int, folder: Path, **changes: Any) -> None:
    """What a user's own script does."""
    from transformers import Trainer, TrainingArguments

    args = TrainingArguments(
        output_dir=str(folder), seed=seed & 0xFFFFFFFF, data_seed=seed & 0xFFFFFFFF, use_cpu=True, report_to="none",
        save_strategy="no", disable_tqdm=True, **{"max_steps": 3, **ARGS, **changes},
    )  # fmt: skip
    Trainer(model=model, args=args, train_dataset=Rows(rows), data_collator=collate).train()


def weights(module: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()]).clone()
