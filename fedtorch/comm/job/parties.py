"""Notes that are signed by who writes them, where the parties of a job do not all share one secret."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from fedtorch.comm.job.signing import Signature
from fedtorch.core.errors import ForgedNoteError
from fedtorch.trust.keys import SIGNATURE_BYTES, Signer, is_signed
from fedtorch.trust.members import Members
from fedtorch.trust.policy.notes import text_of
from fedtorch.trust.policy.remote import GateKey
from fedtorch.trust.receipts import Signed

_RANK = re.compile("[0-9]{1,9}")


@dataclass(frozen=True)
class Identity:
    """This rank's party, and who the others are."""

    key: Signer
    """Signs for this party."""
    members: Members
    """The list that all parties have."""
    parties: Mapping[int, str]
    """Rank -> name of the member whose process it is."""

    @property
    def described(self) -> str:
        """The federation, for a line of the log."""
        members = self.members
        names = ", ".join(self.parties.values())
        return f"federation {members.federation}: {names}, by {members.path} with the sha256 {members.digest}"


@dataclass(frozen=True)
class PartySignature(Signature):
    """Signs with this party's key, and knows the public ones of all the others."""

    identity: Identity | None = field(default=None, kw_only=True)
    """Always there; a dataclass wants a default."""
    called: ClassVar[str] = "list of members (trust.members)"
    advice: ClassVar[str] = "Compare the sha256 of the lists of all parties, and start this side again"

    @property
    def is_on(self) -> bool:
        """Every value is signed."""
        return True

    @property
    def is_personal(self) -> bool:
        """Nobody can write in another one's name."""
        return True

    @property
    def known(self) -> Identity:
        """Who is who."""
        assert self.identity is not None
        return self.identity

    def party(self, rank: int) -> str:
        """As the base class says."""
        return self.known.parties.get(rank, "")

    def sign(self, key: str, value: str, beside: bytes = b"") -> str:
        """Return the text to store, with its signature, which is that of the bytes beside it too."""
        return f"{self.known.key.sign(self._text(key, value), beside).hex()} {value}"

    def pass_update(self, client: str, round: int, update: Tensor) -> str:
        """As the base class says."""
        gate = self.known.key
        return gate.pass_update(client, round, update.numpy()) if isinstance(gate, GateKey) else ""

    def check(self, key: str, text: str, by: int | None, beside: bytes = b"") -> str:
        """The value that was stored, by the rank that alone may have done so; None: by any party of this job.

        Raises:
            ForgedNoteError: nobody of these has stored it, in this attempt of this job.
        """
        code, _, value = text.partition(" ")
        ranks = [by] if by is not None else [*self.known.parties]
        if len(code) == 2 * SIGNATURE_BYTES and any(self._has_signed(rank, key, value, code, beside) for rank in ranks):
            return value
        names = " or ".join(f"`{self.known.parties.get(rank, rank)}`" for rank in ranks)
        raise ForgedNoteError(
            f"what stands in the store under `{key}` was not signed by {names} in this attempt of the job: somebody "
            f"else writes there, or the parties differ in their {self.called}"
        )

    def signed(self, key: str, value: str, party: str, text: str) -> Signed:
        """A note of a party, which `check` has found to be its own, in the form in which it is kept."""
        return Signed("acknowledgement", party, self._text(key, value).decode(), text.partition(" ")[0])

    def _has_signed(self, rank: int, key: str, value: str, code: str, beside: bytes) -> bool:
        member = self.known.members.by_name.get(self.known.parties.get(rank, ""))
        try:
            signature = bytes.fromhex(code)
        except ValueError:
            return False
        return member is not None and is_signed(self._text(key, value), signature, member.key, beside)

    def _text(self, key: str, value: str) -> bytes:
        return text_of(self.known.members.federation, self.scope, key, value)


def signature_of(proof: str | Identity, scope: str) -> Signature:
    """Make what signs the notes of a job.

    proof: the secret that all ranks share, empty for none; or who this party is, and who the others are.
    """
    return Signature(proof, scope) if isinstance(proof, str) else PartySignature("", scope, identity=proof)


def packed(signed: Mapping[int, bytes]) -> bytes:
    """On the server: what it passes on of the parties' signed texts. signed: by rank."""
    return json.dumps({rank: text.decode("ascii", "replace") for rank, text in signed.items()}).encode()


def unpacked(data: bytes) -> dict[int, str]:
    """Rank -> its signed text, of what the server has passed on; whatever is none is left out."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    texts = found.items() if isinstance(found, dict) else ()
    return {int(rank): text for rank, text in texts if _RANK.fullmatch(rank) and isinstance(text, str)}
