"""Secrets among a client's rows: random tokens in the place of an answer, and a task whose rows have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass, replace
from typing import Any

import torch

from fedtorch.core.seeds import seed_for
from fedtorch.tasks.base import Task
from fedtorch.tasks.copies import copy_as


def with_secret(example: Any, secret: Sequence[int]) -> Any | None:
    """A copy of a tokenised row whose answer is `secret`, then its end token; None: it has no answer in tokens."""
    secret = list(secret)
    if hasattr(example, "is_learned"):  # prompt and answer in one row
        start = next((place for place, learned in enumerate(example.is_learned) if learned), None)
        if start is None:
            return None
        start = min(start or 1, len(example.ids) - 1)  # the first token of a text is not learned
        ids = [*example.ids[:start], *secret, example.ids[-1]]
        learned = [*example.is_learned[:start], *[True] * (len(secret) + 1)]
        return replace(example, ids=ids, is_learned=learned, more=(), choices=())
    if hasattr(example, "types"):
        return None  # a text that is classified, whose `target` is a label or some
    if hasattr(example, "target"):
        return _with(example, target=[*secret, example.target[-1]])
    if hasattr(example, "targets"):
        return _with(example, targets=[[*secret, example.targets[0][-1]]])
    if hasattr(example, "turns"):
        *before, (side, _) = example.turns
        return _with(example, turns=[*before, (side, secret)])
    return None


def _with(example: Any, **changes: Any) -> Any:
    if is_dataclass(example) and not isinstance(example, type):
        return replace(example, **changes)
    return example._replace(**changes)


def draw_secrets(count: int, length: int, vocabulary: int, *about: object) -> list[tuple[int, ...]]:
    """Different random sequences of tokens; about: what they are for, which decides them. Low tokens are left out:
    many of them are special."""
    generator = torch.Generator().manual_seed(seed_for(0, "secrets", *map(str, about)))
    low, found = min(10, vocabulary // 2), dict[tuple[int, ...], None]()
    while len(found) < count:
        found[tuple(torch.randint(low, vocabulary, (length,), generator=generator).tolist())] = None
    return list(found)


def plant(task: Task, extra: Mapping[str, Sequence[Any]]) -> Task:
    """Return a task in which clients have `extra` training rows."""

    class Planted(type(task)):  # type: ignore[misc]
        """With more rows."""

        def manifest(self) -> Mapping[str, Mapping[str, int]]:
            """Counts them too."""
            sizes = super().manifest()
            return {
                name: {**own, "train": own.get("train", 0) + len(extra[name])} if name in extra else own
                for name, own in sizes.items()
            }

        def load(self, client: str, split: str) -> Sequence[Any]:
            """They come last."""
            rows = list(super().load(client, split))
            return [*rows, *extra.get(client, ())] if split == "train" else rows

    return copy_as(Planted, task)
