"""Rounds of which silos check all: the sum by tags, the step by taking it themselves (`trust.verify: all`).

    1. Before updates leave, all parties swear to the weights from which they have trained, and to the last record.
    2. Each silo sends its part with tags and a receipt (`comm.sums.witnessed`).
    3. The server steps, and sends its record of the round with all receipts, the sum and its tags.
    4. Each silo looks whether the record is about what it has sent and received itself, whether the tags are those of
       the sum, and whether the same step from the same weights comes to the same weights and state.

So nothing leaves a silo after a round that it has not found right. Weights are not broadcast: every silo has them.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedtorch.algorithms.weighting import shares
from fedtorch.comm.job.witness import Exchanged, Witness
from fedtorch.comm.sums.reproducible import SumScale
from fedtorch.comm.wire import Packet
from fedtorch.core.client import Client
from fedtorch.core.errors import TrustError
from fedtorch.core.state_keys import BEST, SERVER_STEPS
from fedtorch.core.update import Report
from fedtorch.rounds import replicas
from fedtorch.rounds.aggregation import Decision
from fedtorch.rounds.context import RoundContext
from fedtorch.rounds.steps import Steps
from fedtorch.trust.merkle import LEAF, root
from fedtorch.trust.receipts import FILE, NOTHING, ReceiptsFile, Signed, canonical
from fedtorch.trust.tags import added

FOLDER = "trust"
"""In the run folder; in it each party of this machine has a folder of its own."""
_WORD = 8  # hexadecimal digits in a number of a message


class CheckedSteps(Steps):
    """The same steps, on all ranks."""

    def __init__(self, context: RoundContext, witness: Witness) -> None:
        super().__init__(context)
        self.witness = witness
        self._last = NOTHING
        """digest of the last record that this party has found right"""
        self._record: dict[str, Any] = {}
        """what it says"""

    @cached_property
    def receipts(self) -> ReceiptsFile:
        """This party's file."""
        return ReceiptsFile(self.context.config.folder / FOLDER / self.witness.party / FILE)

    @property
    def _server(self) -> str:
        return self.witness.identity.parties[0]

    def begin(self, *, resumed: bool) -> None:
        """Agree on a record of where the run begins, or goes on.

        Raises:
            TrustError: the server goes on from something else than what this party has found right.
        """
        context, witness = self.context, self.witness
        if resumed:
            replicas.share_state(context)
        else:
            self.receipts.set_aside()
        known = self.receipts.records()
        told: list[Signed] = []

        def answer(gathered: list[Packet]) -> Sequence[Packet]:
            have = {_digest(message) for message in gathered} - {NOTHING}
            told.extend(self._missing(known, have, context.round))
            return self._announced(told)

        mine = context.message("numbers", lists={"words": _words(known[-1].digest if known else NOTHING)})
        met = context.members.exchange("records", [mine], answer, may_stop=False)
        told = self._broadcast(told, met.answered)
        if not context.comm.is_server:
            self._check_start(known, told)
            self.receipts.add(told)
        witness.run, self._last, self._record = told[-1].about["run"], told[-1].digest, told[-1].about

    def _missing(self, known: Sequence[Signed], have: set[str], round: int) -> list[Signed]:
        """On the server: the records that somebody has not, and one of where the run stands.

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
        state = {"next": self.context.vectors.root, "state": self._state_root()}
        before = [r.digest for r in known if {name: r.about[name] for name in state} == state]
        self.witness.run = known[-1].about["run"] if known else secrets.token_hex(8)
        about = {"round": round, "previous": digests[-1] if known else NOTHING, **state}
        begun = self.witness.sign("record", {**about, "from": before[-1] if before else NOTHING, "begins": True})
        self.receipts.add([begun])
        return [*known[first:], begun]

    def _check_start(self, known: Sequence[Signed], told: Sequence[Signed]) -> None:
        """On a silo: do these records follow those that it has, and is the last of them of what it has before it?"""
        chain = [*known, *told]
        for before, record in zip([None, *chain], chain, strict=False):
            if record in known:
                continue
            record.check(self.witness.identity.members)
            if record.party != self._server or record.about.get("previous") != (before.digest if before else NOTHING):
                raise TrustError("the server's records do not follow those that this party has: it tells another past")
        about, here = told[-1].about, {"next": self.context.vectors.root, "state": self._state_root()}
        if about.get("round") != self.context.round or any(about.get(name) != value for name, value in here.items()):
            raise TrustError(
                "the server's record of the beginning is of other weights, or another state, than it sends"
            )
        origin = next((r for r in chain[:-1] if r.digest == about.get("from")), None)
        is_first = len(chain) == 1 and about.get("from") == NOTHING
        if not is_first and (origin is None or any(origin.about.get(name) != value for name, value in here.items())):
            raise TrustError(
                f"the server goes on after {self.context.round} rounds from weights or a state that no record before "
                "says, so that nobody has checked how it came to them; go on from a checkpoint of this run"
            )

    def oath(self) -> str:
        """Digests of the weights, and of the last record that this party has found right."""
        self.witness.weights = self.context.vectors.root
        return f"{self.witness.weights} {self._last}"

    def sworn(self, reports: Sequence[Report], cohort: Sequence[tuple[Client, int]]) -> None:
        """Keep what all have sworn to.

        Raises:
            TrustError: too few silos have: others could be told something else.
        """
        signed = self.context.comm.sworn
        silos = len(self.witness.identity.members.silos)
        there = sum(each.party != self._server for each in signed)
        if 2 * there <= silos + self.context.config.privacy.colluders:
            raise TrustError(
                f"{there} of {silos} silos that are members have the last record; more than half of them (with "
                "privacy.colluders more) must, or the server could go on with others from another one. Start the run "
                "again with all silos, or have those that are gone taken out of the list of members"
            )
        self.receipts.add(signed)
        self.witness.last, draws = None, {client.name: count for client, count in cohort}
        if self.context.mechanism.public_exponent is None:
            own = {r.client: (self._weight(r, draws.get(r.client, 1)), r.max_abs) for r in reports if r.is_ok}
            self.witness.own = {client: [number.hex() for number in numbers] for client, numbers in own.items()}

    def _weight(self, report: Report, draws: int) -> float:
        report = Report(**{**vars(report), "draws": draws})
        return float(self.context.algorithm.own_weight(report) or 0.0)

    def take(self, decision: Decision, grad: Tensor | None) -> None:
        """On the server step and tell; on a silo look at what is told, and step.

        Raises:
            TrustError: on a silo, what the server tells cannot be.
        """
        context, exchanged = self.context, self.witness.last
        numbers = len(context.vectors.flat)
        told, sums = list[Signed](), torch.zeros(numbers + -(-numbers // LEAF), dtype=torch.int64)
        if context.comm.is_server:
            assert grad is not None and exchanged is not None
            assert exchanged.total is not None and exchanged.tags is not None
            context.algorithm.server_update(context.server, grad)
            told = [*exchanged.receipts.values(), self._of_round(exchanged, decision)]
            self.receipts.add(told)
            sums = torch.from_numpy(np.concatenate([exchanged.total, exchanged.tags.view(np.int64)]))
        meeting = partial(context.comm.meet, "record", answer=lambda _: self._announced(told), vector=sums)
        context.comm.heartbeat(phase="record", round=context.round)
        met = context.members.meet("record", meeting, may_stop=False)
        told = self._broadcast(told, met.answered, sums)
        if not context.comm.is_server:
            self._check_round(told, exchanged, sums, decision)
        self._last, self._record = told[-1].digest, told[-1].about
        context.vectors.written(everywhere=True)

    def _of_round(self, exchanged: Exchanged, decision: Decision) -> Signed:
        """On the server: the record of a step that it has taken."""
        assert exchanged.total is not None and exchanged.tags is not None
        parties = self.witness.identity.parties
        accepted = [report.client for report in decision.accepted]
        about = {
            "accepted": accepted,
            "attempt": exchanged.attempt,
            "dtype": str(self.context.vectors.flat.dtype),
            "from": self._last,
            "next": self.context.vectors.root,
            "previous": self._last,
            "receipts": {parties[rank]: receipt.digest for rank, receipt in exchanged.receipts.items()},
            "round": exchanged.round,
            "scale": exchanged.scale,
            "state": self._state_root(),
            "sum": root(exchanged.total).hex(),
            "tags": root(exchanged.tags).hex(),
            "weights": [decision.weights.get(client, 1.0).hex() for client in accepted],
        }
        return self.witness.sign("record", about)

    def _check_round(
        self, told: Sequence[Signed], exchanged: Exchanged | None, sums: Tensor, decision: Decision
    ) -> None:
        *receipts, record = told
        try:
            self._check_record(record, receipts, exchanged)
            about = record.about
            total = sums[: len(self.context.vectors.flat)].numpy()
            self._check_sum(about, total, sums[len(total) :].numpy().view(np.uint64))
            self._step(about, total)
        except TrustError as error:
            self.receipts.keep_evidence(str(error), told)
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self.receipts.keep_evidence(f"{type(error).__name__}: {error}", told)
            raise TrustError(f"the server's record of round {self.context.round + 1} is none: {error}") from error
        self.receipts.add([*(exchanged.receipts.values() if exchanged else ()), *told])

    def _check_record(self, record: Signed, receipts: Sequence[Signed], exchanged: Exchanged | None) -> None:
        """Is the record about this round, this past and this party's own part, and are all receipts in it signed?"""
        witness, about = self.witness, record.about
        for signed in (record, *receipts):
            signed.check(witness.identity.members)
        if record.party != self._server or record.kind != "record" or about["meeting"] != witness.meeting:
            raise self._wrong("the record is not the server's of this meeting")
        expected = {"round": self.context.round, "previous": self._last, "from": self._last, "run": witness.run}
        if differing := [name for name, value in expected.items() if about[name] != value]:
            raise self._wrong(f"the record has another `{differing[0]}` than what this party has seen")
        if {each.party: each.digest for each in receipts} != about["receipts"]:
            raise self._wrong("the server passes on other receipts than its record names")
        for receipt in receipts:
            said = receipt.about
            same = {"attempt": about["attempt"], "round": self.context.round, "weights": witness.weights}
            if receipt.kind != "receipt" or any(said[name] != value for name, value in same.items()):
                raise self._wrong(f"the receipt of `{receipt.party}` is of another exchange, or of other weights")
        own = exchanged.receipts.get(witness.rank) if exchanged else None
        if own is not None and about["receipts"].get(witness.party) != own.digest:
            raise self._wrong("this party has sent a part, and its receipt is not in the record")
        if own is None and witness.party in about["receipts"]:
            raise self._wrong("the record has a receipt of this party, which has sent nothing")
        self._check_terms(about, receipts, exchanged if own is not None else None)

    def _check_terms(self, about: Mapping[str, Any], receipts: Sequence[Signed], sent: Exchanged | None) -> None:
        """Are the clients, weights and scale those that parts were made with, and those that follow from receipts?"""
        accepted, context = about["accepted"], self.context
        weights = [float.fromhex(weight) for weight in about["weights"]]
        told = dict(zip(accepted, weights, strict=True))
        if sent is not None and (
            {c: w for c, w in told.items() if w} != {c: w for c, w in sent.terms if w} or about["scale"] != sent.scale
        ):
            raise self._wrong("the record has other clients, weights or another scale than this party's part")
        if (exponent := context.mechanism.public_exponent) is not None:
            if set(weights) - {1.0} or about["scale"] != exponent:
                raise self._wrong("the weights or the scale are not those of the config")
            return
        own = {client: numbers for receipt in receipts for client, numbers in receipt.about["own"].items()}
        if lacking := [client for client in told if client not in own and told[client]]:
            raise self._wrong(f"no receipt says what `{lacking[0]}` is weighed by")
        numbers = [[float.fromhex(each) for each in own[client]] for client in told if client in own]
        if weights != shares([weight for weight, _ in numbers]):
            raise self._wrong("the weights do not follow from what the silos have reported")
        counted = [(w, most) for w, (_, most) in zip(weights, numbers, strict=True)]
        if SumScale.of([w for w, _ in counted], [most for _, most in counted]).exponent != about["scale"]:
            raise self._wrong("the scale of the sum does not follow from what the silos have reported")

    def _check_sum(self, about: Mapping[str, Any], total: np.ndarray[Any, Any], tags: np.ndarray[Any, Any]) -> None:
        """Is the sum that of the parts, to the bit?"""
        exchanged = Exchanged(about["attempt"], self.context.round, about["scale"])
        key = self.witness.tag_key(exchanged)
        if root(total).hex() != about["sum"] or root(tags).hex() != about["tags"]:
            raise self._wrong("the server sends another sum, or other tags, than its record names")
        pads = [key.pads(party, len(tags)) for party in about["receipts"]]
        wrong = np.flatnonzero(added([key.tags(total), *pads], len(tags)) != tags)
        if len(wrong):
            names = ", ".join(about["receipts"])
            raise self._wrong(
                f"the sum is not that of the parts: {len(wrong)} of {len(tags)} leaves differ, the first is "
                f"{wrong[0]} (numbers {wrong[0] * LEAF} to {min(len(total), (wrong[0] + 1) * LEAF) - 1}). The server "
                f"or one of the silos {names} is at fault"
            )

    def _step(self, about: Mapping[str, Any], total: np.ndarray[Any, Any]) -> None:
        """Take the step that the server says it has taken."""
        context = self.context
        whole, count = torch.from_numpy(total.astype(np.float64)), len(about["accepted"])
        grad = context.mechanism.step_of(whole, about["scale"], count, context.vectors.flat.dtype)
        context.server.accepted, context.server.round = [Report(c) for c in about["accepted"]], context.round
        context.algorithm.server_update(context.server, grad)
        if context.vectors.root != about["next"]:
            raise self._wrong("the step from the sum comes to other weights than the server's")
        if self._state_root() != about["state"]:
            raise self._wrong("the step from the sum leaves another state of the optimiser than the server says")

    def _wrong(self, what: str) -> TrustError:
        return TrustError(
            f"round {self.context.round + 1}: {what}. Nothing further leaves this party; {self.receipts.evidence} has "
            "what the server sent"
        )

    def end(self) -> None:
        """Swear to the last record too."""
        context = self.context
        oath = partial(context.comm.meet, "closing", oath=self.oath())
        context.members.meet("closing", oath, may_stop=False)
        self.receipts.add(context.comm.sworn)

    def _state_root(self) -> str:
        """Digest of what the next step depends on beside the weights, hexadecimal."""
        server, exchanged = self.context.server, self.context.algorithm.exchanged_vectors
        kept = {name: t for name, t in server.tensors.items() if name != BEST and name not in exchanged}
        roots = {name: root(tensor.view(torch.uint8).numpy()).hex() for name, tensor in kept.items() if tensor.any()}
        text = canonical({"steps": int(server.numbers.get(SERVER_STEPS, 0)), "tensors": roots})
        return root(np.frombuffer(text.encode(), np.uint8)).hex()

    def _announced(self, told: Sequence[Signed]) -> list[Packet]:
        """On the server: how long what follows is."""
        return [self.context.message("numbers", numbers={"bytes": len(_packed(told))})]

    def _broadcast(
        self, told: Sequence[Signed], announced: Sequence[Packet], sums: Tensor | None = None
    ) -> list[Signed]:
        """The server's texts, and its sum, on all ranks."""
        context = self.context
        data = torch.zeros(int(announced[0].numbers["bytes"]), dtype=torch.uint8)
        if context.comm.is_server:
            data = torch.frombuffer(bytearray(_packed(told)), dtype=torch.uint8)

        def send() -> None:
            for vector in (data,) if sums is None else (sums, data):
                context.comm.broadcast(vector, numbers=0)

        context.members.retry_on_loss("record", send)
        try:
            return [Signed.of(line) for line in json.loads(data.numpy().tobytes())]
        except (ValueError, RecursionError) as error:
            raise TrustError(f"what the server sends as its record cannot be read: {error}") from None


def _packed(told: Sequence[Signed]) -> bytes:
    return json.dumps([{**each.line(), "kept": {}} for each in told]).encode()


def _words(digest: str) -> tuple[float, ...]:
    """A digest as numbers of 32 bits."""
    return tuple(float(int(digest[at : at + _WORD], 16)) for at in range(0, len(digest), _WORD))


def _digest(message: Packet) -> str:
    """The same back."""
    return "".join(f"{int(word):0{_WORD}x}" for word in message.lists["words"])
