"""The weights that a run starts from, as an engine keeps them."""

from __future__ import annotations

from torch import Tensor

from fedtorch.core.errors import FedtorchError
from fedtorch.train.buffers import InitialBuffers


class InitialVectors:
    """w^0, flat, on the CPU: the parameters that travel, those that a client keeps, and those never trained."""

    initial_private: Tensor
    initial_frozen: Tensor
    _shared: Tensor | None  # on the CPU the module's own memory, until somebody asks for it or loads other weights
    _flat: Tensor
    _buffers: InitialBuffers

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

        The first may be the module's own memory, until other weights are loaded.
        """
        return [self._kept(), self.initial_private, self.initial_frozen, *self._buffers.values.values()]

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
