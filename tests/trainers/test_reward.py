"""TRL's RewardTrainer as a client, and the native task `reward`: the same steps, and scores of both answers."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from own_rows import BERT, GPT2, own, trained, write_rows
from record_rows import vocabulary
from trained_otherwise import job_of, runner_of, task_of

from fedtorch.core.errors import ConfigError
from fedtorch.tasks.reward import Reward
from fedtorch.train.settings import ClientConfig, TrainerConfig

ARGS: dict[str, Any] = {"per_device_train_batch_size": 100, "learning_rate": 0.1, "optim": "sgd", "max_grad_norm": 0.0}
TRL = TrainerConfig("trl.Reward", {**ARGS, "lr_scheduler_type": "constant"})


def rows(size: int = 36) -> list[dict[str, Any]]:
    """Answers with the sun in them are the better ones."""
    homes, others = ("north", "south", "west"), ("cold", "grey", "storm")
    return [
        {
            "prompt": "rain is",
            "chosen": f" sun {others[i % 3]}",
            "rejected": f" {others[(i + 1) % 3]}",
            "home": homes[i % 3],
        }
        for i in range(size)
    ]


def reward(folder: Path, model: Any = GPT2) -> Reward:
    source = write_rows(folder / "rows.jsonl", rows())
    return Reward(data=own(source), model=model, max_length=32, tokenizer=str(vocabulary(folder / "words")))


def test_the_native_task_and_trl_take_the_same_steps(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    task = reward(tmp_path)
    runner = runner_of(tmp_path, TRL, task=task, client={"steps": 2})
    job = job_of(runner)
    theirs = job.train(job.received["weights"])
    found = job.engine.snapshot()

    native = runner_of(tmp_path / "native", TRL, task=task, client={"steps": 2})
    settings = ClientConfig(optimizer="sgd", lr=0.1, batch_size=100, steps=2)
    plain = replace(job_of(native), trainer=None, hp=settings)
    ours = plain.train(job.received["weights"])
    assert torch.allclose(found, plain.engine.snapshot(), rtol=0, atol=1e-6)
    assert theirs.losses == pytest.approx(ours.losses, abs=2e-6)


@pytest.mark.parametrize("model", [GPT2, BERT, {**GPT2, "adapter": {"kind": "lora", "r": 2, "targets": ["c_attn"]}}])
def test_it_learns_which_answer_is_the_better_one(tmp_path: Path, model: Any) -> None:
    runner = trained(tmp_path / "run", reward(tmp_path, model), rounds=4, lr=3e-2)
    engine, task = runner.context.components.engine, runner.context.components.task
    examples = task.load("north", "test")
    engine.load(runner.context.server.tensors["weights"])
    engine.module.eval()
    wins, count = task.score(examples, task.predict(engine.module, examples, 8))["accuracy"]
    assert (wins, count) == (3.0, 3)


def test_loss_and_scores_by_hand() -> None:
    class Fixed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.number = torch.nn.Parameter(torch.zeros(1))

    task = object.__new__(Reward)
    numbers = torch.tensor([[1.5, 0.5], [0.0, 2.0], [1.0, 1.0]])
    object.__setattr__(task, "rewards", lambda model, batch: numbers)
    total, count = Reward.loss(task, Fixed(), {})
    by_hand = sum(math.log(1 + math.exp(-lead)) for lead in (1.0, -2.0, 0.0))
    assert float(total) == pytest.approx(by_hand, abs=1e-6) and count == 3
    assert Reward.score(task, [None] * 3, [tuple(row) for row in numbers.tolist()]) == {  # type: ignore[list-item]
        "accuracy": (1.0, 3), "margin": (-1.0, 3)
    }  # fmt: skip


def test_a_model_without_that_head_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    with pytest.raises(ConfigError, match="reads rows with prompt and chosen and rejected"):
        runner_of(tmp_path, TRL, task=task_of(tmp_path))


def test_a_tokenizer_that_pads_with_its_end_token_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    from transformers import AutoTokenizer

    words = vocabulary(tmp_path / "ends")
    tokenizer = AutoTokenizer.from_pretrained(words)
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.save_pretrained(words)
    with pytest.raises(ConfigError, match="pads with its end token"):
        runner_of(tmp_path, TRL, task=replace(reward(tmp_path), tokenizer=str(words)))
