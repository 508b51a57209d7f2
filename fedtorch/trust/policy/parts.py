"""Payloads as a gate makes them: of updates that it has measured, and hidden by masks whose secrets it alone has.

The process that trains says which sum is asked for. The gate makes the whole numbers again of the updates that it has
kept, masks them where there is a secure sum, and signs the digest of what it has made; other bytes are refused by the
server, which compares them with the receipt.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fedtorch.core.errors import PolicyError
from fedtorch.core.kernels import Fold
from fedtorch.core.prime import Words
from fedtorch.privacy.secure_sum.party import Party, PublicKeys
from fedtorch.privacy.secure_sum.terms import SumTerms
from fedtorch.privacy.secure_sum.texts import OwnParty
from fedtorch.trust.keys import is_signed
from fedtorch.trust.merkle import leaves, root_of
from fedtorch.trust.policy.notes import text_of
from fedtorch.trust.tags import TagKey

Vector = npt.NDArray[np.floating]
WAYS = ("sum", "masked", "updates")
"""How a part leaves: as one sum of whole numbers, the same under masks, or as updates as they are."""
SALT_BYTES = 32


def salted(salt: bytes, hashes: Sequence[bytes]) -> str:
    """Digest of what was sent, which says nothing of it to those who have not the salt. hashes: of its leaves."""
    return hashlib.sha256(salt + root_of(hashes or leaves(np.empty(0, np.int64)))).hexdigest()


@dataclass
class OutgoingPart:
    """A part that is about to leave, window by window."""

    way: str
    """One of `WAYS`."""
    updates: Sequence[Vector]
    """That it is made of, as they were measured."""
    factors: Sequence[float]
    """Factor of each of them in a sum: its weight · 2^exponent, which makes whole numbers."""
    size: int
    """Numbers of each."""
    party: Party | None = None
    """Masks it."""
    hashes: list[bytes] = field(default_factory=list)
    """Hashes of the leaves that have left."""
    key: TagKey | None = None
    """Makes its tags."""
    name: str = ""
    """Name of this party, whose pads they have."""
    tags: list[Words] = field(default_factory=list)
    """Tags of the leaves that have left, before their pads."""
    left: dict[int, int] = field(default_factory=dict)
    """Place of an update, or 0 for a sum -> numbers of it that have left."""

    def window(self, count: int, place: int = 0) -> npt.NDArray[Any]:
        """The next `count` numbers as they leave: float64, int64 under masks, or as the update at this place has them.

        Raises:
            ValueError: there are no such numbers.
        """
        start = self.left.get(place, 0)
        if not 0 < count <= self.size - start:
            raise ValueError(f"{count} numbers from {start} on of {self.size}")
        self.left[place] = start + count
        if self.way != "updates" or self.key is not None:  # of an update too, of which silos check the whole numbers
            found = self._whole(start, count)
        if self.way == "updates":
            found = self.updates[place][start : start + count]
        self.hashes.extend(leaves(found))
        return found

    def _whole(self, start: int, count: int) -> npt.NDArray[Any]:
        total = np.zeros(count)
        parts = [update[start : start + count] for update in self.updates]
        if parts:
            Fold(parts, self.factors, total, fresh=True).add(0, count)
        if self.way != "masked" and self.key is None:
            return total
        whole = total.astype(np.int64)
        if self.key is not None:
            self.tags.append(self.key.tags(whole, first=sum(map(len, self.tags))))
        if self.way != "masked":
            return total
        if self.party is None:
            raise ValueError("there are no masks")
        self.party.mask(whole.view(np.uint64))
        return whole

    def finish(self) -> tuple[str, bytes]:
        """Digest of all that was made, salted, and the salt.

        Raises:
            ValueError: something of it has not left.
        """
        places = range(len(self.updates)) if self.way == "updates" else (0,)
        if any(self.left.get(place, 0) != self.size for place in places):
            raise ValueError("a part of which some numbers have not left")
        salt = secrets.token_bytes(SALT_BYTES)
        return salted(salt, self.hashes), salt

    def hidden_tags(self) -> Words:
        """Its tags as they leave, with pads and under masks; none where it has no key."""
        if self.key is None or not self.tags:
            return np.empty(0, np.uint64)
        found = self.key.padded(self.tags, self.name)
        return found if self.party is None or self.way != "masked" else self.party.mask_tags(found)


def factors_of(weights: Sequence[float], exponent: int) -> list[float]:
    """Factors at which updates become whole numbers.

    Raises:
        ValueError: one of them is not finite.
    """
    found = [math.ldexp(weight, exponent) for weight in weights]
    if not all(map(math.isfinite, found)):
        raise ValueError("a weight that is not finite")
    return found


@dataclass
class MaskedSum:
    """This side of a secure sum, in the gate; its secrets leave it as shares that are sealed for others alone."""

    federation: str
    """Name of the federation."""
    rank: int
    """Its number in the job."""
    public: Mapping[int, bytes]
    """Rank -> public key of its party, by this site's own list."""
    terms: SumTerms
    """As the server has told them."""
    scope: str = ""
    """Job and meeting, by the note with this side's keys; the others' keys are signed for the same."""
    said: list[str] = field(default_factory=list)
    """Texts of notes that this side may sign: its keys, its shares, its answer."""

    def __post_init__(self) -> None:
        self.party = Party(self.rank, self.terms)
        self._texts = OwnParty(self.party)

    def do(self, step: str, about: Any) -> dict[str, Any]:
        """Take a step of `privacy.secure_sum.party`: keys, share, open, reveal; the text of its note.

        Raises:
            BrokenProtocolError, TooFewPartiesError: as the party raises it. PolicyError: a key is not its party's.
        """
        if step == "open":
            self._texts.open_shares({int(rank): bytes.fromhex(box) for rank, box in about.items()})
            return {}
        if step == "keys":
            text = self._texts.keys()
        elif step == "share":
            text = self._texts.share(self._signed(about), about)
        else:
            text = self._texts.reveal([int(rank) for rank in about])
        self.said.append(text)
        return {"text": text}

    def _signed(self, about: Mapping[str, str]) -> dict[int, PublicKeys]:
        """Keys of all parties, each as its party has signed it. about: rank -> its note, as it stands in the store."""
        found = {}
        for name, text in about.items():
            rank, (signature, _, value) = int(name), text.partition(" ")
            key = f"secure sum/{self.terms.attempt}/keys/{rank}"
            note = text_of(self.federation, self.scope, key, value)
            public = self.public.get(rank)
            if public is None or not is_signed(note, bytes.fromhex(signature), public):
                raise PolicyError("the gate masks with no keys that their party has not signed")
            sealing, masking = json.loads(value)
            found[rank] = PublicKeys(bytes.fromhex(sealing), bytes.fromhex(masking))
        return found
