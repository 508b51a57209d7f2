"""Updates in fewer bits (`exchange.bits`): the message that a client sends in place of its vector, and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from fedtorch.compression.compressors import Compressor, Feedback, with_feedback
from fedtorch.compression.four_bits import FourBits
from fedtorch.compression.payload import HEADER_BYTES
from fedtorch.compression.settings import ExchangeConfig
from fedtorch.compression.sixteen_bits import SixteenBits
from fedtorch.core.norms import norm_and_max
from fedtorch.core.places import Places
from fedtorch.core.state_keys import LEFT_OUT
from fedtorch.core.update import Report
from fedtorch.core.weights import Layout
from fedtorch.train.job import ClientJob

_FEEDBACK: dict[bool, Feedback] = {True: True, False: "none"}
SentPlaces = Callable[[str], Places | None]


def _all(client: str) -> Places | None:
    """Whole vectors travel."""
    return None


class Packing:
    """Packs an update between its client and the algorithm's sum, of which the algorithm knows nothing."""

    def __init__(self, settings: ExchangeConfig, layout: Layout, places: SentPlaces = _all) -> None:
        """layout: of the one vector that clients send. places: client -> which of its numbers travel in this round."""
        self.layout, self._rule, self._places = layout, _FEEDBACK[settings.error_feedback], places
        is_half = settings.bits == 16
        self._compressor: Compressor = SixteenBits() if is_half else FourBits(settings.rounding or "chance")
        self.message_bytes = self._bytes_of(layout)
        """of a message about a whole vector, the longest that there is"""

    @classmethod
    def of(cls, settings: ExchangeConfig, layout: Layout, places: SentPlaces = _all) -> Packing | None:
        """None: vectors travel as they are."""
        return None if settings.bits == 32 else cls(settings, layout, places)

    def length(self, client: str) -> int:
        """Bytes of the client's message in this round."""
        return self._bytes_of(self._part(client))

    @cached_property
    def vector(self) -> Tensor:
        """Where a client's update is made, shape (layout.size,); the same memory for all clients of the rank."""
        return torch.empty(self.layout.size, dtype=self.layout.dtype)

    def pack(self, job: ClientJob, report: Report) -> tuple[Tensor, Report]:
        """The message of the client's update, and its report, whose norms are those of what the message stands for.

        What rounding has lost goes into the client's state, with `exchange.error_feedback`: a number for each of the
        whole vector. Those that do not travel in this round keep what they had.
        """
        name, state, update, seed = job.client.name, job.state, job.outgoing.flat, job.seed("exchange")
        kept, places = state.tensors.get(LEFT_OUT), self._places(name)
        residual = kept
        if places is not None:
            update, residual = places.take(update), None if kept is None else places.take(kept)
        message, left = with_feedback(self._compressor, update, residual, self._rule, self._part(name), seed=seed)
        if left is not None and places is not None:
            left = places.spread(left) if kept is None else places.put(left, kept.clone())
        if left is not None:
            state.tensors[LEFT_OUT] = left
        norm, max_abs = norm_and_max(self.unpack(name, message))
        return message, replace(report, norm=norm, max_abs=max_abs)

    def unpack(self, client: str, message: Tensor) -> Tensor:
        """The vector that the client's message stands for, shape (layout.size,); raises PayloadError if it is none."""
        places, found = self._places(client), self._compressor.decompress(message, self._part(client))
        return found if places is None else places.spread(found)

    def _part(self, client: str) -> Layout:
        """The layout of what the client sends."""
        places = self._places(client)
        return self.layout if places is None else Layout(("sent",), ((len(places),),), self.layout.dtype)

    def _bytes_of(self, layout: Layout) -> int:
        return HEADER_BYTES + self._compressor.message_bytes(layout)
