"""The weights of an engine: those that a run starts from, and how others are loaded and read."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedtorch.core.errors import FedtorchError
from fedtorch.core.weights import aligned
from fedtorch.train.buffers import InitialBuffers
from fedtorch.train.pinned_copy import PinnedCopier


class EngineWeights:
    """Flat weights of an engine: w^0 on the CPU, and the present ones, as views of which the module has them."""

    device: torch.device
    initial_private: Tensor
    """w^0 of the parameters that a client keeps"""
    initial_frozen: Tensor
    """w^0 of those never trained"""
    _shared: Tensor | None  # on the CPU the module's own memory, until somebody asks for it or loads other weights
    _flat: Tensor
    _flat_private: Tensor
    _buffers: InitialBuffers
    _copier: PinnedCopier
    _loaded: object | None = None  # version of the shared weights that were loaded last, and not trained since

    @property
    def initial_shared(self) -> Tensor:
        """Initial values of the parameters that travel.

        Raises:
            FedtorchError: `forget_initial` was called.
        """
        self._part()
        return self._kept()

    @initial_shared.setter
    def initial_shared(self, flat: Tensor) -> None:
        self._shared = flat

    def initial(self) -> list[Tensor]:
        """All of w^0, as CPU tensors to be broadcast: shared, private, frozen, and the floating-point buffers.

        The first may be the module's own memory, until other weights are loaded. Where the module has no values the
        first three have none either, until `take_initial` has brought them.
        """
        return [self._kept(), self.initial_private, self.initial_frozen, *self._buffers.values.values()]

    def take_initial(self, parts: Sequence[Tensor]) -> None:
        """Make these tensors w^0, which are as those of `initial` and not written to; `adopt_initial` loads them."""
        self._shared, self.initial_private, self.initial_frozen, *buffers = parts
        for own, value in zip(self._buffers.values.values(), buffers, strict=True):
            own.copy_(value)

    def forget_initial(self) -> None:
        """Nobody will ask for `initial_shared` again: its memory is let go of."""
        self._shared = None

    def _part(self) -> None:
        """Keep a part as a copy if it is the module's own memory, to which others are about to write."""
        kept = self._shared
        if kept is not None and kept.numel() and kept.data_ptr() == self._flat.data_ptr():
            self._shared = kept.clone()

    def _kept(self) -> Tensor:
        if self._shared is None:
            raise FedtorchError(
                "the initial weights were let go of, as `limits.reads_initial` of the algorithm is False; set it to "
                "True in the class that asks for them (a second run of the same components needs new ones)"
            )
        return self._shared

    @property
    def flat(self) -> Tensor:
        """The present shared weights, flat; may share memory with the module."""
        return self._flat

    @property
    def flat_private(self) -> Tensor:
        """The present private weights, flat; may share memory with the module."""
        return self._flat_private

    def snapshot(self, out: Tensor | None = None) -> Tensor:
        """A copy of the present shared weights, flat, on the CPU; in `out` if it is given."""
        return self._copier.download(self.flat, out)

    def snapshot_private(self) -> Tensor:
        """Copy the private weights."""
        return self._copier.download(self.flat_private)

    @torch.no_grad()
    def difference(self, start: Tensor, out: Tensor | None = None) -> Tensor:
        """`start` − the present shared weights, flat, on the CPU as `start` is; in `out` if it is given."""
        return torch.sub(start, self.on_cpu(out), out=out)

    def on_cpu(self, out: Tensor | None = None) -> Tensor:
        """The present shared weights, flat: the module's own memory if that is the CPU's, else in `out` if given."""
        flat = self.flat.detach()
        return flat if flat.device.type == "cpu" else self._copier.download(flat, out)

    def beside(self, out: Tensor) -> Tensor:
        """The present shared weights, flat, where `out` lies: the module's own memory if that is there, or in `out`."""
        return self.flat.detach() if out.device.type != "cpu" else self.on_cpu(out)

    def placed(self, flat: Tensor) -> Tensor:
        """The flat vector on this engine's device, to be computed with: itself if it is there, or a copy, `aligned`."""
        if self.device.type == "cpu":
            return aligned(flat)
        if flat.device == self.device:
            return flat
        self._copier.upload(flat, there := torch.empty_like(flat, device=self.device))
        return there

    @torch.no_grad()
    def load(self, shared: Tensor, private: Tensor | None = None, *, version: object | None = None) -> None:
        """Set all weights: `shared` flat over the shared layout, `private` or else the initial private ones.

        version: of the shared ones, an object for each; those that were loaded last are not copied once more. Whoever
        gives one has not changed the module's shared weights since, and loads no others as the same version.
        """
        is_there, self._loaded = version is not None and version is self._loaded, None  # none where a copy fails
        if not is_there:
            if shared is not self._shared:
                self._part()
            self._copier.upload(shared, self.flat)
        self._loaded = version
        self._copier.upload(self.initial_private if private is None else private, self.flat_private)
        self._buffers.put_back()
