"""SumTerms that parties and server of one exchange agree on before it begins, and errors by which it fails."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedtorch.core.errors import FedtorchError

LEAST_PARTIES = 3
"""Of the sum of two parties, one of them knows the other's part."""


class BrokenProtocolError(FedtorchError):
    """A message that an honest party would not have sent, or not now."""


class TooFewPartiesError(FedtorchError):
    """Fewer parties than the threshold are left; nothing can be, or was, unmasked."""


@dataclass(frozen=True)
class SumTerms:
    """SumTerms of one exchange; another attempt at the same sum has others, and other keys."""

    run: str
    """Random, of this exchange; so that no derivation repeats, whatever the numbers below do."""
    round: int
    """Of the run, from 0."""
    attempt: str
    """Which attempt at the round's sum it is."""
    parties: tuple[int, ...]
    """The ranks that have a part of the sum, ascending."""
    threshold: int
    """So many answers remove the masks, and so many colluding parties see all others' parts."""
    common: str = ""
    """Words that all parties have signed before, where they sign: masks of parties with others do not cancel."""

    def __post_init__(self) -> None:
        count = len(self.parties)
        if count < LEAST_PARTIES or sorted(set(self.parties)) != list(self.parties):
            raise BrokenProtocolError(f"a secure sum of the parties {self.parties}; expected {LEAST_PARTIES} or more")
        if not count < 2 * self.threshold <= 2 * count:
            raise BrokenProtocolError(f"a threshold of {self.threshold} of {count} parties; expected more than half")

    @property
    def name(self) -> str:
        """In every derivation of the exchange."""
        return f"{self.run}/{self.round}/{self.attempt}" + (f"/{self.common}" if self.common else "")

    def place(self, party: int) -> int:
        """Where the party's shares are taken, from 1."""
        return self.parties.index(party) + 1


def threshold_of(share: float, count: int) -> int:
    """How many of `count` parties `share` of them are: rounded up, and always more than half."""
    return max(math.ceil(round(share * count, 9)), count // 2 + 1)
