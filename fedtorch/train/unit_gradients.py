"""Gradients of single units, a row or all rows of a person: by vmap over a chunk, or one unit after the other.

Both give every unit's whole gradient, so that its norm can be bounded before anything is added up. One after the other
is the reference; vmap is used where the model can do it and comes to the same numbers, which is tried on two units.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from fedtorch.train.engine import Engine

log = logging.getLogger(__name__)

CLOSE = 1e-4
"""How far the two ways may be apart when vmap is tried, as a share of a gradient's norm; they are 1e-7 apart."""
LOOP, VMAP, AUTO = "loop", "vmap", "auto"
Unit = Sequence[Any]
"""Examples of one unit."""
Chunk = tuple[Tensor, Tensor]
"""Gradients, (units, numbers), and losses, (units,), of some units; on the engine's device."""


class HasLoss(Protocol):
    """The part of a task that is needed here."""

    def collate(self, examples: Sequence[Any], train: bool) -> Any: ...
    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor | int]: ...


class _Loss(nn.Module):
    """Mean over a unit's rows of the mean loss of each, as a module: every way into the model has the same weights."""

    def __init__(self, model: nn.Module, task: HasLoss) -> None:
        super().__init__()
        self.model, self.task = model, task

    def forward(self, rows: Sequence[Mapping[str, Tensor]], shares: Tensor) -> Tensor:
        total = torch.zeros((), device=shares.device)
        for batch, share in zip(rows, shares, strict=True):
            loss, count = self.task.loss(self.model, batch)
            total = total + share * (loss.float() / count)
        return total


