"""Client-level differential privacy: what is released says little about whether any one client took part.

Central noise: whoever sees the released weights and records is meant, not the server, which sees the exact sum, nor a
worker's own administrator. DP-FedAvg with a fixed denominator (McMahan et al. 2018, arXiv 1710.06963):

    u_i = Δ_i · min(1, C/‖Δ_i‖),  k_i = trunc(u_i · 2^e),  S = Σ k_i + rint(z·C·2^e · g),  grad = S · 2^-e / (qN)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import numpy as np
from torch import Tensor

from fedtorch.core.client import Client
from fedtorch.core.errors import BudgetError, CheckpointError
from fedtorch.core.mechanism import Mechanism, RoundFacts
from fedtorch.core.places import Places
from fedtorch.core.server import ServerState
from fedtorch.core.state_keys import CLIP, NOISE_KEY
from fedtorch.core.update import Report
from fedtorch.privacy.accounting import RELATION, Accountant
from fedtorch.privacy.adaptive import bit_noise, moved, noised_count, update_noise
from fedtorch.privacy.clip import bound, exponent_of
from fedtorch.privacy.ledger import Ledger
from fedtorch.privacy.noise import ADD, Noise
from fedtorch.privacy.public_sum import Masking, exact_sum, settled_clients
from fedtorch.privacy.settings import PrivacyConfig
from fedtorch.privacy.stream import Stream, chosen, derived

UNCLIPPED = "unclipped"
"""The number of a report that says whether its update was as it is: 1, or 0 where it was clipped."""
HIDDEN = "(hidden)"
"""What stands in logs and signs of life in place of a client that takes part."""
OUTSIDE = (
    "vocabularies, label sets, clusters and partitions that were fitted to clients' rows",
    "how long rounds took",
    "how often a round was tried again, as it came to another sum",
)
"""Facts that the guarantee does not cover, in every run."""
REVEALED = {
    "losses": "the mean training loss of every round (privacy.reveal)",
    "scores": "clients' scores, and the choice of the best round by them (privacy.reveal)",
    "sizes": "the number of rows (privacy.reveal)",
}


@dataclass(frozen=True)
class PrivacyTerms:
    """The public numbers that the promise rests on."""

    rate: float
    """q: the probability that a client takes part in a round."""
    clients: int
    """N."""
    noise_multiplier: float
    """z; 0 on ranks that neither draw nor account."""
    settings: PrivacyConfig
    """The section of the config."""

    @property
    def expected(self) -> float:
        """qN: the fixed denominator."""
        return self.rate * self.clients

    def record(self, rounds: int) -> dict[str, Any]:
        """As the ledger keeps them. rounds: of the run, which decide on z where `epsilon` is given."""
        config = self.settings
        moving = config.adaptive
        return {
            "rate": self.rate,
            "clients": self.clients,
            "noise_multiplier": self.noise_multiplier,
            "delta": config.delta,
            "clip": config.first_clip,
            "adaptive": None if moving is None else [moving.quantile, moving.rate, moving.bit_noise],
            "epsilon": None if config.epsilon is None else [config.epsilon, rounds],
            "noise": None if config.noise == "normal" else config.noise,
        }


class ClientLevel(Mechanism):
    """The mechanism of `privacy.kind: client`; the ledger, with its key, is the server's alone.

    Half-way failures: an update that is not finite, or a client that fails, adds nothing, and nothing is divided anew.
    A process that dies before the ledger's line is on the disk has released nothing. After it the round is done again
    with the same cohort; it comes to the same sum, which gets the same noise, or to another one, which does not leave:
    the round has its next attempt then, with a cohort and noise of its own, and that is one more release.
    """

    hides_clients = True
    may_withhold = True

    def __init__(self, terms: PrivacyTerms, ledger: Ledger | None, masking: Masking | None = None) -> None:
        """masking: of a secure sum; None: the server sees the updates."""
        self.terms, self.ledger, self.masking = terms, ledger, masking
        self.settings = terms.settings
        self.shows_losses = "losses" in self.settings.reveal
        self.shows_scores = "scores" in self.settings.reveal
        assert self.settings.delta is not None
        self.account = Accountant(terms.rate, terms.noise_multiplier, self.settings.delta)
        self._clip = self.settings.first_clip
        self._noise = Noise(self.settings.noise)
        self._attempt = 0  # at the round under way, on the server

    # --- of the round

    def least(self, configured: int) -> int:
        """0: a round without clients is a round, and looks like any other."""
        return 0

    def shown(self, client: str) -> str:
        """Nobody is named."""
        return HIDDEN

    def begin(self, round: int, server: ServerState) -> Mapping[str, float]:
        """The clip of the round, whose last attempt is the one under way.

        Raises:
            BudgetError: its release would pass `max_epsilon`.
            CheckpointError: the state is of a run with another key, or with releases that the ledger lacks.
        """
        ledger = self._own_ledger
        ledger.refresh()
        self._check_state(round, server)
        last = ledger.last(round)
        if last is None or last.is_open:
            self._check_budget(int(last is None), round)
        self._attempt = 0 if last is None else last.attempt
        if self.masking is not None:
            self.masking.attempt = self._attempt
        return {"clip": float(server.numbers.get(CLIP, self.settings.first_clip))}

    def enter(self, numbers: Mapping[str, float]) -> None:
        """Take the clip over."""
        self._clip = float(numbers["clip"])

    def draw(self, clients: Sequence[Client], round: int) -> list[Client]:
        """Every client by itself with probability q, from the key; the same again for the same attempt at a round."""
        stream = Stream(derived(self._own_ledger.key, "cohort", round, self._attempt))
        return [clients[place] for place in chosen(stream, len(clients), self.terms.rate)]

    def expect(self, round: int, numbers: int) -> None:
        """Draw the noise of the attempt meanwhile."""
        self._noise.expect(self._own_ledger.key, round, self._attempt, self.deviation, numbers)

    @property
    def exponent(self) -> int:
        """e of the round: numbers are multiples of 2^-e."""
        return exponent_of(self._clip, self.terms.clients)

    def outgoing(self, update: Tensor, report: Report) -> Report:
        """Clip and cut to whole numbers, in place.

        Raises:
            UpdateError: it is not finite.
        """
        norm = bound(update, self._clip, self.exponent)
        return replace(report, extra={**report.extra, UNCLIPPED: float(norm <= self._clip)})

    def reported(self, report: Report) -> Report:
        """That the client took part, or failed, and nothing of what it trained on."""
        kept = Report(report.client, status=report.status)
        if self.settings.adaptive is not None and UNCLIPPED in report.extra:
            kept = replace(kept, extra={UNCLIPPED: report.extra[UNCLIPPED]})
        if self.shows_losses:
            kept = replace(kept, examples=report.examples, loss_mean=report.loss_mean)
        return kept

    def combine(self, updates: Any, otherwise: Callable[[Any], Tensor]) -> Tensor:
        """Exact sum with equal weights, whatever the algorithm's are."""
        return exact_sum(updates, self.exponent, self._clip, self.masking)

    def settled(self, round: int) -> Collection[str] | None:
        """Take the round's outcome over from the ledger."""
        return None if self.masking is None else settled_clients(self.masking, round)

    def release(self, round: int, total: Tensor, server: ServerState, places: Places | None) -> Tensor | None:
        """Noise on the sum, the fixed denominator, and the next round's clip; once the ledger has a line of it.

        None: another sum was released under this attempt, and the ledger has the next one now. With the same cohort two
        releases would be one with noise z/√2, and not the two with z that are counted.
        """
        ledger, accepted = self._own_ledger, server.accepted
        server.accepted = []  # how many they are is no public number
        halves = sum(1 if report.extra.get(UNCLIPPED) else -1 for report in accepted)
        whole = (total if places is None else places.take(total)).numpy()
        deviation = self.deviation
        facts = f"{self.exponent} {deviation.hex()} {halves if self.settings.adaptive else 0}".encode()
        digest = ledger.digest_of(facts, whole.view(np.uint8).data)
        if not ledger.enter(round, self._attempt, digest):
            self._check_budget(1, round)
            ledger.renew(round)
            return None
        self._noise.add(whole, ledger.key, round, self._attempt, deviation)
        whole *= math.ldexp(1.0, -self.exponent) / self.terms.expected
        part = total if places is None else places.put(total.new_tensor(whole), total)  # `whole` lies in `total`
        server.numbers[NOISE_KEY] = ledger.check
        if (rule := self.settings.adaptive) is not None:
            sigma = bit_noise(rule, self.terms.expected)
            stream = Stream(derived(ledger.key, "count", round, self._attempt))
            count = noised_count(halves, sigma, stream, ADD[self.settings.noise])
            server.numbers[CLIP] = moved(self._clip, rule, count, self.terms.expected)
        return part.to(server.dtype)

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise on one number of the sum, in steps of 2^-e."""
        z, rule = self.terms.noise_multiplier, self.settings.adaptive
        if rule is not None:
            z = update_noise(z, bit_noise(rule, self.terms.expected))
        return z * math.ldexp(self._clip, self.exponent)

    # --- what is said of it

    @property
    def epsilon(self) -> float:
        """ε of all releases so far."""
        return self.account.epsilon_of(self._own_ledger.spent)

    def facts(self, round: int, facts: RoundFacts, server: ServerState) -> RoundFacts:
        """ε so far, and the clip where it moves; who took part, how many, and what they sent is left out."""
        figures = {} if self.settings.adaptive is None else {"privacy/clip": self._clip}
        shown = [("", "simulated privacy")]
        if not self.settings.simulate:
            figures["privacy/epsilon"] = self.epsilon
            shown = [("ε", f"{self.epsilon:.4f}"), ("δ", f"{self.settings.delta:g}")]
        loss = None
        if self.shows_losses and facts.reports:
            ok = [report for report in facts.reports if report.is_ok]
            rows = sum(report.examples for report in ok)
            loss = math.fsum(report.examples * report.loss_mean for report in ok) / rows if rows else None
        return RoundFacts(None, loss=loss, figures=figures, shown=shown)

    @property
    def outside(self) -> list[str]:
        """Parts that the guarantee says nothing about."""
        return [*OUTSIDE, *(REVEALED[name] for name in self.settings.reveal)]

    def summary(self, server: ServerState) -> dict[str, Any]:
        """For results.json and whatever is made of it."""
        config, terms = self.settings, self.terms
        said: dict[str, Any] = {"kind": "client", "simulated": config.simulate}
        if not config.simulate:
            said |= {"epsilon": self.epsilon, "delta": config.delta, "releases": len(self._own_ledger.releases)}
            said |= {"data": self._own_ledger.of_data()}
        said |= {
            "relation": RELATION,
            "sampling": f"Poisson, rate {terms.rate:g}",
            "clients": terms.clients,
            "noise_multiplier": terms.noise_multiplier,
            "clip": config.first_clip if config.adaptive is None else "adaptive",
            "noise": config.noise,
            "accountant": f"privacy loss distribution, dp-accounting {version('dp-accounting')}",
            "outside": self.outside,
        }
        return said

    # --- checks

    @property
    def _own_ledger(self) -> Ledger:
        assert self.ledger is not None, "only the server draws, adds noise and accounts"
        return self.ledger

    def _check_budget(self, more: int, round: int) -> None:
        """more: releases than the ledger has."""
        limit, ledger = self.settings.max_epsilon, self._own_ledger
        spent = ledger.spent + Counter({1: more})
        if limit is not None and (needed := self.account.epsilon_of(spent)) > limit:
            raise BudgetError(
                f"round {round + 1} would be release {len(ledger.releases) + more} and come to epsilon {needed:.4f}, "
                f"above privacy.max_epsilon {limit:g}; what was released so far comes to {self.epsilon:.4f}. All "
                "rounds before it are saved; start the run again with a larger privacy.max_epsilon to go on"
            )

    def _check_state(self, round: int, server: ServerState) -> None:
        ledger = self._own_ledger
        known, since = server.numbers.get(NOISE_KEY), ledger.terms.get("since", 0)
        if known is not None and known != ledger.check and round != since:
            raise CheckpointError(
                f"the state after round {round} was made with another key than the one in {ledger.folder}; bring that "
                "key back, or begin anew with `--resume never`"
            )
        if ledger.folder is None:
            return
        missing = set(range(round)) - {release.round for release in ledger.releases}
        if missing:
            raise CheckpointError(
                f"the ledger in {ledger.folder} has no release of round {min(missing) + 1}, but the state is of "
                f"{round} rounds; bring the ledger back, or begin anew with `--resume never`"
            )
