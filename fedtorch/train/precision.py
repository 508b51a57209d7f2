"""Mixed precision over fp32 parameters: what forward passes are computed in, and the loss scale that fp16 needs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from fedtorch.comm.worker import WorkerGroup

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Precisions of 16 bits. With the others all tensors are fp32; tf32 is a way of a GPU to multiply them."""

# Steps without an overflow after which the scale is doubled: DeepSpeed's number, where torch's own is 2000.
GROWTH_INTERVAL = 1000


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """Forward passes in here are computed in `precision` by torch's rules; nothing happens with fp32 and tf32.

    Casts of weights are kept until the block ends, so weights must not be loaded inside it.
    """
    return torch.autocast(device.type, DTYPES[precision]) if precision in DTYPES else nullcontext()


def has_fp16(device: torch.device) -> bool:
    """Can this machine compute in fp16 there? Some CPUs cannot."""
    if device.type != "cpu":
        return True
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


def asking(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """A trained model is asked in here in its run's `precision`, or in fp32 where the device has no fp16."""
    return autocast("fp32" if precision == "fp16" and not has_fp16(device) else precision, device)


class LossScale(torch.amp.GradScaler):
    """A factor on the loss, 2**power at first, that keeps fp16 gradients from vanishing.

    A step whose gradients overflow, on any rank of the worker, is left out and halves the scale; the learning rate's
    schedule counts it all the same. Steps that go well double it in the end. DeepSpeed's engine does the same.
    """

    left_out: Tensor
    """How many steps were; on the device."""

    def __init__(self, device: torch.device, power: int) -> None:
        super().__init__(device.type, init_scale=2.0**power, growth_interval=GROWTH_INTERVAL)
        self.left_out = torch.zeros((), device=device)
        self.scale(self.left_out)  # makes it, also where the own part of the model is frozen and no loss comes

    def unscale_gradients(self, optimizer: torch.optim.Optimizer, worker: WorkerGroup | None) -> None:
        """Divide the gradients by the scale, in place.

        worker: ranks that have other gradients of the same step and all call this; None: all gradients are here.
        """
        self.unscale_(optimizer)
        # torch's ShardedGradScaler, too, has no other way to tell what other ranks found (torch 2.13)
        found: dict[torch.device, Tensor] = self._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        if worker is not None:
            has_overflow = worker.any(any(bool(value) for value in found.values()))
            found[self.left_out.device] = torch.full_like(self.left_out, float(has_overflow))
        self.left_out += sum(found.values())

    def take_step(self, optimizer: torch.optim.Optimizer) -> None:
        """The optimiser's step, unless gradients overflowed; then a scale for the next one."""
        self.step(optimizer)
        self.update()
        # torch's mark of a step, no attribute of Optimizer; else the schedule warns of a first step that was left out
        setattr(optimizer, "_opt_called", True)  # noqa: B010


class Precision:
    """Number format of one engine: fp32, tf32, bf16 or fp16; with fp16 a loss scale too, a new one for every client."""

    def __init__(self, kind: str, device: torch.device, scale_power: int) -> None:
        self.kind, self.device, self.scale_power = kind, device, scale_power
        self.scale: LossScale | None = None
        """Of the present client; None unless it is fp16."""

    def begin(self) -> None:
        """Nothing is left of the last client's scale."""
        self.scale = LossScale(self.device, self.scale_power) if self.kind == "fp16" else None

    def autocast(self) -> AbstractContextManager[Any]:
        """Context in which the forward pass computes."""
        return autocast(self.kind, self.device)

    def scaled(self, loss: Tensor) -> Tensor:
        """Loss to go back from."""
        return loss if self.scale is None else self.scale.scale(loss)

    def unscale_gradients(self, optimizer: torch.optim.Optimizer, worker: WorkerGroup | None) -> None:
        """Divide the gradients by the loss scale, where there is one."""
        if self.scale is not None:
            self.scale.unscale_gradients(optimizer, worker)

    def take_step(self, optimizer: torch.optim.Optimizer) -> None:
        """The optimiser's step, unless gradients overflowed in fp16."""
        if self.scale is None:
            optimizer.step()
        else:
            self.scale.take_step(optimizer)

    def numbers(self) -> dict[str, int | float]:
        """Where the loss scale stands, to go on with `put`; empty where there is none. Waits for the device."""
        if self.scale is None:
            return {}
        state = self.scale.state_dict()
        return {"scale": state["scale"], "growth": state["_growth_tracker"], "left_out": self.left_out()}

    def put(self, numbers: Mapping[str, int | float]) -> None:
        """Go on where `numbers` stood; after `begin`."""
        if self.scale is not None:
            state = self.scale.state_dict()
            self.scale.load_state_dict({**state, "scale": numbers["scale"], "_growth_tracker": int(numbers["growth"])})
            self.scale.left_out.fill_(numbers["left_out"])

    def left_out(self) -> int:
        """Steps since `begin` that were not taken; waits for the device."""
        return 0 if self.scale is None else int(self.scale.left_out)
