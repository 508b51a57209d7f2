"""How long may rounds be? A small model of characters, trained with few exchanges and with many:

python docs/examples/characters.py LICENSE [SEED]
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

import fedtorch
from fedtorch import Scores, Task

STEPS, CONTEXT = 300, 8
LETTERS = " abcdefghijklmnopqrstuvwxyz"
Window = tuple[Sequence[int], int]


def letters(file: Path) -> str:
    """Its text in small letters, with one space for whatever lies between words."""
    return re.sub("[^a-z]+", " ", file.read_text(encoding="utf-8").lower()).strip()


def windows(text: str) -> list[Window]:
    """Every character that has a whole context before it, with that context."""
    numbers = [LETTERS.index(letter) for letter in text]
    return [(numbers[i - CONTEXT : i], numbers[i]) for i in range(CONTEXT, len(numbers))]


class Next(nn.Module):
    """Scores of the next character after eight: embeddings of 8, a layer of 64, 27 outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(LETTERS), 8)
        self.hidden = nn.Linear(8 * CONTEXT, 64)
        self.output = nn.Linear(64, len(LETTERS))

    def forward(self, contexts: Tensor) -> Tensor:
        """Shape (batch, 27)."""
        scores: Tensor = self.output(torch.tanh(self.hidden(self.embedding(contexts).flatten(1))))
        return scores


@dataclass(frozen=True)
class Characters(Task):
    """Which character is next; `likelihood` is the mean of its logarithm, the loss with another sign."""

    main_metric: ClassVar[str] = "likelihood"
    evaluates_loss: ClassVar[bool] = False  # it is the metric

    file: str
    """a text; all replicas are tested on its last tenth"""
    replicas: int = 4
    """clients, each with a stretch of the rest"""

    def _rows(self) -> tuple[list[Window], list[Window]]:
        text = letters(Path(self.file))
        cut = int(0.9 * len(text))
        return windows(text[:cut]), windows(text[cut:])

    def _stretch(self, number: int, rows: int) -> slice:
        return slice(number * rows // self.replicas, (number + 1) * rows // self.replicas)

    def manifest(self) -> Mapping[str, Mapping[str, int]]:
        """Clients r0, r1, ..."""
        train, test = self._rows()
        sizes = [len(train[self._stretch(number, len(train))]) for number in range(self.replicas)]
        return {f"r{number}": {"train": size, "test": len(test)} for number, size in enumerate(sizes)}

    def sharing(self, split: str) -> Collection[str]:
        """All have the same test."""
        return [f"r{number}" for number in range(self.replicas)] if split == "test" else ()

    def load(self, client: str, split: str) -> list[Window]:
        """Windows in the order of the text."""
        train, test = self._rows()
        return test if split == "test" else train[self._stretch(int(client[1:]), len(train))]

    def build_model(self, seed: int) -> nn.Module:
        """With torch's own start."""
        torch.manual_seed(seed)
        return Next()

    def collate(self, examples: Sequence[Window], train: bool) -> tuple[Tensor, Tensor]:
        """Contexts, and what follows them."""
        contexts, following = zip(*examples, strict=True)
        return torch.tensor(contexts), torch.tensor(following)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, int]:
        """Cross entropy."""
        contexts, following = batch
        return nn.functional.cross_entropy(model(contexts), following, reduction="sum"), len(following)

    def predict(self, model: nn.Module, examples: Sequence[Window], batch_size: int) -> list[float]:
        """The logarithm of what each character's probability was."""
        contexts, following = self.collate(examples, False)
        found: list[float] = model(contexts).log_softmax(1).gather(1, following[:, None])[:, 0].tolist()
        return found

    def score(self, examples: Sequence[Window], predictions: Sequence[float]) -> Scores:
        """Their sum."""
        return {"likelihood": (sum(predictions), len(examples))}


def config(file: str, steps: int, **changes: Any) -> dict[str, Any]:
    """DiLoCo with rounds of so many steps, `STEPS` of them in all; `changes` are whole sections or keys of them."""
    rounds = STEPS // steps
    client = {"optimizer": "adamw", "lr": 3e-3, "weight_decay": 0.1, "batch_size": 32, "steps": steps}
    return {
        "run": {"dir": "runs/characters/run"},
        "rounds": rounds,
        "task": {"name": "characters:Characters", "file": file},
        "algorithm": {"name": "fedavg", "weights": "equal"},
        "client": {**client, "optimizer_state": "keep", "schedule": "cosine", "schedule_span": "run"},
        "server": {"optimizer": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True},
        "eval": {"every": rounds, "split": "train", "final_split": "test", "batch_size": 10_000},
        "checkpoint": {"every": rounds},
        "track": {"tensorboard": False, "progress": "off"},
        **changes,
    }


RESET = {"client.optimizer_state": "reset"}
MEAN = {"server": {"lr": 1.0, "momentum": 0.0, "nesterov": False}}
TOGETHER = {**MEAN, "paradigm": "centralized", "client.batch_size": 128}
KINDS: list[dict[str, Any]] = [{}, RESET, MEAN]


def losses(
    given: dict[str, Any], changes: Mapping[str, Any] | None = None, trained: str = "train"
) -> tuple[float, float]:
    """Losses of test and training rows, which are those of a split, at the end of a run."""
    with redirect_stdout(io.StringIO()):  # its table
        result = fedtorch.run(given, dict(changes or {}), resume="never")
    totals = result.records.query("kind == 'eval_total' and split == @trained")
    return -result.scores.overall["likelihood"].micro, -totals["metrics.likelihood.micro"].iloc[-1]


def table(file: str, seed: int = 0) -> Iterator[str]:
    """A row per length of rounds, as it is known."""
    test, train = losses(config(file, STEPS), {**TOGETHER, "run.seed": seed})
    yield f"every step's gradient of all four: {test:.4f} / {train:.4f}\n"
    yield "| steps a round (rounds) | DiLoCo | inner state reset | plain mean, kept |"
    yield "|---|---|---|---|"
    for steps in (1, 10, 50):
        found = [losses(config(file, steps), {**changes, "run.seed": seed}) for changes in KINDS]
        cells = " | ".join(f"{test:.4f} / {train:.4f}" for test, train in found)
        yield f"| {steps} ({STEPS // steps}) | {cells} |"


if __name__ == "__main__":
    for line in table(sys.argv[1], *map(int, sys.argv[2:])):
        print(line, flush=True)
