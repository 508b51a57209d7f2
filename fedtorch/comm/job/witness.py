"""A witness: key and names by which a party signs what it sends, and what became of the last sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedtorch.comm.job.parties import Identity
from fedtorch.core.kept_vectors import KeptVectors
from fedtorch.core.prime import Words
from fedtorch.trust.policy.remote import GateKey
from fedtorch.trust.receipts import Signed
from fedtorch.trust.silo_tags import SiloTags
from fedtorch.trust.tags import Whole

Terms = Sequence[tuple[str, float]]
"""(client, its weight in the sum)."""


@dataclass
class Exchanged:
    """An exchange of a round, as one side saw it."""

    attempt: str
    """Names it among all of the run, also over restarts."""
    round: int
    """Of the run, from 0."""
    scale: int
    """Exponent of the whole numbers."""
    terms: Terms = ()
    """On a silo: of the sum, as the server told them."""
    receipts: dict[int, Signed] = field(default_factory=dict)
    """Rank -> what it has signed; on a silo its own."""
    total: Whole | None = None
    """On the server: the sum, int64, flat."""
    room: Whole | None = None
    """On the server: the memory of `total`, with room behind it for the tag of each of its leaves."""
    tags: Words | None = None
    """On the server: of the sum's leaves, with the pads of all that took part."""
    hashes: list[bytes] = field(default_factory=list)
    """On the server: of the leaves of `total`, where silos check it."""
    tree: Sequence[Sequence[bytes]] = ()
    """On the server: of hashes over the sum, once there is a record of it."""


@dataclass
class Witness:
    """A party that signs what it sends, in sums that silos may check."""

    identity: Identity
    """This party, and who the others are."""
    rank: int
    """Of this party."""
    meeting: str
    """Digest of what all parties have signed at the start."""
    tags: SiloTags | None
    """The key of tags that silos have in common; None: this is the server, which must not know it, or there are none.
    """
    has_records: bool = True
    """Does the server sign a record of each round, which silos look at? Otherwise there are receipts alone."""
    has_tags: bool = True
    """Are sums checked by tags? Otherwise every silo sends a part in every round, so that receipts show no cohort."""
    run: str = ""
    """Name of the run, by its first record; without records that of the meeting."""
    weights: str = ""
    """Root of what clients of the round under way have trained from."""
    own: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Client -> the numbers of its report that decide about its part, as text: what it is weighed by, and the largest
    number of its update; on the server of all, on a silo of its own. None where nothing of them does."""
    last: Exchanged | None = None
    """The exchange that was made last."""
    _kept: KeptVectors = field(default_factory=KeptVectors)
    """memory of exchanges before"""

    def lend(self, count: int) -> Whole:
        """Memory for so many numbers, from an exchange before: a first touch costs as much as what is done in it."""
        found: Whole = self.lend_vector(count, torch.int64).numpy()
        return found

    def lend_vector(self, count: int, dtype: torch.dtype) -> Tensor:
        """Memory for numbers of another dtype, one that numpy has, as `lend`."""
        return self._kept.lend(count, dtype)

    @property
    def party(self) -> str:
        """Name of this party."""
        return self.identity.parties[self.rank]

    @property
    def gate(self) -> GateKey | None:
        """The gate that has this party's key; None: it is here."""
        key = self.identity.key
        return key if isinstance(key, GateKey) else None

    def sign(self, kind: str, about: Mapping[str, Any]) -> Signed:
        """Sign a text of this run. about: what it says beside that."""
        return Signed.by(self.identity.key, kind, self.party, self._whole(about))

    def unsigned(self, kind: str, party: str, about: Mapping[str, Any]) -> Signed:
        """Make the text that another party signs, without its signature."""
        return Signed.unsigned(kind, party, self._whole(about))

    def _whole(self, about: Mapping[str, Any]) -> dict[str, Any]:
        members = self.identity.members
        common = {"federation": members.federation, "members": members.digest, "meeting": self.meeting, "run": self.run}
        return {**common, **about}

    def begin(self, place: str, round: int, scale: int) -> Exchanged:
        """Begin an exchange. place: names it among those of this meeting of the parties."""
        self.last = Exchanged(f"{self.meeting[:16]}.{place}", round, scale)
        return self.last

    def name_of(self, exchanged: Exchanged) -> str:
        """Name of an exchange, for tags; no other one has it."""
        return f"{self.run}/{exchanged.round}/{exchanged.attempt}/{self.weights}"

    @property
    def known_tags(self) -> SiloTags:
        """On a silo: the key of tags."""
        if self.tags is None:
            raise ValueError("the server has no key of tags")
        return self.tags
