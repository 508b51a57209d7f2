"""Activations that are computed again in the backward pass in place of being kept, and bytes of those that are kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from fedtorch.train.blocks import outermost


def checkpointable(module: nn.Module) -> list[nn.Module]:
    """The outermost models inside `module` that can forget activations and compute them again."""
    from transformers import PreTrainedModel  # takes 4 s, of every rank's start

    def has_own(part: nn.Module) -> bool:
        return hasattr(part, "compute_activations_again")

    found = outermost(module, lambda part: has_own(part) or isinstance(part, PreTrainedModel))
    return [part for part in found if has_own(part) or part.supports_gradient_checkpointing]


def compute_activations_again(module: nn.Module) -> None:
    """Make all of `checkpointable` in `module` do so while they train, each in its own way where it has one.

    What is computed again draws the same dropout. It is kept for inputs that need no gradient too (a frozen base below
    adapters), as torch's checkpoints are asked to be no functions of their inputs (`use_reentrant` False).
    """
    for model in checkpointable(module):
        own: Any = model
        if hasattr(own, "compute_activations_again"):
            own.compute_activations_again()
        else:
            own.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})


class Kept:
    """Bytes of what forward passes keep for the backward pass, counted by `counted`. Holds all of it in memory."""

    def __init__(self) -> None:
        # with their tensors, else another one may come to lie where one that is gone was
        self._seen: dict[int, tuple[int, Tensor]] = {}

    @property
    def bytes(self) -> int:
        """Size of all storages together, each of them once."""
        return sum(size for size, _ in self._seen.values())

    def note(self, tensor: Tensor) -> Tensor:
        """Count a tensor's storage, unless it was seen before; returns the tensor."""
        storage = tensor.untyped_storage()
        self._seen.setdefault(storage._cdata, (storage.nbytes(), tensor))
        return tensor

    def leave_out(self, tensors: Iterable[Tensor]) -> None:
        """These lie in memory anyway; to be called before anything is counted."""
        for tensor in tensors:
            self._seen[tensor.untyped_storage()._cdata] = 0, tensor


@contextmanager
def counted(kept: Kept) -> Iterator[None]:
    """Forward passes in here note in `kept` what they keep; nothing of it is changed."""
    with saved_tensors_hooks(kept.note, lambda tensor: tensor):
        yield
