"""Vectors that a client hands over in a round: a place for each, and which of them were filled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from fedtorch.core.errors import UpdateError
from fedtorch.core.norms import difference
from fedtorch.core.update import Report, Update

MESSAGE = "message"
"""The name under which an algorithm that sends messages in place of vectors sends a client's one."""


class Outgoing(Mapping[str, Tensor]):
    """One client's update while its algorithm makes it, in the memory that it is sent from.

    1. The algorithm fills every place once, through `ClientJob.send` and what stands on top of it.
    2. `close` takes what `client_update` returned and refuses an update of which a part was not sent. What an earlier
       client left in the memory is therefore never sent for this one.
    """

    def __init__(self, flat: Tensor, names: Sequence[str], algorithm: str) -> None:
        self.flat = flat
        """all places end to end; on the CPU, or where the engine computes"""
        self.algorithm = algorithm
        """name of the algorithm's class, for errors"""
        # `data` gives each place a count of its own of the writes to it, see `_adopt`
        self._places = {name: part.data for name, part in zip(names, flat.chunk(max(1, len(names))), strict=False)}
        self._versions = {name: place._version for name, place in self._places.items()}
        self._sent: set[str] = set()
        self._measured: tuple[float, float] | None = None
        self._at: tuple[int, ...] = ()

    def __getitem__(self, name: str) -> Tensor:
        return self._places[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    @property
    def is_sent(self) -> bool:
        """Is there an update? Not where nothing is exchanged."""
        return bool(self._places) and not self.missing

    @property
    def missing(self) -> list[str]:
        """Names of vectors that were not sent yet."""
        return [name for name in self._places if name not in self._sent]

    def claim(self, name: str, like: Tensor) -> Tensor:
        """The place of `name`, which counts as sent; to be filled at once with something like `like`.

        Raises:
            UpdateError: there is no such vector, it has another shape or dtype, or it was sent already.
        """
        if name not in self._places:
            known = ", ".join(f"`{known}`" for known in self._places) or "nothing"
            raise UpdateError(f"{self.algorithm} sent `{name}`, but its clients send {known}")
        place = self._places[name]
        if like.shape != place.shape or like.dtype != place.dtype:
            raise UpdateError(
                f"{self.algorithm} sent `{name}` with shape {tuple(like.shape)} and {like.dtype}; expected "
                f"{tuple(place.shape)} and {place.dtype}"
            )
        if name in self._sent:
            raise UpdateError(f"{self.algorithm} sent `{name}` twice; send it once, when it is complete")
        self._sent.add(name)
        return place

    def subtract(self, name: str, received: Tensor, trained: Callable[[Tensor], Tensor]) -> Tensor:
        """Fill the place of `name` with received − trained(place), where `trained` may have used it; raises as `claim`.

        The difference is measured in the same pass, see `measured`.
        """
        place = self.claim(name, received)
        taken = trained(place)
        if taken.shape != place.shape or taken.dtype != place.dtype:
            torch.sub(received, taken, out=place)  # which says what is wrong, or widens
        else:
            self._measured = difference(received, taken, place)
            self._at = self._written
        return place

    @property
    def measured(self) -> tuple[float, float] | None:
        """`norm_and_max` of the update, if that is one difference and nobody has written to it since; else None.

        Writes through numpy are not noticed.
        """
        return self._measured if len(self._places) == 1 and self._at == self._written else None

    @property
    def _written(self) -> tuple[int, ...]:
        return (self.flat._version, *(place._version for place in self._places.values()))

    def put(self, name: str, tensor: Tensor) -> None:
        """Copy `tensor` to the place of `name`; raises as `claim`."""
        self.claim(name, tensor).copy_(tensor)

    def close(self, returned: Report | Update) -> Report:
        """The report in what `client_update` returned; now the update is complete, or there is none.

        Raises:
            UpdateError: a vector was not sent.
        """
        report = self._adopt(returned) if isinstance(returned, Update) else returned
        if not isinstance(report, Report):
            raise UpdateError(f"{self.algorithm}.client_update returned {type(report).__name__}; return a Report")
        is_nothing = isinstance(returned, Update) and returned.grad is None
        if self.missing and not is_nothing:
            names = ", ".join(f"`{name}`" for name in self.missing)
            raise UpdateError(f"{self.algorithm} did not send {names}; use job.send or job.send_difference")
        return report

    def _adopt(self, update: Update) -> Report:
        """Take over an update that was returned in place of being sent: a vector of its own, or these places."""
        if update.grad is None:
            self._sent.clear()
        elif update.grad.data_ptr() == self.flat.data_ptr():
            self._sent |= {name for name, place in self._places.items() if place._version != self._versions[name]}
        elif update.grad.shape != self.flat.shape:
            shape, expected = tuple(update.grad.shape), tuple(self.flat.shape)
            raise UpdateError(f"{self.algorithm} returned an Update whose grad has shape {shape}, expected {expected}")
        else:
            self.flat.copy_(update.grad)
            self._sent |= set(self._places)
        return update.report
