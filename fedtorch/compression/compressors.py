"""Fewer bytes per update: top-k or quantised, with what was not sent kept for later (error feedback).

FedAssistant, Algorithm 1 and its origin, deep gradient compression (DGC, Lin et al. 2018); QSGD (Alistarh et al.
2017). A compressor turns a flat vector into a message (`payload`) and a message into a vector; error feedback works
with any of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from fedtorch.compression.payload import (
    DTYPES,
    QUANTISED,
    Encoding,
    PayloadError,
    Sparse,
    Values,
    assemble,
    body_of,
    code_of,
    decode,
    encode,
    num_bytes,
    read_header,
)
from fedtorch.compression.slices import Selection
from fedtorch.compression.topk import count_of, largest
from fedtorch.core.weights import Layout

Feedback = Literal[True, "literal", "none"]


class Compressor(Protocol):
    """Flat vectors to messages and back; the same vector, layout and seed give the same message on any rank."""

    def compress(self, flat: Tensor, layout: Layout, *, seed: int = 0) -> Tensor:
        """The message (uint8) for `flat`, shape (layout.size,), which is not changed."""
        ...

    def decompress(self, message: Tensor, layout: Layout) -> Tensor:
        """The dense vector of a message; PayloadError if it is not one of this layout."""
        ...

    def message_bytes(self, layout: Layout) -> int:
        """Bytes of every message of this layout, without the header."""
        ...


@dataclass(frozen=True)
class TopK:
    """The numbers of largest magnitude, exactly as many as the ratio says."""

    ratio: float = 0.02
    """k as a share of the numbers."""
    scope: Literal["tensor", "global"] = "tensor"
    """k per tensor (as DGC) or over the whole vector."""
    dense_1d: bool = False
    """Send tensors with one dimension whole (DGC's code does; per tensor only)."""
    selection: Literal["exact", "sampled"] = "sampled"
    """`sampled` is faster and gives the same."""
    encoding: Encoding = "auto"
    """How indices travel; `auto`: in the fewer bytes."""
    values: Values = "fp32"
    """dtype on the wire; what rounding to 16 or 8 bits loses stays in the residual. int8: whole numbers of a power of
    two per 4,096 places, rounded by chance so that the mean is the number"""

    def counts(self, layout: Layout) -> list[int]:
        """k of every tensor; with `scope: global` one number."""
        if self.scope == "global":
            return [count_of(self.ratio, layout.size)]
        return [
            size if self.dense_1d and len(shape) <= 1 else count_of(self.ratio, size)
            for shape, size in zip(layout.shapes, layout.sizes, strict=True)
        ]

    def kept(self, layout: Layout) -> Selection:
        """Vectors that `compress` keeps, for owners of slices."""
        wide = layout.dtype == torch.float64 and self.values == "fp32"
        starts = (0,) if self.scope == "global" else layout.offsets
        return Selection(starts, tuple(self.counts(layout)), torch.float64 if wide else DTYPES[self.values])

    def select(self, flat: Tensor, layout: Layout) -> Sparse:
        """The selected numbers of `flat`, values in its own dtype."""
        sampled = self.selection == "sampled"
        if self.scope == "global":
            indices, values = largest(flat, count_of(self.ratio, layout.size), sampled=sampled)
            return Sparse(layout.size, indices.to(torch.int32), values)
        places = zip(layout.offsets, layout.sizes, self.counts(layout), strict=True)
        found = [(start, *largest(flat[start : start + size], k, sampled=sampled)) for start, size, k in places]
        none = torch.zeros(0, dtype=torch.int32, device=flat.device)
        indices = torch.cat([none, *(own.add_(start).to(torch.int32) for start, own, _ in found)])
        return Sparse(layout.size, indices, torch.cat([flat[:0], *(values for *_, values in found)]))

    def compress(self, flat: Tensor, layout: Layout, *, seed: int = 0) -> Tensor:
        """Compress a vector; `seed` is for int8. fp64 vectors (of the papers' oracles) stay, unless 8 or 16 bit."""
        wide = flat.dtype == torch.float64 and self.values == "fp32"
        return encode(self.select(flat, layout), self.encoding, None if wide else self.values, seed=seed)

    def decompress(self, message: Tensor, layout: Layout) -> Tensor:
        """Return the vector that a message stands for."""
        sparse = decode(message, layout.size)
        if sparse.indices.numel() != sum(self.counts(layout)):
            raise PayloadError(
                f"a sparse message of {sparse.indices.numel()} numbers; expected {sum(self.counts(layout))}"
            )
        return sparse.dense(layout.dtype)

    def message_bytes(self, layout: Layout) -> int:
        """k values, and k int32 indices or a bitmap; with int8 a byte for every 4,096 places."""
        wide = layout.dtype == torch.float64 and self.values == "fp32"
        item_bytes = 8 if wide else DTYPES[self.values].itemsize
        return num_bytes(layout.size, sum(self.counts(layout)), self.encoding, item_bytes)


@dataclass(frozen=True)
class Quantise:
    """Every number as one signed byte, in steps of its bucket's scale / levels.

    QSGD, section 3.1: `scale: norm` with stochastic rounding is unbiased, E[Q(v)] = v. `scale: max` with `nearest` is
    plain 8-bit quantisation.
    """

    levels: int = 127
    """Steps on each side of zero."""
    bucket: int = 2048
    """Consecutive numbers of the flat vector that have a scale of their own."""
    scale: Literal["max", "norm"] = "max"
    """A bucket's scale: its largest magnitude, or its Euclidean norm."""
    rounding: Literal["stochastic", "nearest"] = "stochastic"
    """To the step below or above by chance, so that the mean is the number, or to the nearest."""

    def compress(self, flat: Tensor, layout: Layout, *, seed: int = 0) -> Tensor:
        """Compress a vector; `seed` decides the roundings."""
        buckets = self._buckets(flat.to(torch.float32))
        scales = buckets.abs().amax(1) if self.scale == "max" else torch.linalg.vector_norm(buckets, dim=1)
        steps = buckets * (self.levels / torch.where(scales > 0, scales, 1.0)).unsqueeze(1)
        if self.rounding == "stochastic":
            generator = torch.Generator().manual_seed(seed)
            steps = (steps + torch.rand(steps.shape, generator=generator).to(steps.device)).floor_()
        else:
            steps = steps.round_()
        codes = steps.clamp_(-self.levels, self.levels).to(torch.int8).view(-1)[: flat.numel()]
        numbers = (QUANTISED, code_of(torch.float32), flat.numel(), self.levels)
        return assemble(numbers, [scales, codes])

    def decompress(self, message: Tensor, layout: Layout) -> Tensor:
        """Return the vector that a message stands for."""
        kind, code, size, levels = read_header(message)
        if (kind, code, size, levels) != (QUANTISED, code_of(torch.float32), layout.size, self.levels):
            raise PayloadError(f"a message of kind {kind} with {size} numbers in {levels} levels; expected others")
        count = -(-size // self.bucket)
        body = body_of(message, 4 * count + size)
        scales, codes = body[: 4 * count].view(torch.float32), body[4 * count :].view(torch.int8)
        steps = self._buckets(codes.to(layout.dtype)) * (scales / self.levels).to(layout.dtype).unsqueeze(1)
        return steps.view(-1)[:size].clone()

    def message_bytes(self, layout: Layout) -> int:
        """One byte per number and one fp32 scale per bucket."""
        return layout.size + 4 * -(-layout.size // self.bucket)

    def _buckets(self, flat: Tensor) -> Tensor:
        missing = -flat.numel() % self.bucket
        return torch.nn.functional.pad(flat, (0, missing)).view(-1, self.bucket)


def with_feedback(
    compressor: Compressor, grad: Tensor, residual: Tensor | None, rule: Feedback, layout: Layout, *, seed: int = 0
) -> tuple[Tensor, Tensor | None]:
    """(message, new residual) of a client's gradient or the server's mean, vectors flat of shape (layout.size,).

    True: e ← e + g; send C(e); e ← e − C(e), so that nothing is ever lost (DGC, and the only sensible reading of
    FedAssistant's Algorithm 1). literal: as Algorithm 1 is printed, e keeps what was sent, so the same coordinates
    are sent again and again. none: send C(g) and forget the rest; the residual is None.
    """
    if rule == "none":
        return compressor.compress(grad, layout, seed=seed), None
    total = grad.clone() if residual is None else residual + grad
    message = compressor.compress(total, layout, seed=seed)
    if rule == "literal":
        return message, total
    return message, total.sub_(compressor.decompress(message, layout))


def give_back(residual: Tensor, sent: Sparse, step: Tensor) -> Tensor:
    """A client's residual with what it had sent put back wherever the server's step left it out (gTop-k's rule).

    step: G, dense; a coordinate at which it is exactly zero counts as left out. That loses nothing: where the
    clients' numbers cancel, they are put back and cancel again.
    """
    places = sent.indices.long()
    missing = step[places] == 0
    out = residual.clone()
    out[places[missing]] += sent.values[missing].to(out.dtype)
    return out
