"""Parties of a job sign at a meeting, for all the others, that they have the same before them.

With its note each party sends a signed text, and the server passes all of them on with its answer. A party whose own
text is another one than somebody else's goes no further, before anything leaves it that depends on it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from fedtorch.comm.job.parties import PartySignature, packed, unpacked
from fedtorch.core.errors import ForgedNoteError, TrustError
from fedtorch.trust.receipts import Signed

_END = b"\n"


@dataclass(frozen=True)
class Oath:
    """This party's side of one meeting."""

    signature: PartySignature
    """Signs for this party."""
    rank: int
    """Number of this party's process."""
    key: str
    """Names the meeting: what is signed is good for this one."""
    text: str
    """One line that stands for all that this party has before it."""
    what: str
    """Words for that in messages."""
    texts: list[Signed] = field(default_factory=list)
    """after `checked`: what each party has signed, to be kept"""
    _signed: dict[int, bytes] = field(default_factory=dict)
    """on the server: rank -> what it has signed"""

    def with_mail(self, mail: bytes) -> bytes:
        """The bytes that go with this rank's note."""
        return self.signature.sign(f"{self.key}/{self.rank}", self.text).encode() + _END + mail

    def taken_from(self, mails: Mapping[int, bytes]) -> dict[int, bytes]:
        """On the server: what ranks sent beside it."""
        parts = {rank: mail.partition(_END) for rank, mail in mails.items()}
        self._signed.update({rank: signed for rank, (signed, _, _) in parts.items()})
        return {rank: rest for rank, (_, _, rest) in parts.items()}

    def with_answer(self, answer: bytes) -> bytes:
        """On the server: the bytes that go with its verdict."""
        return packed(self._signed) + _END + answer

    def checked(self, answered: bytes, away: Collection[int] = ()) -> bytes:
        """The server's answer, once all parties that are there have signed the same as this one.

        away: ranks that are not.

        Raises:
            TrustError: they have not; names the first that has not.
        """
        signed, _, answer = answered.partition(_END)
        found = unpacked(signed)
        for rank, name in self.signature.known.parties.items():
            if rank in away:
                continue
            if (text := found.get(rank)) is None:
                raise TrustError(f"the server passes on nothing that `{name}` has signed of {self.what}")
            try:
                said = self.signature.check(f"{self.key}/{rank}", text, rank)
            except ForgedNoteError as error:
                raise TrustError(f"the server passes on what `{name}` has not signed of {self.what}: {error}") from None
            if said != self.text:
                own = self.signature.known.parties[self.rank]
                raise TrustError(
                    f"`{name}` has signed another digest of {self.what} than `{own}`, this party: the server has sent "
                    "them different ones, or one of the two says so falsely. No update of the round has left it"
                )
            self.texts.append(self.signature.signed(f"{self.key}/{rank}", said, name, text))
        return answer
