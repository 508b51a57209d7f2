"""Rounds that silos check: the sum by tags, the step by taking it themselves (`trust.verify`).

    1. Before updates leave, all parties swear to the weights from which they have trained, and to the last record.
    2. Each silo sends its part with tags and a receipt (`comm.sums.witnessed`).
    3. The server steps, and sends its record of the round with all receipts, the sum and its tags.
    4. Each silo looks whether the record is about what it has sent and received itself, whether the tags are those of
       the sum, and whether the same step from the same weights comes to the same weights and state.

So nothing leaves a silo after a round that it has not found right. `WholeSteps` looks at all of it,
`opened_leaves.OpenedSteps` at leaves that the server cannot foresee.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedtorch.algorithms.weighting import shares
from fedtorch.comm.job.witness import Exchanged, Witness
from fedtorch.comm.sums.reproducible import PIECE, SumScale
from fedtorch.comm.transport.process_group import ignored
from fedtorch.core.client import Client
from fedtorch.core.errors import PolicyError, TrustError, WrongWorkError
from fedtorch.core.prime import Words
from fedtorch.core.update import Report
from fedtorch.rounds.aggregation import Decision
from fedtorch.rounds.chain import Chain
from fedtorch.rounds.context import RoundContext
from fedtorch.rounds.steps import Steps
from fedtorch.trust.kept import KeptLeaves
from fedtorch.trust.merkle import LEAF, PassingLeaves, leaves_in, levels, path, root
from fedtorch.trust.receipts import Signed, is_enough
from fedtorch.trust.tags import Whole

log = logging.getLogger(__name__)


class CheckedSteps(Steps, ABC):
    """The server's steps, on all ranks, each with a record that silos look at."""

    def __init__(self, context: RoundContext, witness: Witness) -> None:
        super().__init__(context)
        self.witness, self.chain = witness, Chain(context, witness)
        self._delivered: list[str] = []
        """clients of the round whose reports are right; on a silo its own"""

    def begin(self, *, resumed: bool) -> None:
        """Agree on where the run begins, or goes on; see `Chain.begin`."""
        self.chain.begin(resumed=resumed)

    def oath(self) -> str:
        """Digests of the weights, and of the last record that this party has found right.

        Raises:
            TrustError: the weights that came are not those of the record.
        """
        known = str(self.chain.record.about["next"])
        self.witness.weights = known if self._has_weights else self.context.vectors.sent_root
        if self.witness.weights != known:
            raise self.wrong("the server has sent other weights than its record of the round before names")
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
        self._delivered = [report.client for report in reports if report.is_ok]
        self.witness.last, draws = None, {client.name: count for client, count in cohort}
        if self.context.mechanism.public_exponent is None and self.witness.has_tags:
            own = {r.client: (self._weight(r, draws.get(r.client, 1)), r.max_abs) for r in reports if r.is_ok}
            self.witness.own = {client: [number.hex() for number in numbers] for client, numbers in own.items()}

    def _weight(self, report: Report, draws: int) -> float:
        report = Report(**{**vars(report), "draws": draws})
        return float(self.context.algorithm.own_weight(report) or 0.0)

    def take(self, decision: Decision, grad: Tensor | None) -> None:
        """On the server step and tell; on a silo look at what is told.

        Raises:
            TrustError: on a silo, what the server tells cannot be.
        """
        context, exchanged = self.context, self.witness.last
        told, sums = list[Signed](), None if context.comm.is_server else self._room()
        if context.comm.is_server:
            assert grad is not None and exchanged is not None
            self._before(exchanged)
            context.algorithm.server_update(context.server, grad)
            told = [*exchanged.receipts.values(), self._of_round(exchanged, decision)]
            self.chain.receipts.add(told)
            sums = self._shown(exchanged)
        meeting = partial(context.comm.meet, "record", answer=lambda _: self.chain.told(told), vector=sums)
        context.comm.heartbeat(phase="record", round=context.round)
        met = context.members.meet("record", meeting, may_stop=False)
        told = self.chain.heard(met.answered)
        if sums is not None:
            context.members.retry_on_loss("record", partial(self._send_sums, sums))
        if context.comm.is_server:
            self._answer(told[-1])
        else:
            self._check_round(told, exchanged, sums)
            if left_out := sorted({*self._delivered} - {*told[-1].about.get("accepted", self._delivered)}):
                log.warning(
                    "round %d: the server has left out %s, whose report was right; its record says so to all parties",
                    context.round + 1,
                    ", ".join(left_out),
                )
        self.chain.record = told[-1]
        self._stepped()

    @property
    def _has_weights(self) -> bool:
        """Has this party the record's weights by its own step, so that nothing was sent that could be others?"""
        return self.context.comm.is_server

    def _next_root(self) -> str:
        """On the server: the root of the weights after the step."""
        return self.context.vectors.root

    def _room(self) -> Tensor | None:
        """On a silo: where what is sent with the record comes; None: nothing is."""
        return None

    def _shown(self, exchanged: Exchanged) -> Tensor | None:
        """On the server: what is sent with the record."""
        return None

    def _send_sums(self, sums: Tensor) -> None:
        """Send what `_shown` gives, into what `_room` gives."""
        self.context.comm.broadcast(sums, numbers=0)

    @abstractmethod
    def _look(self, record: Signed, receipts: Sequence[Signed], sums: Tensor | None) -> None:
        """On a silo: are sum and step what the record says? And keep the texts.

        Raises:
            TrustError: they are not.
        """

    def _stepped(self) -> None:
        """Say whether other ranks have what the server now has; else it is broadcast."""
        self.context.vectors.stepped()

    def _before(self, exchanged: Exchanged) -> None:
        """On the server: keep what is needed later of what is there before the step."""

    def _answer(self, record: Signed) -> None:
        """On the server: answer what silos ask for once they have the record."""

    def _of_round(self, exchanged: Exchanged, decision: Decision) -> Signed:
        """On the server: the record of a step that it has taken."""
        parties = self.witness.identity.parties
        about = {
            "attempt": exchanged.attempt,
            "colluders": self.context.config.privacy.colluders,
            "dtype": str(self.context.vectors.flat.dtype),
            "from": self.chain.last,
            "leaves": self._leaves,
            "next": self._next_root(),
            "previous": self.chain.last,
            "receipts": {parties[rank]: receipt.digest for rank, receipt in exchanged.receipts.items()},
            "round": exchanged.round,
            "state": self.chain.state(),
            **self._of_sum(exchanged, decision),
        }
        return self.witness.sign("record", about)

    def _of_sum(self, exchanged: Exchanged, decision: Decision) -> dict[str, Any]:
        """On the server: what a record says of the sum."""
        assert exchanged.total is not None and exchanged.tags is not None
        exchanged.tree = levels(exchanged.hashes)
        accepted = [report.client for report in decision.accepted]
        return {
            "accepted": accepted,
            "scale": exchanged.scale,
            "sum": exchanged.tree[-1][0].hex(),
            "tags": root(exchanged.tags).hex(),
            "weights": [decision.weights.get(client, 1.0).hex() for client in accepted],
        }

    def _check_round(self, told: Sequence[Signed], exchanged: Exchanged | None, sums: Tensor | None) -> None:
        try:
            *receipts, record = told
            self._check_record(record, receipts, exchanged)
            self._look(record, receipts, sums)
        except PolicyError:
            raise
        except TrustError as error:
            self.chain.receipts.keep_evidence(str(error), told)
            raise WrongWorkError(str(error)) from error
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self.chain.receipts.keep_evidence(f"{type(error).__name__}: {error}", told)
            raise WrongWorkError(f"the server's record of round {self.context.round + 1} is none: {error}") from error

    def kept_receipts(self, receipts: Sequence[Signed]) -> list[Signed]:
        """The round's receipts, this party's own with what it keeps beside it."""
        own = self.witness.last.receipts.get(self.witness.rank) if self.witness.last else None
        others = [receipt for receipt in receipts if receipt.party != self.witness.party]
        return [*others, own] if own is not None else others

    def _check_record(self, record: Signed, receipts: Sequence[Signed], exchanged: Exchanged | None) -> None:
        """Is the record about this round, this past and this party's own part, and are all receipts in it signed?"""
        witness, about = self.witness, record.about
        for signed in (record, *receipts):
            signed.check(witness.identity.members)
        if record.party != self.chain.server or record.kind != "record" or about["meeting"] != witness.meeting:
            raise self.wrong("the record is not the server's of this meeting")
        last = self.chain.last
        expected = {"round": self.context.round, "previous": last, "from": last, "run": witness.run}
        if differing := [name for name, value in expected.items() if about[name] != value]:
            raise self.wrong(f"the record has another `{differing[0]}` than what this party has seen")
        if {each.party: each.digest for each in receipts} != about["receipts"]:
            raise self.wrong("the server passes on other receipts than its record names")
        for receipt in receipts:
            said = receipt.about
            same = {"attempt": about["attempt"], "round": self.context.round, "weights": witness.weights}
            if receipt.kind != "receipt" or any(said[name] != value for name, value in same.items()):
                raise self.wrong(f"the receipt of `{receipt.party}` is of another exchange, or of other weights")
        own = exchanged.receipts.get(witness.rank) if exchanged else None
        if own is not None and about["receipts"].get(witness.party) != own.digest:
            raise self.wrong("this party has sent a part, and its receipt is not in the record")
        if own is None and witness.party in about["receipts"]:
            raise self.wrong("the record has a receipt of this party, which has sent nothing")
        self._check_terms(about, receipts, exchanged if own is not None else None)

    def _check_terms(self, about: Mapping[str, Any], receipts: Sequence[Signed], sent: Exchanged | None) -> None:
        """Are the clients, weights and scale those that parts were made with, and those that follow from receipts?"""
        accepted, context = about["accepted"], self.context
        weights = [float.fromhex(weight) for weight in about["weights"]]
        told = dict(zip(accepted, weights, strict=True))
        if sent is not None and (
            {c: w for c, w in told.items() if w} != {c: w for c, w in sent.terms if w} or about["scale"] != sent.scale
        ):
            raise self.wrong("the record has other clients, weights or another scale than this party's part")
        if (exponent := context.mechanism.public_exponent) is not None:
            if set(weights) - {1.0} or about["scale"] != exponent:
                raise self.wrong("the weights or the scale are not those of the config")
            return
        own = {client: numbers for receipt in receipts for client, numbers in receipt.about["own"].items()}
        if lacking := [client for client in told if client not in own and told[client]]:
            raise self.wrong(f"no receipt says what `{lacking[0]}` is weighed by")
        numbers = [[float.fromhex(each) for each in own[client]] for client in told if client in own]
        if weights != shares([weight for weight, _ in numbers]):
            raise self.wrong("the weights do not follow from what the silos have reported")
        counted = [(w, most) for w, (_, most) in zip(weights, numbers, strict=True)]
        if SumScale.of([w for w, _ in counted], [most for _, most in counted]).exponent != about["scale"]:
            raise self.wrong("the scale of the sum does not follow from what the silos have reported")

    def check_tags(
        self, about: Mapping[str, Any], numbers: Whole, tags: Words, places: Sequence[int] | None = None
    ) -> None:
        """Are these leaves of the sum those of the parts?

        numbers, tags: of the leaves, laid end to end. places: which they are, ascending; None: all.

        Raises:
            TrustError: they are not.
        """
        exchange = self.witness.name_of(Exchanged(about["attempt"], self.context.round, about["scale"]))
        parties = list(about["receipts"])
        count, first = self.witness.known_tags.wrong(exchange, parties, self._leaves, numbers, tags, places)
        if count:
            last = min(len(self.context.vectors.flat), (first + 1) * LEAF) - 1
            raise self.wrong(
                f"the sum is not that of the parts: {count} of {len(tags)} leaves differ, the first is {first} "
                f"(numbers {first * LEAF} to {last}). The server or one of the silos {', '.join(parties)} is "
                "at fault"
            )

    @property
    def _leaves(self) -> int:
        return leaves_in(len(self.context.vectors.flat))

    def step_of(self, about: Mapping[str, Any], numbers: Whole) -> Tensor:
        """Make of these numbers of the sum what the server steps along."""
        whole = np.empty(min(len(numbers), PIECE))
        flat = self.context.vectors.flat
        found = self.witness.lend_vector(len(flat), flat.dtype)[: len(numbers)]
        for part, out in zip(torch.from_numpy(numbers).split(PIECE), found.split(PIECE), strict=True):
            some = torch.from_numpy(whole[: len(part)]).copy_(part)
            out.copy_(self.context.mechanism.step_of(some, about["scale"], about["accepted"], found.dtype))
        return found

    def wrong(self, what: str) -> TrustError:
        return WrongWorkError(
            f"round {self.context.round + 1}: {what}. Nothing further leaves this party; what the server sent is in "
            f"{self.chain.receipts.evidence}"
        )

    def summary(self) -> dict[str, Any]:
        """Members, what was checked, and the record that the run ends with."""
        members = self.witness.identity.members
        return {
            "federation": members.federation,
            "members": members.digest,
            "server": self.chain.server,
            "silos": [name for name in self.witness.identity.parties.values() if name != self.chain.server],
            "verify": self.context.config.trust.verify,
            "has_sums": self.witness.has_tags,
            "rounds": len({record.about["round"] for record in self.chain.receipts.records() if record.is_of_round}),
            "record": self.chain.last,
        }

    def end(self) -> None:
        """Swear to the last record too."""
        context = self.context
        oath = partial(context.comm.meet, "closing", oath=f"{self.chain.record.about['next']} {self.chain.last}")
        context.members.meet("closing", oath, may_stop=False)
        self.chain.receipts.add(context.comm.sworn)