class UnitGradients:
    """Gradients of f_u, the mean over a unit's rows of a row's loss sum / its own count, by all trained parameters.

    A row counts the same however long it is, and a unit the same however many rows it has.
    """

    def __init__(
        self, engine: Engine, task: HasLoss, how: str = AUTO, physical: int = 16, client: str | None = None
    ) -> None:
        """how: `loop`, `vmap` (an error where the model cannot do it) or `auto`. physical: units in memory at once.

        client: whose units they are; what the model can do with them is tried once. None: every time.
        """
        self.engine, self.task, self.physical = engine, task, physical
        self.size = sum(parameter.numel() for parameter in engine.trained)
        self._loss = _Loss(engine.module, task)
        # names as the wrapped module has them; the engine itself stands for its parameters
        self._names = [f"model.{name}" for name in engine.trained_names]
        self._found = engine.unit_ways if how != LOOP and client is not None else {}
        self._key = how, client or ""
        self.how, self._masks = self._found.get(self._key, (how, None))

    def chunks(self, units: Sequence[Unit]) -> Iterator[Chunk]:
        """Gradients of the units in order, `physical` units at a time; nothing is left in the parameters' `.grad`.

        Raises:
            RuntimeError: with `vmap`, the model cannot do it.
        """
        for start in range(0, len(units), self.physical):
            chunk = units[start : start + self.physical]
            if self.how != LOOP and self._masks is None:
                self._try(chunk)
                self._found[self._key] = self.how, self._masks
            if self.how == LOOP or (found := self._together(chunk, str(self._masks))) is None:
                for unit in chunk:
                    yield self._alone(unit)
            else:
                yield found

    # --- one after the other

    def _alone(self, unit: Unit) -> Chunk:
        """One unit's gradient, row by row, so that nothing of a row depends on the others."""
        engine, total = self.engine, torch.zeros((), device=self.engine.device)
        engine.clear_gradients()
        for row in unit:
            with engine.autocast():
                loss, count = self.task.loss(engine.module, engine.upload(self.task.collate([row], True)))
            part = loss.float() / count / len(unit)
            part.backward()
            total = total + part.detach()
        flat = torch.zeros(1, self.size, device=engine.device)
        for parameter, place in zip(engine.trained, self._places(), strict=True):
            if parameter.grad is not None:
                flat[0, place] = parameter.grad.reshape(-1)
        engine.clear_gradients()
        return flat, total[None]

    def _places(self) -> Iterator[slice]:
        """Where each trained parameter's numbers stand in a gradient."""
        start = 0
        for parameter in self.engine.trained:
            yield slice(start, start + parameter.numel())
            start += parameter.numel()

    # --- all of a chunk together

    def _together(self, units: Sequence[Unit], masks: str) -> Chunk | None:
        """The chunk's gradients by vmap; None: its batch is none of tensors with a row for each example."""
        engine, most = self.engine, max(len(unit) for unit in units)
        rows = [row for unit in units for row in (*unit, *[unit[-1]] * (most - len(unit)))]
        batch = self.task.collate(rows, True)
        if not isinstance(batch, Mapping) or not all(
            isinstance(value, Tensor) and value.shape[:1] == (len(rows),) for value in batch.values()
        ):
            return None
        batch = {name: value for name, value in engine.upload(batch).items()}
        if masks == "additive" and "attention_mask" in batch:
            batch["attention_mask"] = additive(batch["attention_mask"])
        batch = {name: value.view(len(units), most, 1, *value.shape[1:]) for name, value in batch.items()}
        shares = torch.tensor(
            [[1 / len(unit)] * len(unit) + [0.0] * (most - len(unit)) for unit in units], device=engine.device
        )
        weights = dict(zip(self._names, engine.trained, strict=True))

        def of_unit(weights: Mapping[str, Tensor], batch: Mapping[str, Tensor], shares: Tensor) -> Tensor:
            rows = [{name: value[place] for name, value in batch.items()} for place in range(most)]
            found: Tensor = functional_call(self._loss, dict(weights), (rows, shares))
            return found

        with engine.autocast(), _eager(engine.module):
            each = vmap(grad_and_value(of_unit), in_dims=(None, 0, 0), randomness="different")
            found, losses = each(weights, batch, shares)
        flat = torch.empty(len(units), self.size, device=engine.device)
        for name, place in zip(self._names, self._places(), strict=True):
            flat[:, place] = found.pop(name).detach().reshape(len(units), -1)  # so that no two copies of all are there
        return flat, losses.detach()

    def _try(self, units: Sequence[Unit]) -> None:
        """Find out how the model takes a mask inside vmap; one that cannot do it goes to the loop, with `auto`."""
        module, why = self.engine.module, "a batch of its task is more than tensors with a row for each example"
        was_training, units = module.training, units[:2]
        module.eval()
        try:
            expected = torch.cat([self._alone(unit)[0] for unit in units])
            for masks in ("plain", "additive"):
                try:
                    found = self._together(units, masks)
                except Exception as error:  # whatever a model raises where it looks at numbers
                    why = f"{type(error).__name__} inside it"
                    continue
                if found is None:
                    break
                difference, size = (found[0] - expected).norm(dim=1), expected.norm(dim=1)
                if bool((difference <= CLOSE * size + 1e-12).all()):
                    self._masks = masks
                    return
                why = "its gradients are others there"
        finally:
            module.train(was_training)
        if self.how == VMAP:
            raise RuntimeError(f"privacy.per_unit is vmap, which the model cannot do: {why}; set it to loop")
        log.info("gradients of units are taken one after the other, as the model cannot do vmap: %s", why)
        self.how = LOOP


def additive(mask: Tensor) -> Tensor:
    """A mask (B, T) of ones and zeros as what is added to attention scores, (B, 1, 1, T), fp32: 0 or the least number.

    For an encoder, each of whose tokens sees all others. Models take it as it is, without looking at its numbers.
    """
    return (1.0 - mask[:, None, None, :].float()) * torch.finfo(torch.float32).min


@contextmanager
def _eager(module: nn.Module) -> Iterator[None]:
    """Attention in plain operations meanwhile: the fused ones look at masks."""
    configs = {id(config): config for part in module.modules() if (config := getattr(part, "config", None)) is not None}
    before = [(config, config._attn_implementation) for config in configs.values() if _has_attention(config)]
    for config, _ in before:
        config._attn_implementation = "eager"
    try:
        yield
    finally:
        for config, name in before:
            config._attn_implementation = name


def _has_attention(config: Any) -> bool:
    return isinstance(getattr(config, "_attn_implementation", None), str)
