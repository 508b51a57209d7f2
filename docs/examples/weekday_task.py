"""A task of one's own in one file: which day of the week does a sentence speak of? Run from the folder it lies in:

python -m fedtorch.main --config weekday.yaml
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedtorch import Scores, Task
from fedtorch.data.folder import read_manifest, read_rows, write_client, write_manifest

DAYS = ("monday", "tuesday", "wednesday")
SPLITS = {"train": range(0, 12), "dev": range(12, 15), "test": range(15, 18)}


def write(folder: Path) -> None:
    """A prepared folder: what `write_client` returns goes into the manifest, which is written last."""
    entries = {}
    for client, word in (("north", "meeting"), ("south", "match"), ("west", "train")):
        splits = {
            name: [{"text": f"the {word} {i} is on {DAYS[i % 3]}", "day": DAYS[i % 3]} for i in numbers]
            for name, numbers in SPLITS.items()
        }
        entries[client] = write_client(folder, client, splits, facts={"word": word})
    write_manifest(folder, "weekdays", clients=entries, record={"made by": "docs/examples/weekday_task.py"})


@dataclass(frozen=True)
class Weekday(Task):
    """Bytes are summed and read by one linear layer."""

    main_metric: ClassVar[str] = "accuracy"

    data: str
    """the folder that `write` has written"""
    width: int = 16
    """of the vector of a byte"""

    def manifest(self) -> Mapping[str, Mapping[str, int]]:
        """Sizes alone: every rank asks, and none may read a client's text for it."""
        entries = read_manifest(Path(self.data))["clients"]
        return {name: {s: facts["examples"] for s, facts in e["splits"].items()} for name, e in entries.items()}

    def load(self, client: str, split: str) -> list[tuple[bytes, int]]:
        """Called where the client lives, for every split it has: an empty one gives an empty list."""
        rows = read_rows(Path(self.data), client, split, fields=("text", "day"))
        return [(row["text"].encode(), DAYS.index(row["day"])) for row in rows]

    def build_model(self, seed: int) -> nn.Module:
        """The same on every rank."""
        torch.manual_seed(seed)
        return nn.Sequential(nn.EmbeddingBag(256, self.width, mode="mean"), nn.Linear(self.width, len(DAYS)))

    def collate(self, examples: Sequence[tuple[bytes, int]], train: bool) -> dict[str, Tensor]:
        """CPU tensors; the engine brings them to the model's device."""
        longest = max(len(text) for text, _ in examples)
        texts = [[*text, *b" " * (longest - len(text))] for text, _ in examples]
        return {"texts": torch.tensor(texts), "days": torch.tensor([day for _, day in examples])}

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
        """(sum, number of terms), so that batches of any size can be added."""
        found = nn.functional.cross_entropy(model(batch["texts"]), batch["days"], reduction="sum")
        return found, len(batch["days"])

    def predict(self, model: nn.Module, examples: Sequence[Any], batch_size: int) -> list[int]:
        """One prediction per example, in their order."""
        device, found = next(model.parameters()).device, []
        for start in range(0, len(examples), batch_size):
            texts = self.collate(examples[start : start + batch_size], False)["texts"]
            found += model(texts.to(device)).argmax(1).tolist()
        return found

    def score(self, examples: Sequence[Any], predictions: Sequence[Any]) -> Scores:
        """metric -> (sum over the examples, their number)."""
        hits = sum(day == found for (_, day), found in zip(examples, predictions, strict=True))
        return {"accuracy": (float(hits), len(examples))}


if __name__ == "__main__":
    write(Path("data/weekdays"))
