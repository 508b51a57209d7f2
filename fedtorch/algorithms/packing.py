"""Updates in fewer bits (`exchange.bits`): the message that a client sends in place of its vector, and back."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from fedtorch.compression.compressors import Feedback, with_feedback
from fedtorch.compression.four_bits import FourBits
from fedtorch.compression.payload import HEADER_BYTES
from fedtorch.compression.settings import ExchangeConfig
from fedtorch.core.norms import norm_and_max
from fedtorch.core.state_keys import LEFT_OUT
from fedtorch.core.update import Report
from fedtorch.core.weights import Layout
from fedtorch.train.job import ClientJob

_FEEDBACK: dict[bool, Feedback] = {True: True, False: "none"}


class Packing:
    """Packs an update between its client and the algorithm's sum, of which the algorithm knows nothing."""

    def __init__(self, settings: ExchangeConfig, layout: Layout) -> None:
        """layout: of the one vector that clients send."""
        self.layout, self._rule = layout, _FEEDBACK[settings.error_feedback]
        self._compressor = FourBits(settings.rounding)
        self.message_bytes = HEADER_BYTES + self._compressor.message_bytes(layout)
        """of every client's message"""

    @classmethod
    def of(cls, settings: ExchangeConfig, layout: Layout) -> Packing | None:
        """None: vectors travel as they are."""
        return None if settings.bits == 32 else cls(settings, layout)

    @cached_property
    def vector(self) -> Tensor:
        """Where a client's update is made, shape (layout.size,); the same memory for all clients of the rank."""
        return torch.empty(self.layout.size, dtype=self.layout.dtype)

    def pack(self, job: ClientJob, report: Report) -> tuple[Tensor, Report]:
        """The message of the client's update, and its report, whose norms are those of what the message stands for.

        What rounding has lost goes into the client's state, with `exchange.error_feedback`.
        """
        state, update, seed = job.state, job.outgoing.flat, job.seed("exchange")
        residual = state.tensors.get(LEFT_OUT)
        message, left = with_feedback(self._compressor, update, residual, self._rule, self.layout, seed=seed)
        if left is not None:
            state.tensors[LEFT_OUT] = left
        norm, max_abs = norm_and_max(self.unpack(message))
        return message, replace(report, norm=norm, max_abs=max_abs)

    def unpack(self, message: Tensor) -> Tensor:
        """The vector that a message stands for, shape (layout.size,); raises PayloadError if it is none."""
        return self._compressor.decompress(message, self.layout)
