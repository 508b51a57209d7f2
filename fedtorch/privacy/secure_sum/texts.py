"""A party's side of a secure sum as texts: those of the notes in which it publishes keys, shares and its answer."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from fedtorch.privacy.secure_sum.party import Party, PublicKeys, Window
from fedtorch.privacy.secure_sum.terms import SumTerms


class TextParty(Protocol):
    """A party that is here, or in a gate; its methods come once each and in this order, but for `mask`."""

    @property
    def terms(self) -> SumTerms:
        """Terms of the sum."""
        ...

    def keys(self) -> str:
        """Text of its note with its public keys."""
        ...

    def share(self, keys: Mapping[int, PublicKeys], signed: Mapping[int, str]) -> str:
        """Text of its note with its sealed shares.

        keys: of all parties. signed: rank -> the note with its keys as it stands in the store, where parties sign with
        keys of their own.
        """
        ...

    def open_shares(self, boxes: Mapping[int, bytes]) -> None:
        """Take the others' shares."""
        ...

    def mask(self, window: Window) -> None:
        """Hide the next window of this party's part, in place."""
        ...

    def mask_tags(self, tags: Window) -> Window:
        """Hide the tags of the part, after its last window."""
        ...

    def reveal(self, arrived: Collection[int]) -> str:
        """Text of its note with the shares that remove the masks of the sum of `arrived`."""
        ...


@dataclass(frozen=True)
class OwnParty:
    """A party that is in this process."""

    party: Party
    """It."""

    @property
    def terms(self) -> SumTerms:
        """Terms of the sum."""
        return self.party.terms

    def keys(self) -> str:
        """As `TextParty` says."""
        return json.dumps([key.hex() for key in self.party.keys()])

    def share(self, keys: Mapping[int, PublicKeys], signed: Mapping[int, str]) -> str:
        """As `TextParty` says."""
        return json.dumps({rank: box.hex() for rank, box in self.party.share(keys).items()})

    def open_shares(self, boxes: Mapping[int, bytes]) -> None:
        """As `TextParty` says."""
        self.party.open_shares(boxes)

    def mask(self, window: Window) -> None:
        """As `TextParty` says."""
        self.party.mask(window)

    def mask_tags(self, tags: Window) -> Window:
        """As `TextParty` says."""
        return self.party.mask_tags(tags)

    def reveal(self, arrived: Collection[int]) -> str:
        """As `TextParty` says."""
        answer = self.party.reveal(arrived)
        return json.dumps([{str(i): hex(share) for i, share in kind.items()} for kind in answer])
