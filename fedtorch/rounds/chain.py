"""The chain of a run's records as one party has it: where it begins or goes on, and the way of texts to all parties."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedtorch.comm.job.witness import Witness
from fedtorch.comm.wire import Packet, as_digits, as_numbers
from fedtorch.core.errors import TrustError
from fedtorch.core.state_keys import BEST, SERVER_STEPS
from fedtorch.rounds import replicas
from fedtorch.rounds.context import RoundContext
from fedtorch.trust.kept import KeptFiles
from fedtorch.trust.merkle import vector_root
from fedtorch.trust.receipts import FILE, FOLDER, NOTHING, ReceiptsFile, Signed, is_enough

_BYTES = 6  # of a text in one; a float has all whole numbers of 53 bits


class Chain:
    """This party's side. All ranks call `begin` alike."""

    def __init__(self, context: RoundContext, witness: Witness) -> None:
        self.context, self.witness = context, witness
        self.record = Signed("record", "", "{}", "")
        """the last one that this party has found right, or has made"""

    @cached_property
    def receipts(self) -> ReceiptsFile:
        """This party's file."""
        return ReceiptsFile(self.folder / FILE)

    @property
    def folder(self) -> Path:
        """This party's."""
        return self.context.config.folder / FOLDER / self.witness.party

    @property
    def kept(self) -> KeptFiles:
        """Files that it keeps beside its receipts."""
        return KeptFiles(self.folder)

    @property
    def last(self) -> str:
        """Digest of that record."""
        return self.record.digest

    @property
    def server(self) -> str:
        """Name of the server's member."""
        return self.witness.identity.parties[0]

    def begin(self, *, resumed: bool) -> None:
        """Agree on a record of where the run begins, or goes on.

        resumed: from a checkpoint; otherwise what the folder has of another run gets another name.

        Raises:
            TrustError: the server goes on from something else than what silos have found right, or this party has
                found something wrong before.
        """
        context, witness = self.context, self.witness
        if resumed:
            self.receipts.refuse_evidence()
            self._refuse_unopened()
            replicas.share_state(context)
        else:
            self.receipts.set_aside()
        self.kept.keep_members(witness.identity.members)
        if witness.tags is not None:
            witness.tags.keep(self.kept)
        known, here = self.receipts.records(), self._state()
        told: list[Signed] = []

        def answer(gathered: list[Packet]) -> Sequence[Packet]:
            have = {as_digits(message.lists["words"]) for message in gathered} - {NOTHING}
            told.extend(self._missing(known, have, here))
            return self._announced(told)

        mine = context.message("numbers", lists={"words": as_numbers(known[-1].digest if known else NOTHING)})
        met = context.members.exchange("records", [mine], answer, may_stop=False)
        have = {record.digest for record in known}
        told = [record for record in self._broadcast(told, met.answered) if record.digest not in have]
        if not told:
            raise TrustError("the server sends no record of where the run begins")
        witness.run = str(told[-1].about.get("run"))
        is_known = context.comm.is_server or self._check(known, told, here)
        vouched = self._vouchers(told[-1], is_known=is_known)
        silos = len(witness.identity.members.silos)
        if not is_known and not is_enough(len(vouched), silos, context.config.privacy.colluders):
            raise TrustError(
                f"the server goes on after {context.round} rounds from weights and a state that this party has not "
                f"checked, and {len(vouched)} of {silos} silos say that they have; go on from a checkpoint of this run"
            )
        if not context.comm.is_server:
            self.receipts.add([*told[:-1], told[-1].found_right()])
        self.receipts.add(vouched)
        self.record = told[-1]

    def _refuse_unopened(self) -> None:
        """Look whether the server has answered, all but a few times, when it was asked for leaves.

        Raises:
            TrustError: it has not; one that is asked for a false leaf could always "crash", and draw again.
        """
        trust, party = self.context.config.trust, self.witness.party
        if trust.verify == "all" or party == self.server:
            return
        asked = [r for r in self.receipts.records() if party in r.about.get("receipts", ())]
        right = self.receipts.right(party)
        unopened = [record.about["round"] + 1 for record in asked if record.digest not in right]
        if len(unopened) > trust.unopened:
            raise TrustError(
                f"the server has left this party's questions unanswered in the rounds {', '.join(map(str, unopened))}, "
                f"and trust.unopened is {trust.unopened}; a server that is asked for a false leaf would do so. Go on "
                "only if all know why: set trust.unopened to a larger number"
            )

    def _missing(self, known: Sequence[Signed], have: set[str], here: Mapping[str, Any]) -> list[Signed]:
        """On the server: the records that somebody has not, and one of where the run stands.

        here: weights and state with which it begins.

        Raises:
            TrustError: a silo has one that is not in this server's file.
        """
        digests = [record.digest for record in known]
        if unknown := have - {*digests}:
            raise TrustError(
                f"a silo has the record {min(unknown)[:16]} as its last, which is not in {self.receipts.path}; bring "
                "back the server's file, or begin a new run"
            )
        first = min((digests.index(digest) + 1 for digest in have), default=0)
        before = [record.digest for record in known if record.says(here)]
        self.witness.run = known[-1].about["run"] if known else secrets.token_hex(8)
        colluders = self.context.config.privacy.colluders
        about = {"begins": True, "colluders": colluders, "round": self.context.round, **here}
        about |= {"from": before[-1] if before else NOTHING, "previous": digests[-1] if known else NOTHING}
        begun = self.witness.sign("record", about)
        self.receipts.add([begun])
        return [*known[first:], begun]

    def _check(self, known: Sequence[Signed], told: Sequence[Signed], here: Mapping[str, Any]) -> bool:
        """On a silo: has it found right itself what the run goes on from, or does the run begin?

        here: weights and state that the server has sent.

        Raises:
            TrustError: the records do not follow those that it has, or are of something else than the server sends.
        """
        chain = [*known, *told]
        for before, record in list(zip([None, *chain], chain, strict=False))[len(known) :]:
            record.check(self.witness.identity.members)
            said = {"previous": before.digest if before else NOTHING, "run": self.witness.run}
            if (record.kind, record.party) != ("record", self.server) or not record.says(said):
                raise TrustError("the server's records do not follow those that this party has: it tells another past")
        begun = told[-1]
        if not begun.says({"round": self.context.round, "meeting": self.witness.meeting, **here}):
            raise TrustError("the server's record of the beginning is not of the weights and the state that it sends")
        if len(chain) == 1 and begun.says({"from": NOTHING, "round": 0}):
            return True
        origin = next((record for record in chain[:-1] if record.digest == begun.about.get("from")), None)
        if origin is None or not origin.says(here):
            raise TrustError(
                f"the server goes on after {self.context.round} rounds from weights or a state that no record before "
                "says, so that nobody has checked how it came to them; go on from a checkpoint of this run"
            )
        return origin.digest in self.receipts.right(self.witness.party)

    def _vouchers(self, begun: Signed, *, is_known: bool) -> list[Signed]:
        """Have silos sign that they have found right what the run goes on from; their texts, on all ranks.

        Raises:
            TrustError: one has not signed it.
        """
        context, witness, identity = self.context, self.witness, self.witness.identity
        mine = []
        if is_known and not context.comm.is_server:
            signed = witness.sign("acknowledgement", {"record": begun.digest})
            words = {"words": as_numbers(signed.signature)}
            mine = [context.message("numbers", numbers={"rank": context.comm.rank}, lists=words)]
        met = context.members.exchange("vouch", mine, lambda gathered: gathered, may_stop=False)
        found = {}
        for message in met.answered:
            party = identity.parties.get(int(message.numbers.get("rank", -1)), "")
            signed = witness.unsigned("acknowledgement", party, {"record": begun.digest})
            found[party] = Signed(signed.kind, party, signed.text, as_digits(message.lists["words"]))
            found[party].check(identity.members)
        return [signed for party, signed in found.items() if party != self.server]

    def _state(self) -> dict[str, Any]:
        return {"next": self.context.vectors.root, "state": self.state()}

    def state(self) -> dict[str, Any]:
        """Say what the next step depends on beside the weights: steps taken, the roots of vectors that are not 0."""
        server = self.context.server
        roots = {name: vector_root(tensor) for name, tensor in self.state_tensors().items() if tensor.any()}
        return {"steps": int(server.numbers.get(SERVER_STEPS, 0)), "tensors": roots}

    def state_tensors(self) -> dict[str, Tensor]:
        """The vectors of that, flat."""
        exchanged = self.context.algorithm.travels.vectors
        return {n: t for n, t in self.context.server.tensors.items() if n != BEST and n not in exchanged}

    def told(self, texts: Sequence[Signed]) -> list[Packet]:
        """On the server: texts as numbers, so that they go with the answer of a meeting, and take no trip of their own.

        They have to be few: a message has a limit.
        """
        data = _packed(texts)
        numbers = [float(int.from_bytes(data[at : at + _BYTES], "big")) for at in range(0, len(data), _BYTES)]
        return [self.context.message("numbers", numbers={"bytes": len(data)}, lists={"text": tuple(numbers)})]

    def heard(self, answered: Sequence[Packet]) -> list[Signed]:
        """Turn such numbers back into texts.

        Raises:
            TrustError: they are none.
        """
        try:
            (message,) = answered
            left, data = int(message.numbers["bytes"]), b""
            for number in message.lists["text"]:
                data += int(number).to_bytes(min(left - len(data), _BYTES), "big")
            return _unpacked(data)
        except (KeyError, ValueError, OverflowError) as error:
            raise TrustError(f"what the server sends as its record cannot be read: {error}") from None

    def _announced(self, texts: Sequence[Signed]) -> list[Packet]:
        """On the server: how long what follows is."""
        return [self.context.message("numbers", numbers={"bytes": len(_packed(texts))})]

    def _broadcast(self, texts: Sequence[Signed], announced: Sequence[Packet]) -> list[Signed]:
        """The server's texts, however many, on all ranks.

        Raises:
            TrustError: they are none.
        """
        context = self.context
        data = torch.zeros(int(announced[0].numbers["bytes"]), dtype=torch.uint8)
        if context.comm.is_server:
            data = torch.frombuffer(bytearray(_packed(texts)), dtype=torch.uint8)
        context.members.retry_on_loss("records", lambda: context.comm.broadcast(data, numbers=0))
        return _unpacked(data.numpy().tobytes())


def _packed(texts: Sequence[Signed]) -> bytes:
    return json.dumps([each.sent() for each in texts]).encode()


def _unpacked(data: bytes) -> list[Signed]:
    """Raises TrustError: it is no list of signed texts."""
    try:
        return [Signed.of(line) for line in json.loads(data)]
    except (ValueError, TypeError, RecursionError) as error:
        raise TrustError(f"what the server sends as its record cannot be read: {error}") from None
