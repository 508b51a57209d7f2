"""Trainers of transformers that somebody else's code makes: every one of them tells its steps and losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fedtorch.train.loop import LossCurve


class Seen:
    """Steps and losses of a client's training, as they were told; those of its code before those of its trainers."""

    def __init__(self, on_step: Callable[[int], None]) -> None:
        self._on_step = on_step
        self._told = self._noticed = 0
        self._losses: list[float] = []

    @property
    def taken(self) -> int:
        """Optimiser steps."""
        return self._told or self._noticed

    def tell(self) -> None:
        """The client's own code says that it took a step."""
        self._told += 1
        self._on_step(self._told)

    def notice(self) -> None:
        """One of its trainers took a step."""
        self._noticed += 1
        if not self._told:
            self._on_step(self._noticed)

    def log(self, loss: float) -> None:
        """One of its trainers logged a loss."""
        self._losses.append(loss)

    def curve(self, numbers: Mapping[str, float]) -> LossCurve:
        """Losses of the steps: those that were logged, if all were; else the one in `numbers` for all."""
        loss = numbers.get("loss")
        told = {f"trainer_{name}": value for name, value in numbers.items() if name != "loss"}
        count = self.taken
        if len(self._losses) == count and not self._told:
            losses = tuple(self._losses)
        elif loss is not None:
            losses = (loss,) * count
        else:
            return LossCurve(untold=count, told=told)
        return LossCurve(losses, (0.0,) * count, (0,) * count, told=told)


@contextmanager
def watched(on_step: Callable[[int], None]) -> Iterator[Seen]:
    """Inside it every Trainer that is made has a callback of ours beside its own, and prints nothing by itself."""
    from transformers import TrainerCallback, trainer

    seen = Seen(on_step)

    class Watch(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            seen.notice()

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            if logs and "loss" in logs:
                seen.log(float(logs["loss"]))

    usual = trainer.DEFAULT_CALLBACKS, trainer.PrinterCallback, trainer.DEFAULT_PROGRESS_CALLBACK
    trainer.DEFAULT_CALLBACKS = [*usual[0], Watch]
    trainer.PrinterCallback = trainer.DEFAULT_PROGRESS_CALLBACK = TrainerCallback
    try:
        yield seen
    finally:
        trainer.DEFAULT_CALLBACKS, trainer.PrinterCallback, trainer.DEFAULT_PROGRESS_CALLBACK = usual
