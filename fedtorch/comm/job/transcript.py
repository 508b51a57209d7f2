"""A paper that all parties sign when they meet: who is there, what is run, and a word that each has drawn for it.

1. With its note for the first comparison each party sends a word that it has just drawn; the verdict has all words.
2. Each party signs what was agreed on, words and all, and the server passes the signatures on.
3. Each party checks the others' signatures, and from then on signs notes that are good for this meeting alone.

So a silo need not believe the server about the others: none of them can be invented, left out of the paper, shown
another run, or be there by what it said in an earlier one.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedtorch.comm.job.oaths import Oath
from fedtorch.comm.job.parties import PartySignature, packed, unpacked
from fedtorch.comm.job.rendezvous import Rendezvous
from fedtorch.comm.job.store import Store
from fedtorch.core.errors import PreflightError

_NONCE = "nonce"
_WEIGHTS = "the weights that clients have trained from"


@dataclass(frozen=True)
class Transcript:
    """This party's side of it."""

    store: Store
    """Whose notes are signed."""
    rank: int
    """This party's."""
    signature: PartySignature
    """As it is before anything was agreed on."""
    nonce: str = field(default_factory=lambda: secrets.token_hex(16))
    """The word of this party."""

    @classmethod
    def of(cls, store: Store, rank: int) -> Transcript | None:
        """None: parties have no keys of their own."""
        signature = store.signature
        return cls(store, rank, signature) if isinstance(signature, PartySignature) else None

    @property
    def note(self) -> dict[str, str]:
        """Goes with this rank's note for the comparison."""
        return {_NONCE: self.nonce}

    @property
    def facts(self) -> dict[str, str]:
        """Are compared with the others'."""
        return {"members": self.signature.known.members.digest}

    def sign(
        self, rendezvous: Rendezvous, facts: Mapping[str, str], verdict: Mapping[str, Any], lost: Collection[int]
    ) -> None:
        """Sign it with all others that are there.

        facts: as they were compared. verdict: of the comparison. lost: ranks that are away.

        Raises:
            PreflightError: the server does not pass on what the parties have said.
            ForgedNoteError: a party has not signed the same.
        """
        present = {rank: name for rank, name in self.signature.known.parties.items() if rank not in lost}
        agreed = self.digest(facts, self._nonces(verdict.get(f"{_NONCE}s"), present))
        own = self.signature.sign(f"transcript/{self.rank}", agreed)
        _, answered = rendezvous.barrier("transcript", 0, mail=own.encode(), answer=packed)
        self._check(answered, agreed, present)
        self.store.signature = self.signature
        self.store.bind(agreed)

    def oath(self, key: str, text: str) -> Oath:
        """This party's side of a meeting at which all swear to `text`, good among those who met at the start."""
        signature = self.store.signature
        assert isinstance(signature, PartySignature)
        return Oath(signature, self.rank, f"oath/{key}", text, _WEIGHTS)

    def digest(self, facts: Mapping[str, str], nonces: Mapping[str, str]) -> str:
        """Digest of all that was agreed on: sha256, hexadecimal. nonces: rank, as text, -> its word."""
        known = self.signature.known
        about = {
            "attempt": self.signature.scope,
            "facts": dict(facts),
            "federation": known.members.federation,
            "members": known.members.digest,
            "nonces": dict(nonces),
            "parties": {str(rank): name for rank, name in known.parties.items()},
        }
        text = json.dumps(about, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def _nonces(self, told: object, present: Mapping[int, str]) -> dict[str, str]:
        wanted = {str(rank) for rank in present}
        if not isinstance(told, dict) or told.keys() != wanted or not all(isinstance(w, str) for w in told.values()):
            raise PreflightError(f"the server does not say what all parties ({', '.join(present.values())}) have drawn")
        if told[str(self.rank)] != self.nonce:
            raise PreflightError("the server tells another word of this party than it has drawn: it repeats an old one")
        return told

    def _check(self, answered: bytes, agreed: str, present: Mapping[int, str]) -> None:
        signed = unpacked(answered)
        for rank, name in present.items():
            if (text := signed.get(rank)) is None:
                raise PreflightError(f"the server passes on no signature of `{name}` under what all have agreed on")
            if self.signature.check(f"transcript/{rank}", text, rank) != agreed:
                raise PreflightError(
                    f"`{name}` has signed something else than this party: the server tells parties different things"
                )


def nonces_in(notes: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """On the server: for the verdict, all words; nothing where parties have no keys."""
    found = {str(rank): note[_NONCE] for rank, note in notes.items() if _NONCE in note}
    return {f"{_NONCE}s": found} if found else {}
