"""Numbers of 16 bits, as bfloat16: the upper half of an fp32 number, rounded to the nearest and at a tie to the even.

Each keeps its sign, its eight bits of exponent and seven of its fraction, so it changes by at most 2^-8 of itself, and
whatever it was it needs no power of its stretch. All of these are exact in fp32, and so in the whole numbers of the sum
(`comm.sums.reproducible`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedtorch.compression.payload import PayloadError, assemble, body_of, code_of, read_header
from fedtorch.core.weights import Layout

HALVED = 16
"""Kind of such a message; those of `payload` and `four_bits` are below."""


@dataclass(frozen=True)
class SixteenBits:
    """Vectors to messages of 16 bits a number and back: a `Compressor`, for fp32 vectors on the CPU."""

    def compress(self, flat: Tensor, layout: Layout, *, seed: int = 0) -> Tensor:
        """The message (uint8) for `flat`, fp32, shape (layout.size,); nothing depends on `seed`.

        What is above the largest bfloat16, 3.39e38, or not finite, is not finite when it is read.
        """
        return assemble((HALVED, code_of(torch.bfloat16), layout.size, layout.size), [flat.to(torch.bfloat16)])

    def decompress(self, message: Tensor, layout: Layout) -> Tensor:
        """The vector that a message stands for, fp32, shape (layout.size,).

        Raises:
            PayloadError: it is of another kind or size.
        """
        if read_header(message) != (HALVED, code_of(torch.bfloat16), layout.size, layout.size):
            raise PayloadError(f"a message that is not one of {layout.size} numbers of 16 bits")
        return body_of(message, self.message_bytes(layout)).view(torch.bfloat16).to(torch.float32)

    def message_bytes(self, layout: Layout) -> int:
        """Two bytes for each number."""
        return 2 * layout.size
