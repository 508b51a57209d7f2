"""The server's side of the same exchange: what it passes on, and how it removes the masks of the sum."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fedtorch.privacy.secure_sum.keys import BYTES, pair_of
from fedtorch.privacy.secure_sum.party import PublicKeys, Revealed, Window, apply, mask_key, own_key, with_words
from fedtorch.privacy.secure_sum.shamir import join
from fedtorch.privacy.secure_sum.terms import BrokenProtocolError, SumTerms, TooFewPartiesError
from fedtorch.privacy.stream import Stream


class Collector:
    """The server's side of one exchange: it never holds a part, and of no party shares of both kinds."""

    def __init__(self, terms: SumTerms) -> None:
        self.terms = terms
        self.keys: dict[int, PublicKeys] = {}
        """of those who published them"""
        self.boxes: dict[int, Mapping[int, bytes]] = {}
        """sender -> receiver -> sealed shares"""
        self.arrived: tuple[int, ...] = ()
        """whose masked parts have come"""
        self.answers: dict[int, Revealed] = {}
        self._streams: list[tuple[int, Stream]] = []

    def roster(self) -> Mapping[int, PublicKeys]:
        """After step 0: the keys for all.

        Raises:
            TooFewPartiesError: of too few.
        """
        self._check(self.keys)
        return self.keys

    def boxes_for(self, party: int) -> dict[int, bytes]:
        """After step 1: what the others sealed for this one, which shared too.

        Raises:
            TooFewPartiesError: of too few.
        """
        self._check(self.boxes)
        return {sender: boxes[party] for sender, boxes in self.boxes.items() if sender != party}

    def close(self, arrived: Collection[int]) -> tuple[int, ...]:
        """After step 2: of these parties the sum is; said once, for a second sum of fewer would show who is missing.

        Raises:
            TooFewPartiesError: of too few; nothing can be unmasked.
            BrokenProtocolError: it was said before, or a part came of a party that did not share.
        """
        self._check(arrived)
        if self.arrived or not set(arrived) <= set(self.boxes):
            raise BrokenProtocolError(f"the sum is of {self.arrived or 'nobody yet'}; it cannot be of {arrived}")
        self.arrived = tuple(sorted(arrived))
        return self.arrived

    def take(self, party: int, answer: Revealed) -> None:
        """In step 3: a party's shares.

        Raises:
            BrokenProtocolError: they are of other kinds than asked for.
        """
        here, dropped = set(self.arrived), set(self.boxes) - set(self.arrived)
        if party not in here or set(answer.own) != here or set(answer.pairwise) != dropped:
            raise BrokenProtocolError(f"rank {party} answers with other shares than asked for")
        self.answers[party] = answer

    def prepare(self) -> None:
        """After step 3: the masks that are left in the sum.

        Raises:
            TooFewPartiesError: of too few answers.
            BrokenProtocolError: shares do not fit each other, or a dropped party's not its public key.
        """
        self._check(self.answers)
        terms = self.terms
        for party in self.arrived:
            secret = self._joined({i: answer.own[party] for i, answer in self.answers.items()})
            self._streams.append((-1, Stream(own_key(secret, terms, party))))
        for party in set(self.boxes) - set(self.arrived):
            secret = self._joined({i: answer.pairwise[party] for i, answer in self.answers.items()})
            if pair_of(secret).public != self.keys[party].masking:
                raise BrokenProtocolError(
                    f"shares of the secret of rank {party}, which is gone, do not give its public key"
                )
            for other in self.arrived:
                stream = Stream(mask_key(secret, self.keys[other].masking, terms))
                self._streams.append((-1 if party > other else 1, stream))

    def unmask(self, window: Window) -> None:
        """Remove the masks of the next window of the sum of the parts, in place."""
        for sign, stream in self._streams:
            apply(sign, stream, window)

    def unmask_tags(self, tags: Window) -> Window:
        """The sum of the parties' tags without their masks, after the last window."""
        return with_words(self._streams, tags)

    def _joined(self, shares: Mapping[int, int]) -> bytes:
        some = dict(list(shares.items())[: self.terms.threshold])
        secret = join({self.terms.place(party): share for party, share in some.items()})
        if secret >= 1 << 8 * BYTES:
            raise BrokenProtocolError("shares do not fit each other: a party has sent wrong ones")
        return secret.to_bytes(BYTES, "big")

    def _check(self, present: Collection[int]) -> None:
        if len(present) < self.terms.threshold:
            raise TooFewPartiesError(
                f"{len(present)} of {len(self.terms.parties)} parties are left; {self.terms.threshold} are needed"
            )
