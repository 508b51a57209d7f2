"""A client's update: a pseudo-gradient of the shared parameters, and a few numbers about its round."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

import torch
from torch import Tensor

from fedtorch.core.kept_vectors import KeptVectors
from fedtorch.core.places import Places
from fedtorch.core.weights import Layout

RESTS = "failed:BudgetError"
"""The status of a client that takes no part as its privacy budget is used up (`privacy.max_epsilon`)."""
LOST = "failed:Lost"
"""The status of a client whose worker is lost."""
SIZE = "size"
"""The name in `Report.extra` of what a client weighs by in place of its examples, such as tokens."""


@dataclass(frozen=True)
class Report:
    """A client's numbers of one round. Everything but `client` and `status` is a number, so it may travel."""

    client: str
    """the client's name (travels as its index in the manifest)"""
    status: str = "ok"
    """`ok`, or `failed:<ExceptionName>`; never a message, which could quote the client's text. In the records also
    `refused`: the server would not have the update"""
    examples: int = 0
    """n_i, the training examples the client holds"""
    steps: int = 0
    """optimiser steps taken"""
    loss_first: float = 0.0
    """the first of the training losses that `algorithm.loss_reduction` measures: means over windows of steps, unless it
    says otherwise. 0 in all five if no step was taken"""
    loss_last: float = 0.0
    """the last of them"""
    loss_max: float = 0.0
    """the largest of them"""
    loss_min: float = 0.0
    """the smallest of them"""
    loss_mean: float = 0.0
    """their mean"""
    norm: float = 0.0
    """of the update; non-finite exactly when one of its elements is"""
    max_abs: float = 0.0
    """largest absolute value in the update; non-finite with `norm`"""
    seconds: float = 0.0
    """wall time of the client's round"""
    curve: tuple[float, ...] = ()
    """loss of every step, for the plots"""
    extra: Mapping[str, float] = field(default_factory=dict)
    """further numbers of the algorithm, e.g. `loss_reduction`, `penalty`, `normaliser`"""
    draws: int = 1
    """how often the client was drawn for the round; more than once only where the sampler draws with
    replacement. Does not travel: the server draws the clients, and fills it in"""

    @property
    def size(self) -> float:
        """How large the client is where that decides its weight: its examples, or what its task counts under `SIZE`."""
        return float(self.extra.get(SIZE, self.examples))

    @property
    def is_ok(self) -> bool:
        """Delivered, and every number of it is finite."""
        numbers = (getattr(self, name) for name in SCALARS)
        return self.status == "ok" and all(map(math.isfinite, (*numbers, *self.extra.values(), *self.curve)))

    def numbers(self) -> dict[str, int | float]:
        """The scalar fields, for logs; `draws` where it is not 1."""
        scalars = {name: getattr(self, name) for name in SCALARS}
        return {**scalars, **self.extra, **({"draws": self.draws} if self.draws != 1 else {})}


SCALARS = tuple(f.name for f in fields(Report) if f.name not in ("client", "status", "curve", "extra", "draws"))
"""The fields of a report that are single numbers, as they travel."""


@dataclass
class Update:
    """A client's pseudo-gradient and its report: what `client_update` may return in place of sending and a Report."""

    grad: Tensor | None
    """flat CPU vector over the exchanged layout, once per name in `Algorithm.travels.vectors`, laid end to end; a
    descent direction for the server: w_global − w_client for FedAvg. None if the client sends nothing"""
    report: Report
    """its numbers of the round"""


def _everywhere(client: str) -> None:
    return None


Lender = Callable[[int, torch.dtype, int], Tensor | None]
"""Gives a vector of a size and dtype, of which at most so many are asked for; None: it has none."""

_SUMS = 4  # vectors beside the updates: the next one's, and sums that an algorithm may have at a time


def _nobody(size: int, dtype: torch.dtype, most: int) -> Tensor | None:
    return None


