"""Rounds of which silos check all: the sum by tags, the step by taking it themselves (`trust.verify: all`).

    1. Before updates leave, all parties swear to the weights from which they have trained, and to the last record.
    2. Each silo sends its part with tags and a receipt (`comm.sums.witnessed`).
    3. The server steps, and sends its record of the round with all receipts, the sum and its tags.
    4. Each silo looks whether the record is about what it has sent and received itself, whether the tags are those of
       the sum, and whether the same step from the same weights comes to the same weights and state.

So nothing leaves a silo after a round that it has not found right. Weights are not broadcast: every silo has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedtorch.algorithms.weighting import shares
from fedtorch.comm.job.witness import Exchanged, Witness
from fedtorch.comm.sums.reproducible import SumScale
from fedtorch.core.client import Client
from fedtorch.core.errors import TrustError
from fedtorch.core.update import Report
from fedtorch.rounds.aggregation import Decision
from fedtorch.rounds.chain import Chain
from fedtorch.rounds.context import RoundContext
from fedtorch.rounds.steps import Steps
from fedtorch.trust.merkle import LEAF, root
from fedtorch.trust.receipts import Signed, is_enough
from fedtorch.trust.tags import added


class CheckedSteps(Steps):
    """The same steps, on all ranks."""

    def __init__(self, context: RoundContext, witness: Witness) -> None:
        super().__init__(context)
        self.witness, self.chain = witness, Chain(context, witness)

    def begin(self, *, resumed: bool) -> None:
        """Agree on where the run begins, or goes on; see `Chain.begin`."""
        self.chain.begin(resumed=resumed)

    def oath(self) -> str:
        """Digests of the weights, and of the last record that this party has found right."""
        self.witness.weights = self.context.vectors.root
        return f"{self.witness.weights} {self.chain.last}"

    def sworn(self, reports: Sequence[Report], cohort: Sequence[tuple[Client, int]]) -> None:
        """Keep what all have sworn to.

        Raises:
            TrustError: too few silos have: others could be told something else.
        """
        signed = self.context.comm.sworn
        silos = len(self.witness.identity.members.silos)
        there = sum(each.party != self.chain.server for each in signed)
        if not is_enough(there, silos, self.context.config.privacy.colluders):
            raise TrustError(
                f"{there} of {silos} silos that are members have the last record; more than half of them (with "
                "privacy.colluders more) must, or the server could go on with others from another one. Start the run "
                "again with all silos, or have those that are gone taken out of the list of members"
            )
        self.chain.receipts.add(signed)
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
            self.chain.receipts.add(told)
            sums = torch.from_numpy(np.concatenate([exchanged.total, exchanged.tags.view(np.int64)]))
        meeting = partial(context.comm.meet, "record", answer=lambda _: self.chain.announced(told), vector=sums)
        context.comm.heartbeat(phase="record", round=context.round)
        met = context.members.meet("record", meeting, may_stop=False)
        told = self.chain.broadcast(told, met.answered, sums)
        if not context.comm.is_server:
            self._check_round(told, exchanged, sums, decision)
        self.chain.last = told[-1].digest
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
            "from": self.chain.last,
            "next": self.context.vectors.root,
            "previous": self.chain.last,
            "receipts": {parties[rank]: receipt.digest for rank, receipt in exchanged.receipts.items()},
            "round": exchanged.round,
            "scale": exchanged.scale,
            "state": self.chain.state_root(),
            "sum": root(exchanged.total).hex(),
            "tags": root(exchanged.tags).hex(),
            "weights": [decision.weights.get(client, 1.0).hex() for client in accepted],
        }
        return self.witness.sign("record", about)

    def _check_round(
        self, told: Sequence[Signed], exchanged: Exchanged | None, sums: Tensor, decision: Decision
    ) -> None:
        try:
            *receipts, record = told
            self._check_record(record, receipts, exchanged)
            about = record.about
            total = sums[: len(self.context.vectors.flat)].numpy()
            self._check_sum(about, total, sums[len(total) :].numpy().view(np.uint64))
            self._step(about, total)
        except TrustError as error:
            self.chain.receipts.keep_evidence(str(error), told)
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self.chain.receipts.keep_evidence(f"{type(error).__name__}: {error}", told)
            raise TrustError(f"the server's record of round {self.context.round + 1} is none: {error}") from error
        own = exchanged.receipts.values() if exchanged else ()
        others = [receipt for receipt in receipts if receipt.party != self.witness.party]
        self.chain.receipts.add([*own, *others, record.found_right()])

    def _check_record(self, record: Signed, receipts: Sequence[Signed], exchanged: Exchanged | None) -> None:
        """Is the record about this round, this past and this party's own part, and are all receipts in it signed?"""
        witness, about = self.witness, record.about
        for signed in (record, *receipts):
            signed.check(witness.identity.members)
        if record.party != self.chain.server or record.kind != "record" or about["meeting"] != witness.meeting:
            raise self._wrong("the record is not the server's of this meeting")
        last = self.chain.last
        expected = {"round": self.context.round, "previous": last, "from": last, "run": witness.run}
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
        if self.chain.state_root() != about["state"]:
            raise self._wrong("the step from the sum leaves another state of the optimiser than the server says")

    def _wrong(self, what: str) -> TrustError:
        return TrustError(
            f"round {self.context.round + 1}: {what}. Nothing further leaves this party; what the server sent is in "
            f"{self.chain.receipts.evidence}"
        )

    def end(self) -> None:
        """Swear to the last record too."""
        context = self.context
        oath = partial(context.comm.meet, "closing", oath=self.oath())
        context.members.meet("closing", oath, may_stop=False)
        self.chain.receipts.add(context.comm.sworn)
