"""An engine whose weights, gradients and what is left out of a step may lie in ZeRO's tensors."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor, nn

from fedtorch.core.errors import FedtorchError
from fedtorch.core.weights import mapped
from fedtorch.train.engine import Engine
from fedtorch.train.zero_tensors import ZeroTensors

_INITIAL = ("initial_shared", "initial_private", "initial_frozen")
NO_GRADIENTS = "engine.kind deepspeed has no gradients outside a step; set engine.kind to torch"


class ZeroWeights(Engine):
    """Weights of a `DeepSpeedEngine`: loading, reading, and the gradients in a step's hook."""

    _tensors: ZeroTensors | None = None  # None: stage 0, or not yet initialised
    _gradients: list[Tensor] | None = None
    _forgotten: frozenset[str] = frozenset()
    _fixed_values: Mapping[str, Tensor] = MappingProxyType({})  # in the module's own precision

    def load(self, shared: Tensor, private: Tensor | None = None, *, version: object | None = None) -> None:
        """Load shared and private weights."""
        if self._tensors is None:
            super().load(shared, private)
            return
        private = self.initial_private if private is None else private
        self._tensors.put({**self.shared.view(shared), **self.private.view(private)})
        self._buffers.put_back()

    def adopt_initial(self, spill: Path | None = None) -> None:
        """Take initial weights over. They are then in a file, as few look at them again."""
        if self._tensors is None:
            super().adopt_initial()
        else:
            self._tensors.put(self.frozen.view(self.initial_frozen))
            self.load(self.initial_shared)
        if self._tensors is not None and spill is not None:
            for name in _INITIAL:
                setattr(self, name, mapped(getattr(self, name), spill))

    def _keep_initial(self) -> None:
        """Copy the initial vectors where parameters have stayed in them, as one that is alone in its group does."""
        places = {p.data.untyped_storage().data_ptr() for p in self.module.parameters() if p.numel()}
        for name in _INITIAL:
            if (vector := getattr(self, name)).untyped_storage().data_ptr() in places:
                setattr(self, name, vector.clone())

    def snapshot(self, out: Tensor | None = None) -> Tensor:
        """Copy the shared weights."""
        return super().snapshot(out) if self._tensors is None else self._tensors.take(self.shared, out)

    def snapshot_private(self) -> Tensor:
        """Copy the private weights."""
        return super().snapshot_private() if self._tensors is None else self._tensors.take(self.private)

    def on_cpu(self, out: Tensor | None = None) -> Tensor:
        """Copy the weights to the CPU."""
        return super().on_cpu(out) if self._tensors is None else self._tensors.take(self.shared, out)

    def difference(self, start: Tensor, out: Tensor | None = None) -> Tensor:
        """Write the difference between weights and start."""
        if self._tensors is None:
            return super().difference(start, out)
        if out is not None and out.data_ptr() == start.data_ptr():
            return torch.sub(start, self.flat, out=out)
        taken = self._tensors.take(self.shared, out)
        return torch.sub(start, taken, out=taken)

    @property
    def flat(self) -> Tensor:
        """A copy of the present shared weights, from the fp32 masters; flat, on the CPU but for stage 0."""
        return self._flat if self._tensors is None else self._tensors.take(self.shared)

    @property
    def flat_private(self) -> Tensor:
        """Flat vector of the private weights."""
        return self._flat_private if self._tensors is None else self._tensors.take(self.private)

    @contextmanager
    def exported(self) -> Iterator[nn.Module]:
        """Return the weights as they are exported."""
        if self._tensors is None:
            yield self.module
            return
        trained = {**self.shared.view(self.flat), **self.private.view(self.flat_private)}
        with self._tensors.replaced({**trained, **self.frozen.view(self.initial_frozen), **self._fixed_values}):
            yield self.module

    def trained_shared(self) -> list[nn.Parameter]:
        """The trained shared parameters, in the order of `shared_views`; from stage 1 on copies of the masters."""
        if self._tensors is None:
            return super().trained_shared()
        views = self.shared.view(self.flat.to(self.device))
        return [nn.Parameter(views[name]) for name in self.trained_names if name in views]

    def shared_gradients(self) -> list[Tensor]:
        """Return the gradients of the shared weights; inside a step's hook only."""
        if self._tensors is None:
            return super().shared_gradients()
        if self._gradients is None:
            raise FedtorchError(NO_GRADIENTS)
        return self._gradients

    def forget_gradients(self, names: Collection[str]) -> None:
        """Forget all gradients; inside a step's hook only.

        From stage 1 on gradients cannot be missing: they are zero, and what weight decay changes is put back. Moments
        stay zero where the same gradients are forgotten in every step.
        """
        if self._tensors is None:
            super().forget_gradients(names)
        elif self._gradients is None:
            raise FedtorchError(NO_GRADIENTS)
        else:
            self._forgotten = frozenset(names)

    @contextmanager
    def _left_alone(self, has_decay: bool) -> Iterator[None]:
        """The step in here leaves what was forgotten as it is."""
        names, self._forgotten = sorted(self._forgotten), frozenset()
        if self._tensors is None or not names:
            yield
            return
        self._tensors.clear_gradients(names)
        held = self._tensors.masters(names) if has_decay else {}
        yield
        self._tensors.put(held)