class WholeSteps(CheckedSteps):
    """Each silo gets the whole sum and takes the step itself, so weights are not broadcast."""

    @property
    def _has_weights(self) -> bool:
        return True

    def _room(self) -> Tensor:
        return torch.from_numpy(self.witness.lend(len(self.context.vectors.flat) + self._leaves))

    def _shown(self, exchanged: Exchanged) -> Tensor:
        assert exchanged.room is not None and exchanged.tags is not None
        exchanged.room[-len(exchanged.tags) :] = exchanged.tags.view(np.int64)
        return torch.from_numpy(exchanged.room)

    def _send_sums(self, sums: Tensor) -> None:
        self._came = PassingLeaves(sums[: -self._leaves])
        self.context.comm.broadcast(sums, numbers=0, came=ignored if self.context.comm.is_server else self._came.up_to)

    def _look(self, record: Signed, receipts: Sequence[Signed], sums: Tensor | None) -> None:
        assert sums is not None
        context, about = self.context, record.about
        total, tags = sums[: -self._leaves].numpy(), sums[-self._leaves :].numpy().view(np.uint64)
        tree = levels(self._came.hashes)
        if tree[-1][0].hex() != about["sum"] or root(tags).hex() != about["tags"]:
            raise self.wrong("the server sends another sum, or other tags, than its record names")
        self.check_tags(about, total, tags)
        context.server.accepted, context.server.round = [Report(c) for c in about["accepted"]], context.round
        context.algorithm.server_update(context.server, self.step_of(about, total))
        if context.vectors.root != about["next"]:
            raise self.wrong("the step from the sum comes to other weights than the server's")
        if self.chain.state() != about["state"]:
            raise self.wrong("the step from the sum leaves another state of the optimiser than the server says")
        self.chain.receipts.add([*self.kept_receipts(receipts), record.found_right()])
        if (share := context.config.trust.keep) > 0:
            places = self.witness.known_tags.drawn(record, self._leaves, share)
            numbers = np.concatenate([total[place * LEAF : (place + 1) * LEAF] for place in places])
            paths = np.frombuffer(b"".join(b"".join(path(tree, place)) for place in places), np.uint8)
            self.chain.kept.keep_leaves(record.digest, KeptLeaves(places, numbers, tags[places], paths))

    def _stepped(self) -> None:
        self.context.vectors.written(everywhere=True)
