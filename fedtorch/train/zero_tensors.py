"""Tensors that ZeRO holds of a model, whole, fp32 and by name: parameters, masters, gradients, optimiser state.

Checked with deepspeed 0.19.8.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fedtorch.core.weights import Layout

OptimizerState = tuple[Mapping[str, Tensor], Mapping[str, "int | float"]]


class ZeroTensors:
    """Parameters, fp32 masters, gradients and optimiser state of a stage 1, 2 or 3 engine, as whole fp32 tensors.

    All ranks of the worker call every method with the same values.
    """

    def __init__(self, module: nn.Module, zero: Any, *, stage: int, rank: int) -> None:
        self.parameters = dict(module.named_parameters())
        """By name; with stage 3 this rank's parts of them, whole only where gathered."""
        self.stage, self.rank = stage, rank
        self._zero = zero.optimizer  # around the plain one
        self._optimizer: torch.optim.Optimizer = zero.basic_optimizer

    @torch.no_grad()
    def put(self, values: Mapping[str, Tensor]) -> None:
        """Set parameters, and the masters of those that are trained; either alone would be undone or ignored."""
        from deepspeed.utils import safe_set_full_fp32_param, safe_set_local_fp32_param

        for name, value in values.items():
            parameter: Any = self.parameters[name]
            if self.stage < 3:
                parameter.data.copy_(value)
                if parameter.requires_grad:
                    safe_set_full_fp32_param(parameter, value.float())
                continue
            part = self._slice(parameter, value)
            if parameter.ds_status.name == "NOT_AVAILABLE":
                parameter.ds_tensor.data.copy_(part)
            else:  # a small one, which stays gathered
                with self._gathered([name], changes=True):
                    parameter.data.copy_(value)
            if parameter.requires_grad:
                safe_set_local_fp32_param(parameter, part)

    def whole(self) -> AbstractContextManager[None]:
        """All parameters are whole in here, not to be changed."""
        return self._gathered(self.parameters)

    def masters(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Copies of trained parameters' masters, whole."""
        from deepspeed.utils import safe_get_full_fp32_param

        return {name: safe_get_full_fp32_param(self.parameters[name]).clone() for name in names}

    def clear_gradients(self, names: Iterable[str]) -> None:
        """Make reduced gradients zero, between the last backward pass and the step."""
        from deepspeed.utils import safe_set_full_grad, safe_set_local_grad

        for name in names:
            parameter: Any = self.parameters[name]
            if self.stage == 3:
                safe_set_local_grad(parameter, torch.zeros_like(parameter.ds_tensor, dtype=torch.float32))
            else:
                safe_set_full_grad(parameter, torch.zeros_like(parameter, dtype=torch.float32))

    @contextmanager
    def replaced(self, values: Mapping[str, Tensor]) -> Iterator[None]:
        """These tensors in place of the parameters that are here, which in stage 3 are parts."""
        held = {name: self.parameters[name].data for name in values}
        for name, value in values.items():
            self.parameters[name].data = value
        try:
            yield
        finally:
            for name, value in held.items():
                self.parameters[name].data = value

    def take(self, layout: Layout, out: Tensor | None = None) -> Tensor:
        """The values of a layout's parameters, from the masters of those that are trained; flat, on the CPU.

        In `out` if it is given.
        """
        from deepspeed.utils import safe_get_full_fp32_param

        flat = layout.empty() if out is None else out
        for name, view in layout.view(flat).items():
            if self.parameters[name].requires_grad:
                view.copy_(safe_get_full_fp32_param(self.parameters[name]))
            else:
                with self._gathered([name]):
                    view.copy_(self.parameters[name].detach())
        return flat

    @contextmanager
    def changing_gradients(self, names: Sequence[str], scale: float) -> Iterator[list[Tensor]]:
        """The reduced gradients between the last backward pass and the step, without the loss scale.

        Copies; what they are at the end takes the place of the gradients.
        """
        from deepspeed.utils import safe_get_full_grad, safe_set_full_grad, safe_set_local_grad

        gradients = [safe_get_full_grad(self.parameters[name]).float() / scale for name in names]
        yield gradients
        for name, gradient in zip(names, gradients, strict=True):
            parameter = self.parameters[name]
            if self.stage == 3:
                safe_set_local_grad(parameter, self._slice(parameter, gradient * scale))
            else:
                safe_set_full_grad(parameter, gradient * scale)

    def state(self, names: Iterable[str]) -> tuple[dict[str, Tensor], dict[str, int | float]]:
        """The optimiser's state as `optim.state_of` gives it."""
        from deepspeed.utils import safe_get_full_optimizer_state

        self._link()
        moments, counts = self._keys()
        tensors: dict[str, Tensor] = {}
        for name in names:
            found = {key: safe_get_full_optimizer_state(self.parameters[name], key).cpu() for key in moments}
            if any(value.any() for value in found.values()):
                tensors.update({f"{name}/{key}": value for key, value in found.items()})
                tensors.update({f"{name}/{key}": value.cpu().clone() for key, value in counts.items()})
        return tensors, {}

    def put_state(self, state: OptimizerState) -> None:
        """Put back what `state` gave into an optimiser that has taken a step already and was made to forget it."""
        from deepspeed.utils import safe_set_full_optimizer_state, safe_set_local_optimizer_state

        self._link()
        _, counts = self._keys()
        for path, value in state[0].items():
            name, key = path.rsplit("/", 1)
            parameter = self.parameters[name]
            if key in counts:  # the same for all parameters
                for entry in filter(None, self._optimizer.state.values()):
                    entry[key].fill_(value)
            elif self.stage == 3:
                safe_set_local_optimizer_state(parameter, self._slice(parameter, value), key)
            else:
                safe_set_full_optimizer_state(parameter, value, key)

    @property
    def has_state(self) -> bool:
        """Has the optimiser made its tensors? It does so in its first step."""
        return any(self._optimizer.state.values())

    def _link(self) -> None:
        """Stages 1 and 2 look for the state of all parameter groups when the first one steps, and miss the others."""
        if self.stage < 3 and self.has_state:
            self._zero._hp_optimizer_states_linked = False
            self._zero._lazy_init_hp_params_optimizer_state()

    def _keys(self) -> tuple[list[str], dict[str, Tensor]]:
        """Names of what the optimiser keeps for each weight, and counts that all weights share."""
        entry: Mapping[str, Any] = next(filter(None, self._optimizer.state.values()), {})
        tensors = {key: value for key, value in entry.items() if isinstance(value, Tensor)}
        return [k for k, v in tensors.items() if v.ndim], {k: v for k, v in tensors.items() if not v.ndim}

    def _gathered(self, names: Iterable[str], *, changes: bool = False) -> AbstractContextManager[None]:
        import deepspeed

        rank = 0 if changes else None  # whose values the others take
        found: AbstractContextManager[None] = deepspeed.zero.GatheredParameters(
            [self.parameters[name] for name in names], modifier_rank=rank, enabled=self.stage == 3
        )
        return found

    def _slice(self, parameter: Any, value: Tensor) -> Tensor:
        """This rank's part of a value as stage 3 cuts it; the `safe_set_full` calls fail where sizes do not divide."""
        size = parameter.ds_tensor.numel()
        part = value.flatten()[size * self.rank : size * (self.rank + 1)].float()
        return nn.functional.pad(part, (0, size - part.numel()))