class UpdateBuffer:
    """The updates of this rank's clients, kept until the server has decided on their weights.

    At most `memory_bytes` stay in memory (always at least one update), and one vector more, `blank`; further updates
    are written to files under `folder` and read back one at a time, so that a rank's memory does not grow with the
    clients it hosts.
    `clear` removes the files and keeps the memory for the next round. If writing fails (disk full),
    the OSError is the client's failure, not the round's. Where only some places of a client's update travel
    (`places`), only these are kept.
    """

    def __init__(
        self,
        size: int,
        dtype: torch.dtype,
        folder: Path,
        memory_bytes: int,
        *,
        places: Callable[[str], Places | None] | None = None,
        lengths: Callable[[str], int] | None = None,
        layout: Layout | None = None,
        lender: Lender | None = None,
        sum_dtype: torch.dtype | None = None,
    ) -> None:
        """Keep nothing yet.

        places: what travels of a client's update in this round, the same on all ranks; None, or where it returns None:
            all of it.
        lengths: how long a client's message is in this round, `size` at most, the same on all ranks; None: `size`.
        layout: of each vector in an update, where they are such; for the algorithm.
        lender: lends a vector for an update or a sum; None, or where it returns None: it is made here.
        sum_dtype: of what updates come to; None: theirs.
        """
        self.size, self.dtype, self.folder = size, dtype, folder
        self.device = torch.device("cpu")
        """where updates lie that stay in memory, of which they take as much there; may be changed before the first"""
        self.sum_dtype = dtype if sum_dtype is None else sum_dtype
        self.places, self.layout, self._lender = places or _everywhere, layout, lender or _nobody
        self._lengths = lengths
        self.sums = KeptVectors(self._make)
        """for what updates come to, and for the windows in which they do; their memory is kept for the next round's"""
        self.capacity = max(1, memory_bytes // max(1, size * dtype.itemsize))
        self._free: list[Tensor] = []
        self._blank: Tensor | None = None
        self._held: dict[str, Tensor | Path] = {}
        self._written = 0  # files so far, which number them

    def blank(self) -> Tensor:
        """A vector of shape (size,) to fill and then `put`; the same one until it is put. Holds what was left in it."""
        if self._blank is None:
            self._blank = self._free.pop() if self._free else self._new()
        return self._blank

    def _new(self) -> Tensor:
        """A vector for an update that stays in memory, where these lie."""
        if self.device.type != "cpu":
            return torch.empty(self.size, dtype=self.dtype, device=self.device)
        return self._make(self.size, self.dtype)

    def _make(self, size: int, dtype: torch.dtype) -> Tensor:
        """A vector, shape (size,), in which anything may be left."""
        wanted = size == self.size and dtype == self.dtype
        lent = self._lender(size, dtype, self.capacity + _SUMS) if wanted else None
        return torch.empty(size, dtype=dtype) if lent is None else lent

    def length(self, client: str) -> int:
        """How many numbers of a client's update travel."""
        if self._lengths is not None:
            return self._lengths(client)
        places = self.places(client)
        return self.size if places is None else len(places)

    def put(self, client: str, grad: Tensor) -> None:
        """Keep `grad`, shape (size,): a copy of it, or itself if it is the vector that `blank` gave; or what travels.

        One that is shorter, as `lengths` says, is kept as it is.

        Raises:
            ValueError: an update of this client is held already.
            OSError: it had to go to a file and could not; nothing is held of it.
        """
        if client in self._held:
            raise ValueError(f"an update of client `{client}` is held already; a client trains once in a round")
        in_memory = sum(isinstance(held, Tensor) for held in self._held.values())
        if (places := self.places(client)) is not None or len(grad) < self.size:
            part = grad if places is None else places.take(grad)
            self._held[client] = part if in_memory < self.capacity else self._write(part)
        elif in_memory < self.capacity:
            slot = self.blank()
            self._held[client] = slot if grad is slot else slot.copy_(grad)
            self._blank = None
        else:
            self._held[client] = self._write(grad)

    def get(self, client: str) -> Tensor:
        """Return what travels of the update of `client`; valid until the next `clear`, not to be changed."""
        held = self._held[client]
        if isinstance(held, Tensor):
            return held
        return torch.from_file(str(held), shared=False, size=self.length(client), dtype=self.dtype)

    def __contains__(self, client: str) -> bool:
        return client in self._held

    def _write(self, grad: Tensor) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._written += 1
        path = self.folder / f"update_{self._written}.bin"
        try:
            # numpy's own tofile says nothing when a disk is full at the last 4 KB (*measured*, numpy 2)
            path.write_bytes(grad.detach().cpu().numpy().data)
        except OSError:
            path.unlink(missing_ok=True)  # a part of an update on a full disk is of use to nobody
            raise
        return path

    def clear(self, only: Collection[str] | None = None) -> None:
        """Forget the updates, or those of `only` some, which need not all be there; a sum's memory may be used anew."""
        for client in list(self._held if only is None else self._held.keys() & set(only)):
            held = self._held.pop(client)
            if isinstance(held, Path):
                held.unlink(missing_ok=True)
            elif len(held) == self.size:
                self._free.append(held)
        self.sums.end_round()
