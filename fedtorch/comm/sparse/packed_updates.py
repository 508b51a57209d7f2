"""Updates that came as messages: an algorithm sees the vectors that they stand for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from fedtorch.comm.sparse.messages import Decoded
from fedtorch.comm.sums.accepted import AcceptedUpdates
from fedtorch.comm.sums.checks import norm_problem
from fedtorch.comm.sums.reproducible import RunningSum, SumScale
from fedtorch.compression.payload import PayloadError, Sparse
from fedtorch.core.errors import RefusedUpdatesError
from fedtorch.core.norms import is_finite, norm_and_max
from fedtorch.core.update import Report, UpdateBuffer
from fedtorch.core.weights import Layout

_NO_WINDOWS = "updates in fewer bits come one by one, not side by side in windows; set exchange.bits to 32"


class PackedUpdates:
    """The accepted clients' updates on the server, taken one by one and read as each comes."""

    def __init__(
        self, messages: AcceptedUpdates, local: UpdateBuffer, decode: Callable[[str, Tensor], Decoded], layout: Layout
    ) -> None:
        """messages: as they are opened. local: of the server; it lends memory.

        decode(client, message): what it stands for, of the layout's size; raises PayloadError.
        """
        self._messages, self._local, self._decode = messages, local, decode
        self.layout, self.size, self.dtype = layout, layout.size, layout.dtype
        """of each vector"""

    @property
    def reports(self) -> tuple[Report, ...]:
        """The accepted reports, in client order."""
        return self._messages.reports

    @property
    def round(self) -> int:
        """Round of the run, from 0."""
        return self._messages.round

    @property
    def kept(self) -> dict[str, float]:
        """Client -> the share of its weight that counts."""
        return self._messages.kept

    def __len__(self) -> int:
        return len(self.reports)

    def __iter__(self) -> Iterator[Tensor]:
        """Each vector by itself, in report order.

        Raises:
            RefusedUpdatesError: one cannot be read, or is not what its client reported.
        """
        for report, (vector, problem) in zip(self.reports, self._each(), strict=True):
            if problem or vector is None:
                raise RefusedUpdatesError({report.client: problem})
            yield vector

    def weighted_sum(self, weights: Sequence[float], *, max_norm: float | None = None) -> Tensor:
        """Σ weights_i · vector_i, shape (size,), with the bits of `AcceptedUpdates.weighted_sum` of these vectors.

        max_norm: is not needed, as each vector is compared with its report.

        Raises:
            RefusedUpdatesError: some cannot be read, or are not what their clients reported; names all of them.
            ValueError: there is not one weight for each.
        """
        if len(weights) != len(self.reports):
            raise ValueError(f"{len(weights)} weights were given for {len(self.reports)} updates; expected one each")
        scale = SumScale.of(weights, [report.max_abs for report in self.reports])
        total, refused = RunningSum(self.size, scale, self._local.sums), dict[str, str]()
        for report, weight, (vector, problem) in zip(self.reports, weights, self._each(), strict=True):
            if problem:
                refused[report.client] = problem
            elif vector is not None and weight != 0 and not refused:
                total.add(0, vector, weight)
        if refused:
            raise RefusedUpdatesError(refused)
        out = self._local.sums.lend(self.size, self.dtype)
        total.write(out, scale)
        return out

    def is_finite(self, vector: Tensor) -> bool:
        """Is every element?"""
        return is_finite(vector)

    def each_window(self, see: Callable[[Tensor], None]) -> None:
        """Messages have no windows.

        Raises:
            ValueError: always.
        """
        raise ValueError(_NO_WINDOWS)

    def combine_windows(self, rule: Callable[[Tensor], Tensor]) -> Tensor:
        """Messages have no windows.

        Raises:
            ValueError: always.
        """
        raise ValueError(_NO_WINDOWS)

    def _each(self) -> Iterator[tuple[Tensor | None, str]]:
        """Each vector, or None, and what is wrong with it."""
        for report, message in zip(self.reports, self._messages, strict=True):
            try:
                found = self._decode(report.client, message)
            except PayloadError as error:
                yield None, f"its message cannot be read: {error}"
                continue
            vector = found.dense(self.dtype) if isinstance(found, Sparse) else found
            yield vector, norm_problem(report, *norm_and_max(vector))
