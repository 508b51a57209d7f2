"""One party's side of Bonawitz et al. 2017 (Practical Secure Aggregation, figure 4; without signatures).

    0. `keys`        two fresh public keys
    1. `share`       b and the masking secret in shares, sealed for each of the others
    2. `open_shares` of those who shared; then `mask` its part, window by window, in order
    3. `reveal`      for every party one share: of b if its part has arrived, of its masking secret if not, never both

A party goes through these once and in this order; anything else is an error, so that a confused server cannot make it
answer twice. It keeps no state beyond the exchange.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedtorch.core.prime import added, negative, reduced
from fedtorch.privacy.secure_sum.keys import BYTES, KeyPair, agreed, derived, new_pair, sealed, unsealed
from fedtorch.privacy.secure_sum.shamir import split
from fedtorch.privacy.secure_sum.terms import BrokenProtocolError, SumTerms, TooFewPartiesError
from fedtorch.privacy.stream import Stream

SHARE_BYTES = 33  # a number of the field
_STAGES = ("keys", "share", "open_shares", "mask", "reveal")

Window = npt.NDArray[np.uint64]


class PublicKeys(NamedTuple):
    """Keys that a party publishes."""

    sealing: bytes
    """c: for the shares."""
    masking: bytes
    """s: for the masks."""


class Revealed(NamedTuple):
    """A party's answer: party -> its share of that party's secret. No party is in both."""

    own: Mapping[int, int]
    """Of b, of those whose part has arrived."""
    pairwise: Mapping[int, int]
    """Of the masking secret, of those whose part has not."""


def mask_key(secret: bytes, public: bytes, terms: SumTerms) -> bytes:
    """m_ij, the same for both of a pair."""
    return derived(agreed(secret, public), f"mask/{terms.name}")


def own_key(seed: bytes, terms: SumTerms, party: int) -> bytes:
    """The key of PRG(b_i)."""
    return derived(seed, f"own mask/{terms.name}/{party}")


class Party:
    """A holder of a part of the sum."""

    def __init__(self, number: int, terms: SumTerms, new: Callable[[], KeyPair] = new_pair) -> None:
        """number: one of `terms.parties`."""
        self.number, self.terms = number, terms
        self._sealing, self._masking, self._seed = new(), new(), os.urandom(BYTES)
        self._others: dict[int, PublicKeys] = {}
        self._held: dict[int, tuple[int, int]] = {}  # party -> shares of its b and of its masking secret
        self._masks: list[tuple[int, Stream]] = []
        self._stage = 0
        if number not in terms.parties:
            raise BrokenProtocolError(f"rank {number} is none of the parties {terms.parties}")

    def keys(self) -> PublicKeys:
        """The public keys."""
        self._enter("keys")
        return PublicKeys(self._sealing.public, self._masking.public)

    def share(self, keys: Mapping[int, PublicKeys]) -> dict[int, bytes]:
        """The sealed shares for each of the others. keys: of all that published theirs, its own too.

        Raises:
            TooFewPartiesError, BrokenProtocolError: of fewer parties than the threshold, or keys that cannot be.
        """
        self._enter("share")
        self._check(keys)
        published = [key for pair in keys.values() for key in pair]
        if len(set(published)) != len(published) or keys[self.number] != (self._sealing.public, self._masking.public):
            raise BrokenProtocolError("two parties publish one key, or this party's is another than it published")
        self._others = {party: pair for party, pair in keys.items() if party != self.number}
        terms, count = self.terms, len(self.terms.parties)
        secrets = (int.from_bytes(self._seed, "big"), int.from_bytes(self._masking.secret, "big"))
        shares = [split(secret, terms.threshold, count) for secret in secrets]
        boxes = {}
        for party in keys:
            mine = (shares[0][terms.place(party) - 1], shares[1][terms.place(party) - 1])
            if party == self.number:
                self._held[party] = mine
            else:
                text = b"".join(number.to_bytes(SHARE_BYTES, "big") for number in mine)
                boxes[party] = sealed(self._box_key(self.number, party), text, self._about(self.number, party))
        return boxes

    def open_shares(self, boxes: Mapping[int, bytes]) -> None:
        """Take the others' shares, sealed for this party; those who shared nothing have left, and are not masked with.

        Raises:
            TooFewPartiesError, BrokenProtocolError: of too few, of a stranger, or damaged.
        """
        self._enter("open_shares")
        self._check([*boxes, self.number])
        for party, box in boxes.items():
            if party not in self._others:
                raise BrokenProtocolError(f"shares came from rank {party}, which has published no keys")
            try:
                text = unsealed(self._box_key(party, self.number), box, self._about(party, self.number))
            except ValueError as error:
                raise BrokenProtocolError(str(error)) from None
            first, second = text[:SHARE_BYTES], text[SHARE_BYTES:]
            self._held[party] = (int.from_bytes(first, "big"), int.from_bytes(second, "big"))
        self._masks = [(1, Stream(own_key(self._seed, self.terms, self.number)))]
        for party in boxes:
            stream = Stream(mask_key(self._masking.secret, self._others[party].masking, self.terms))
            self._masks.append((1 if party > self.number else -1, stream))

    def mask(self, window: Window) -> None:
        """Hide the next window of this party's part, in place: v + PRG(b) + Σ_{j>i} PRG(m_ij) − Σ_{j<i} PRG(m_ij)."""
        if self._stage == _STAGES.index("mask"):
            self._stage += 1
        if self._stage != _STAGES.index("reveal"):
            raise BrokenProtocolError("a part was to be masked before the shares were opened, or after its end")
        for sign, stream in self._masks:
            apply(sign, stream, window)

    def mask_tags(self, tags: Window) -> Window:
        """Hide the tags of this party's part, numbers below 2^61 − 1, after its last window, with further words."""
        return with_words(self._masks, tags)

    def reveal(self, arrived: Collection[int]) -> Revealed:
        """The shares that remove the masks of the sum of `arrived`, the parties whose parts have.

        Raises:
            TooFewPartiesError, BrokenProtocolError: they are fewer than the threshold, or none of those who shared.
        """
        if self._stage == _STAGES.index("mask"):  # of a part without numbers
            self._stage += 1
        self._enter("reveal")
        self._masks = []
        self._check(arrived)
        if not set(arrived) <= set(self._held) or self.number not in arrived:
            raise BrokenProtocolError(f"the parts of {sorted(arrived)} are said to have arrived, which cannot be")
        own = {party: shares[0] for party, shares in self._held.items() if party in arrived}
        return Revealed(own, {party: shares[1] for party, shares in self._held.items() if party not in arrived})

    def _enter(self, stage: str) -> None:
        if _STAGES[self._stage : self._stage + 1] != (stage,):
            raise BrokenProtocolError(f"rank {self.number} was asked to `{stage}` a second time, or too early")
        self._stage += 1

    def _check(self, present: Collection[int]) -> None:
        if strangers := set(present) - set(self.terms.parties):
            raise BrokenProtocolError(f"{sorted(strangers)} are none of the parties {self.terms.parties}")
        if len(set(present)) < self.terms.threshold:
            raise TooFewPartiesError(
                f"{len(set(present))} of {len(self.terms.parties)} parties are left; {self.terms.threshold} are needed"
            )

    def _box_key(self, sender: int, receiver: int) -> bytes:
        other = receiver if sender == self.number else sender
        return derived(agreed(self._sealing.secret, self._others[other].sealing), self._about(sender, receiver))

    def _about(self, sender: int, receiver: int) -> str:
        return f"share/{self.terms.name}/{sender}/{receiver}"


def with_words(streams: Sequence[tuple[int, Any]], tags: Window) -> Window:
    """`tags` with the streams' next words added or subtracted, modulo 2^61 − 1; all of them are below that."""
    drawn = ((sign, reduced(stream.integers(len(tags)))) for sign, stream in streams)
    return added([tags, *(words if sign > 0 else negative(words) for sign, words in drawn)], len(tags))


def apply(sign: int, stream: Any, window: Window) -> None:
    """Add (or, with sign −1, subtract) the stream's next numbers, modulo 2^64, in place."""
    (np.add if sign > 0 else np.subtract)(window, stream.integers(len(window)), out=window)
