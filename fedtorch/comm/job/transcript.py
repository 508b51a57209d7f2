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
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedtorch.comm.job.oaths import Oath
from fedtorch.comm.job.parties import PartySignature, packed, unpacked
from fedtorch.comm.job.rendezvous import Rendezvous
from fedtorch.comm.job.store import Store
from fedtorch.comm.job.witness import Witness
from fedtorch.core.errors import PreflightError
from fedtorch.trust.policy.remote import GateKey
from fedtorch.trust.silo_tags import KeyMeeting, OwnMeeting, SiloTags

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
    meeting: KeyMeeting
    """This party's side of the meeting at which silos agree on a key that the server does not know."""
    agreed: list[str] = field(default_factory=list)
    """The digests that all have signed, one for each run of the job."""

    @classmethod
    def of(cls, store: Store, rank: int) -> Transcript | None:
        """None: parties have no keys of their own."""
        signature = store.signature
        if not isinstance(signature, PartySignature):
            return None
        known = signature.known
        if isinstance(known.key, GateKey):
            return cls(store, rank, signature, known.key.meet())
        members = {other: known.members.by_name[name].key for other, name in known.parties.items()}
        return cls(store, rank, signature, OwnMeeting(known.members.federation, rank, members))

    @property
    def party(self) -> str:
        """Name of this party."""
        return self.signature.known.parties[self.rank]

    @property
    def nonce(self) -> str:
        """The word of this party, which nobody has drawn before: its public key in this meeting."""
        return self.meeting.word

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
        nonces = self._nonces(verdict.get(f"{_NONCE}s"), present)
        agreed = self.digest(facts, nonces)
        own = self.signature.sign(f"transcript/{self.rank}", agreed)
        _, answered = rendezvous.barrier("transcript", 0, mail=own.encode(), answer=packed)
        self._check(answered, agreed, present)
        self.meeting.agree(self.text(facts, nonces), self.signature.scope, unpacked(answered))
        self.store.signature = self.signature
        self.store.bind(agreed)
        self.agreed.append(agreed)

    def witness(
        self, rendezvous: Rendezvous, lost: Collection[int], *, has_records: bool = True, has_tags: bool = True
    ) -> Witness:
        """Make what this party needs to sign what it sends. lost: ranks that are away.

        has_records: do silos check rounds? has_tags: and their sums?
        """
        tags, meeting = self._key_of_tags(rendezvous, lost) if has_tags else None, self.agreed[-1]
        run = "" if has_records else meeting[:16]
        known = self.signature.known
        return Witness(known, self.rank, meeting, tags, run=run, has_records=has_records, has_tags=has_tags)

    def _key_of_tags(self, rendezvous: Rendezvous, lost: Collection[int]) -> SiloTags | None:
        """Return the key by which silos check sums: the first one draws it, and seals it for each of the others.

        lost: ranks that are away. None: this is the server.

        Raises:
            PreflightError: the server has not passed on what was sealed for this party.
        """
        first, *others = sorted(rank for rank in self.signature.known.parties if rank and rank not in lost)
        mail = json.dumps(self.meeting.draw() if self.rank == first else {}).encode()
        _, answered = rendezvous.barrier("key of tags", 0, mail=mail, answer=lambda came: came.get(first, b""))
        if self.rank in others:
            try:
                self.meeting.open(first, unpacked(answered).get(self.rank, ""))
            except (ValueError, PreflightError) as error:
                raise PreflightError(
                    f"the server passes on a key of tags that `{self.signature.known.parties[first]}` has not sealed "
                    f"for this party: {error}"
                ) from None
        return self.meeting.tags if self.rank else None

    def oath(self, key: str, text: str) -> Oath:
        """This party's side of a meeting at which all swear to `text`, good among those who met at the start."""
        signature = self.store.signature
        assert isinstance(signature, PartySignature)
        return Oath(signature, self.rank, f"oath/{key}", text, _WEIGHTS)

    def digest(self, facts: Mapping[str, str], nonces: Mapping[str, str]) -> str:
        """Digest of all that was agreed on: sha256, hexadecimal. nonces: rank, as text, -> its word."""
        return hashlib.sha256(self.text(facts, nonces).encode()).hexdigest()

    def text(self, facts: Mapping[str, str], nonces: Mapping[str, str]) -> str:
        """All that was agreed on, as JSON."""
        known = self.signature.known
        about = {
            "attempt": self.signature.scope,
            "facts": dict(facts),
            "federation": known.members.federation,
            "members": known.members.digest,
            "nonces": dict(nonces),
            "parties": {str(rank): name for rank, name in known.parties.items()},
        }
        return json.dumps(about, sort_keys=True, separators=(",", ":"), ensure_ascii=True)

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
