"""The key of tags that silos have in common: how they agree on it, and all that a silo needs it for.

All of it is where the key is: in the process that trains, or in the silo's gate, which answers in its place
(`policy.gate_tags`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from fedtorch.core.errors import TrustError
from fedtorch.core.prime import Words, added
from fedtorch.privacy.secure_sum import keys
from fedtorch.trust.kept import KeptFiles
from fedtorch.trust.keys import is_signed
from fedtorch.trust.merkle import LEAF
from fedtorch.trust.policy.notes import text_of
from fedtorch.trust.receipts import Signed
from fedtorch.trust.tags import TagKey, Whole, drawn_leaves


class SiloTags(Protocol):
    """The key, in this process or in the gate."""

    def wrong(
        self,
        exchange: str,
        parties: Sequence[str],
        leaves: int,
        numbers: Whole,
        tags: Words,
        places: Sequence[int] | None,
    ) -> tuple[int, int]:
        """(how many of these leaves are not the sum of the parties' parts, the place of the first of them, or 0).

        exchange: its name. leaves: of the whole sum. numbers, tags: of those that are looked at, laid end to end.
        places: which they are, ascending; None: all.

        Raises:
            ValueError, TrustError: a number is too large.
        """
        ...

    def drawn(self, record: Signed, leaves: int, share: float) -> list[int]:
        """Which of so many leaves are looked at once there is that record, ascending."""
        ...

    def keep(self, files: KeptFiles) -> None:
        """Keep the key, for `fedtorch verify`."""
        ...


@dataclass(frozen=True)
class OwnTags:
    """The key, in this process."""

    key: bytes
    """It."""
    meeting: str
    """Digest of what all parties have signed when they met."""

    def of(self, exchange: str) -> TagKey:
        """Factors and pads of an exchange."""
        return TagKey(self.key, exchange)

    def wrong(
        self,
        exchange: str,
        parties: Sequence[str],
        leaves: int,
        numbers: Whole,
        tags: Words,
        places: Sequence[int] | None,
    ) -> tuple[int, int]:
        """As `SiloTags` says."""
        key, at = self.of(exchange), range(leaves) if places is None else places
        pads = added([key.pads(party, leaves) for party in parties], leaves)[list(at)]
        if places is None:
            known = key.tags(numbers)
        else:
            parts = [numbers[n * LEAF : (n + 1) * LEAF] for n in range(len(places))]
            known = np.concatenate([key.tags(part, place) for part, place in zip(parts, places, strict=True)])
        differing = np.flatnonzero(added([known, pads], len(tags)) != tags)
        return len(differing), at[int(differing[0])] if len(differing) else 0

    def drawn(self, record: Signed, leaves: int, share: float) -> list[int]:
        """As `SiloTags` says."""
        return drawn_leaves(self.key, record.digest, leaves, share)

    def keep(self, files: KeptFiles) -> None:
        """As `SiloTags` says."""
        files.keep_key(self.meeting, self.key)


class KeyMeeting(Protocol):
    """A party's side of the meeting at which silos agree on the key, here or in the gate."""

    @property
    def word(self) -> str:
        """The public key by which others seal something for this party in this meeting, hexadecimal."""
        ...

    def agree(self, text: str, scope: str, signed: Mapping[int, str]) -> None:
        """Take the words of all parties that are there; see `OwnMeeting.agree`."""
        ...

    def draw(self) -> dict[int, str]:
        """Draw the key; rank -> box with it for each other silo, hexadecimal."""
        ...

    def open(self, first: int, box: str) -> None:
        """Take the key that another silo has drawn; see `OwnMeeting.open`."""
        ...

    @property
    def tags(self) -> SiloTags | None:
        """The key, once it is known."""
        ...


@dataclass
class OwnMeeting:
    """A party's side of it in this process."""

    federation: str
    """Name of the federation."""
    rank: int
    """This party's."""
    public: Mapping[int, bytes]
    """Rank -> public key of its party."""
    pair: keys.KeyPair = field(default_factory=keys.new_pair)
    """Keys of this meeting alone, by which a silo says something to another one that the server cannot read."""
    meeting: str = ""
    """Digest of what all have signed."""
    words: dict[int, bytes] = field(default_factory=dict)
    """Rank -> its word."""
    tags: OwnTags | None = None
    """The key, once it is known."""

    @property
    def word(self) -> str:
        """As `KeyMeeting` says."""
        return self.pair.public.hex()

    def agree(self, text: str, scope: str, signed: Mapping[int, str]) -> None:
        """Take the words of all parties that are there, each as its party has signed it.

        text: all that was agreed on, of whose digest each has signed a note. scope: that it is good for. signed: rank
        -> its note, as it was stored.

        Raises:
            TrustError: a party has not signed this text, or this party's own word is another one.
        """
        digest, words = hashlib.sha256(text.encode()).hexdigest(), json.loads(text)["nonces"]
        for rank in map(int, words):
            note = text_of(self.federation, scope, f"transcript/{rank}", digest)
            signature = bytes.fromhex(signed.get(rank, "").partition(" ")[0])
            if rank not in self.public or not is_signed(note, signature, self.public[rank]):
                raise TrustError(f"rank {rank} has not signed the words by which silos agree on a key")
        if words.get(str(self.rank)) != self.word:
            raise TrustError("the words by which silos agree on a key are of another meeting")
        self.meeting, self.words = digest, {int(rank): bytes.fromhex(word) for rank, word in words.items()}

    def draw(self) -> dict[int, str]:
        """As `KeyMeeting` says."""
        key = os.urandom(keys.BYTES)
        others = [rank for rank in self.words if rank not in (0, self.rank)]
        boxes = {rank: keys.sealed(self._box_key(rank), key, _about(self.rank, rank)).hex() for rank in others}
        self._take(key)
        return boxes

    def open(self, first: int, box: str) -> None:
        """Take the key that another silo has drawn.

        Raises:
            ValueError: it has not sealed this box for this party.
        """
        if first not in self.words or first in (0, self.rank):
            raise ValueError("no silo of this meeting has sealed it")
        self._take(keys.unsealed(self._box_key(first), bytes.fromhex(box), _about(first, self.rank)))

    def _take(self, key: bytes) -> None:
        if self.tags is not None:  # a box key seals one thing
            raise TrustError("the silos of this meeting have agreed on a key before")
        self.tags = OwnTags(key, self.meeting)

    def _box_key(self, other: int) -> bytes:
        """The key that this party and another one agree on; it seals one thing."""
        return keys.derived(keys.agreed(self.pair.secret, self.words[other]), f"key of tags/{self.meeting}")


def _about(sender: int, receiver: int) -> str:
    return f"key of tags from {sender} for {receiver}"
