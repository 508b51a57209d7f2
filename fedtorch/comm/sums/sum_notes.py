"""Notes of a secure sum in the store: what parties publish, what the server passes on, and how an attempt ends."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from fedtorch.comm.sums.aggregation import Aggregation
from fedtorch.core.errors import PreflightError
from fedtorch.privacy.secure_sum.party import PublicKeys
from fedtorch.privacy.secure_sum.terms import BrokenProtocolError

_STEPS = ("begin", "roster", "boxes", "reveal", "signed")  # the server's notes, in order
_OF_PARTIES = ("keys", "shares", "survivors", "answer")  # those of who takes part
_LOOK_EVERY_S = 0.5


class Notes:
    """Notes of one attempt in the store; both sides count operations alike, so a note's key is known to both."""

    def __init__(self, aggregation: Aggregation) -> None:
        self.group = aggregation.group
        self.attempt = f"{self.group.generation}.{self.group.sequence}"

    def leave(self, what: str, about: object, rank: int | str = "") -> None:
        """Write what is said as JSON."""
        self.write(what, json.dumps(about), rank)

    def write(self, what: str, text: str, rank: int | str = "") -> None:
        """Write a text that is JSON."""
        self.group.store.set(self._key(what, rank), text)

    def read(self, what: str, rank: int | str = "") -> Any:
        """Return the note's text.

        Raises:
            PreflightError: it is no JSON.
        """
        try:
            return json.loads(self.group.store.get(self._key(what, rank), by=self._writer(what, rank)))
        except (ValueError, RecursionError):
            raise PreflightError(f"the note `{what}` of a secure sum cannot be read") from None

    def read_all(self, what: str, ranks: Iterable[int]) -> dict[int, Any]:
        """The notes of these parties by rank, in one round trip.

        Raises:
            PreflightError: one is no JSON.
        """
        wanted = list(ranks)
        texts = self.group.store.get_all({self._key(what, rank): rank for rank in wanted})
        try:
            return {rank: json.loads(text) for rank, text in zip(wanted, texts, strict=True)}
        except (ValueError, RecursionError):
            raise PreflightError(f"a note `{what}` of a secure sum cannot be read") from None

    def await_server(self, what: str, rank: int | str = "") -> Any:
        """The server's note; None: the attempt is over, and there will be another request.

        Raises:
            DeadlineError: the server is gone. CollectiveFailed: another rank was lost, and the attempt with it.
        """
        liveness, key = self.group.liveness, self._key(what, rank)
        while not self.group.store.wait([key], min(_LOOK_EVERY_S, liveness.timeout_s / 4)):
            liveness.beat()
            liveness.check([0], lambda missing: self.group.store.has([key]))
        note = self.read(what, rank)
        if isinstance(note, dict) and "over" in note:
            if note["over"] == "again":
                return None
            self.fail(str(note["over"]))
        return note

    def await_parties(self, what: str, parties: Sequence[int], *, may_lose: bool) -> list[int]:
        """On the server: wait for the note of every one of them that is alive; those that left one.

        may_lose: otherwise a loss, of whichever rank, is the end of the attempt.
        """
        liveness, store, awaited = self.group.liveness, self.group.store, list(parties)
        keys = {party: self._key(what, party) for party in parties}
        while awaited and not store.wait([keys[p] for p in awaited], min(_LOOK_EVERY_S, liveness.timeout_s / 4)):
            liveness.beat()
            awaited = [party for party in awaited if not store.has([keys[party]])]
            others = [rank for rank in self.group.members[1:] if rank in awaited or not may_lose]
            gone = {*liveness.missing(awaited), *liveness.dead(others)}
            if gone and not may_lose:
                self.end(f"rank {min(gone)} was lost in a secure sum")
            awaited = [party for party in awaited if party not in gone]
        return [party for party in parties if store.has([keys[party]])]

    def end(self, why: str) -> NoReturn:
        """On the server: the attempt is over, on all ranks; nothing was unmasked."""
        self._tell_all({"over": why})
        self.fail(why)

    @contextmanager
    def telling(self) -> Iterator[None]:
        """On the server, while parts come: if that fails the attempt is over for parties too, which wait for notes."""
        raises = self.group.on_error

        def tell(why: str) -> NoReturn:
            self._tell_all({"over": why})
            raises(why)

        self.group.on_error = tell
        try:
            yield
        finally:
            self.group.on_error = raises

    def again(self) -> None:
        """On the server: the attempt is over, and the ranks wait for another request."""
        self._tell_all({"over": "again"})

    def fail(self, why: str) -> NoReturn:
        """As after a collective that has failed."""
        self.group.drop()
        self.group.on_error(why)

    def forget(self, parties: Sequence[int]) -> None:
        """On the server: delete what nobody needs any more."""
        mine = [self._key(step, "") for step in _STEPS]
        theirs = [self._key(step, party) for step in ("boxes", *_OF_PARTIES) for party in parties]
        self.group.store.delete([*mine, *theirs])

    def _tell_all(self, about: object) -> None:
        for step in _STEPS:
            for rank in self.group.members[1:] if step == "boxes" else ("",):
                self.leave(step, about, rank)

    @staticmethod
    def _writer(what: str, rank: int | str) -> int:
        return rank if what in _OF_PARTIES and isinstance(rank, int) else 0

    def check_roster(self, keys: Mapping[int, PublicKeys]) -> dict[int, str]:
        """Where parties sign with keys of their own: has each of them written the keys that the server names for it?

        Returns their signed notes, by rank; none where there are no such keys.

        Raises:
            BrokenProtocolError: it has not; the server could read what it masks.
        """
        if not self.is_personal:
            return {}
        texts = self.group.store.signed_texts([self._key("keys", rank) for rank in keys])
        signed = dict(zip(keys, texts, strict=True))
        for rank, text in signed.items():
            said = json.loads(self.group.store.signature.check(self._key("keys", rank), text, rank))
            if said != [key.hex() for key in keys[rank]]:
                raise BrokenProtocolError(f"the server names other keys for the party {rank} than that one has signed")
        return signed

    @property
    def is_personal(self) -> bool:
        """Do parties sign with keys of their own?"""
        return self.group.store.signature.is_personal

    def check_survivors(self, arrived: Sequence[int], signed: Sequence[int], threshold: int) -> None:
        """Have so many parties signed this list of those whose parts have arrived, and no other?

        signed: the parties that have, by the server's word.

        Raises:
            BrokenProtocolError: they have not: with two lists the server could unmask two sums.
        """
        same = [rank for rank, said in self.read_all("survivors", signed).items() if said == list(arrived)]
        if len(same) < threshold:
            raise BrokenProtocolError(
                f"{len(same)} parties have signed that parts of {list(arrived)} have arrived, and {threshold} must: "
                "the server names different ones to others. Nothing is unmasked with this party's help"
            )

    def _key(self, what: str, rank: int | str) -> str:
        return f"secure sum/{self.attempt}/{what}/{rank}"
