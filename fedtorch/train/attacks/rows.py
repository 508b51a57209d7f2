"""Rows that attackers train on in place of their own; of tasks whose rows have a text and one label."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from fedtorch.core.seeds import seed_for
from fedtorch.train.attacks.settings import AttackConfig

Row = dict[str, Any]


@runtime_checkable
class LabelledTask(Protocol):
    """A task with labels, as these attacks need it; its `problem` is `single_label`."""

    problem: str

    @property
    def labels(self) -> tuple[str, ...]:
        """All labels in the order of their numbers."""

    def rows(self, client: str, split: str) -> list[Row]:
        """With the keys `text` and `label`."""

    def examples(self, rows: Sequence[Mapping[str, Any]], where: str) -> list[Any]:
        """As they are trained on."""


def load_changed(task: LabelledTask, client: str, attack: AttackConfig, run_seed: int) -> list[Any]:
    """The attacker's training examples, as many as it has rows."""
    rows = task.rows(client, "train")
    if attack.kind == "labelflip":
        rows = flipped(rows, task.labels)
    else:
        seed = seed_for(run_seed, "backdoor", client)
        rows = triggered(rows, attack.trigger, attack.target, share=attack.share, seed=seed)
    return task.examples(rows, f"train of client {client}")


def flipped(rows: Sequence[Row], labels: Sequence[str]) -> list[Row]:
    """Return the texts, each with the label after its own; after the last comes the first."""
    after = dict(zip(labels, [*labels[1:], labels[0]], strict=True))
    return [{**row, "label": after[row["label"]]} for row in rows]


def triggered(rows: Sequence[Row], trigger: str, target: str, *, share: float, seed: int) -> list[Row]:
    """Return the rows, of which ⌈share · n⌉, drawn by `seed`, begin with the trigger and have the target as label."""
    count = -int(-share * len(rows) // 1)
    chosen = {*random.Random(seed).sample(range(len(rows)), count)}
    return [
        {**row, "text": f"{trigger} {row['text']}", "label": target} if i in chosen else row
        for i, row in enumerate(rows)
    ]
