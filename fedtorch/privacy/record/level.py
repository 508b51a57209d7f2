"""Differential privacy of rows, or of persons: each silo adds noise of its own to every step (DP-SGD).

What leaves a silo is a function of what it received, of public numbers, of its own coins and of noised sums, so its ε
holds against the server and the other silos, and whatever they do. Abadi et al. 2016, arXiv 1607.00133.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from torch import Tensor

from fedtorch.core.errors import ConfigError, UpdateError
from fedtorch.core.mechanism import Mechanism, RoundFacts
from fedtorch.core.server import ServerState
from fedtorch.core.silo_work import SiloWork
from fedtorch.core.update import Report
from fedtorch.privacy.record.held_out import counts_of, noised_count, numbers_of
from fedtorch.privacy.record.row_digests import bytes_of, digest_of_rows
from fedtorch.privacy.record.silo import OwnSilos, Silo, Training, parts_of
from fedtorch.privacy.record.steps import LIMIT, NoisedSteps, Place
from fedtorch.privacy.record.terms import RELATION, Part, SiloTerms, epsilon_of
from fedtorch.privacy.settings import Persons, PrivacyConfig

log = logging.getLogger(__name__)

STEPS = "noised_steps"
"""The number of a report that counts all of the silo's steps in this run that have left, those of repetitions too."""
_OF_SILO, _OF_SPLIT = "privacy/steps/", "privacy/counts/"
OUTSIDE = (
    "vocabularies, tokenizers, label sets, clusters and partitions that were fitted to rows",
    "which silos take part, whether their training failed, and how long their rounds take",
    "a silo's own administrator, who has the rows",
)
"""Facts that the guarantee does not cover, in every run."""
REVEALED = "silos' scores, and the choice of the best round by them (privacy.reveal)"


Units = Callable[[str, str, Sequence[Any]], Sequence[Sequence[int]]]
"""units(client, split, examples): of each unit its places among the client's rows of the split."""


class RecordLevel(Mechanism):
    """The mechanism of `privacy.kind: record`; a silo's key and ledger are asked for where it trains, and nowhere else.

    What of a report reaches the server is public, or a function of noised steps: status, norm, and numbers of steps.
    """

    needs_homes = True

    def __init__(
        self,
        terms: Mapping[str, SiloTerms],
        settings: PrivacyConfig,
        open_silo: Callable[[str], Silo],
        units: Units,
        kept: Sequence[str] = (),
        basis: str = "",
    ) -> None:
        """open_silo: the files of a client that trains here. units: whose its rows are.

        kept: names of further numbers of reports that follow from noised steps and public numbers alone. basis: all
        that scores follow from beside weights and rows, such as the base of an adapter.
        """
        self._basis = basis.encode()
        self.terms, self.settings, self._kept = dict(terms), settings, frozenset(kept)
        self.shows_losses, self.public_figures = False, (STEPS,)
        self.shows_scores = "scores" in settings.reveal
        self._units = units
        self.silos = OwnSilos(open_silo)
        self._digests: dict[str, bytes] = {}
        self._taken: dict[str, int] = {}

    # --- where a client trains

    def silo(self, client: str) -> Silo:
        """The client's key and ledger.

        Raises:
            CheckpointError: they are damaged, or not for their owner alone.
        """
        return self.silos[client]

    def rests(self, client: str, round: int) -> str:
        """Why the client takes no part in the round, as it would pass its `max_epsilon`; empty: it does.

        A round that is done again is not paid a second time, if it comes to the same; see `work` for one that does not.
        """
        silo, terms = self.silo(client), self.terms[client]
        if terms.max_epsilon is None:
            return ""
        known = silo.trainings()
        paid = sum(one.steps for one in known if (one.run, one.round, one.split) == (silo.run, round, ""))
        return self._above(client, known, "another round", terms.part(max(0, terms.steps - paid)), "it rests")

    def _above(self, client: str, known: Iterable[Training], what: str, part: Part, so: str) -> str:
        """Why one release more than is known would be above the limit; empty: it is not."""
        terms = self.terms[client]
        if terms.max_epsilon is None:
            return ""
        needed = epsilon_of([*parts_of(known), part], terms.delta)
        if needed <= terms.max_epsilon:
            return ""
        return (
            f"{what} would come to epsilon {needed:.4f} of its rows, above privacy.max_epsilon "
            f"{terms.max_epsilon:g}; {so}"
        )

    def work(self, client: str, round: int, examples: Sequence[Any], cohort: Sequence[str]) -> SiloWork:
        """Steps of the client in a round, each of which is noised.

        Raises:
            ConfigError: it has more units than its declared number allows.

        The next attempt at a training raises UpdateError where its steps would pass `max_epsilon`.
        """
        silo, terms, settings = self.silo(client), self.terms[client], self.settings
        units = self._units(client, "train", examples)
        if len(units) > LIMIT * terms.units:
            raise ConfigError(too_many(client, len(units), terms.units))
        if client not in self._digests:
            self._digests[client] = digest_of_rows(examples, units)
        about = [self._digests[client], repr((terms, settings.unit, settings.noise, self.max_rows)).encode()]

        def begin(purpose: str, facts: Iterable[bytes | memoryview]) -> NoisedSteps:
            steps = NoisedSteps(silo, terms, Place(round, purpose), settings.noise, [*about, *facts])
            known, part = silo.trainings(), terms.part(terms.steps)
            if steps.is_new_attempt and (why := self._above(client, known, "another round", part, "it rests")):
                raise UpdateError(f"the round is to be trained again, but {why}")
            return steps

        return SiloWork(
            examples,
            units,
            terms.units,
            self.max_rows,
            settings.per_unit,
            settings.physical,
            terms.pool is not None,
            begin,
        )

    @property
    def max_rows(self) -> int:
        """Rows of a unit in a step."""
        unit = self.settings.unit
        return unit.max_rows if isinstance(unit, Persons) else 1

    def reported(self, report: Report) -> Report:
        """Its status, the update's norm, which is that of noised numbers, steps, and the declared number of units."""
        kept = {name: report.extra[name] for name in self._kept & report.extra.keys()}
        if (silo := self.silos.get(report.client)) is not None:
            kept[STEPS] = float(sum(steps for *_, steps in parts_of(silo.trained(silo.run))))
        found = Report(report.client, report.status, norm=report.norm, max_abs=report.max_abs, extra=kept)
        if report.status != "ok":
            return found
        return replace(found, examples=self.terms[report.client].units, steps=report.steps)

    # --- where a client is evaluated

    def counts(self, client: str, split: str) -> bool:
        """Has it declared units of the split?"""
        terms = self.terms.get(client)
        return terms is not None and terms.held_out is not None and split in terms.held_out.units

    def counted(
        self, client: str, round: int, split: str, rows: Mapping[str, Sequence[float]], about: Sequence[Any]
    ) -> dict[str, tuple[float, int]]:
        """Noised sums over the declared number of units; none of a metric that would pass `max_epsilon`.

        Raises:
            ConfigError: it has more units than its declared number allows.
        """
        silo, terms, settings = self.silo(client), self.terms[client], self.settings
        assert terms.held_out is not None
        examples, *weights = about
        units, declared = self._units(client, split, examples), terms.held_out.units[split]
        if len(units) > LIMIT * declared:
            raise ConfigError(too_many(client, len(units), declared, f"privacy.eval.units.{client}.{split}"))
        facts = [digest_of_rows(examples, units), self._basis, *bytes_of(weights)]
        found = {}
        for metric in terms.held_out.metrics:
            numbers = numbers_of(rows.get(metric, ()), units)
            total, line = noised_count(
                silo, terms, numbers, round=round, split=split, metric=metric, noise=settings.noise, facts=facts
            )
            known, part = silo.trainings(), terms.held_out.part(1)
            is_new = all(one.end != line.end for one in known)
            if is_new and (why := self._above(client, known, f"the score {metric} of {split}", part, "it is not told")):
                log.warning("round %d: client %s: %s", round, client, why)
                continue
            silo.enter(line)
            found[metric] = (total, declared)
        return found

    def told(self, client: str) -> Mapping[str, float]:
        """How many counts have left it in this run, by split."""
        if client not in self.silos:
            return {}
        silo = self.silos[client]
        counts = counts_of(one for one in silo.trainings() if one.run == silo.run)
        return {_OF_SPLIT + split: float(count) for split, count in counts.items()}

    # --- on the server

    def heard(self, client: str, numbers: Mapping[str, float], server: ServerState) -> None:
        """Take the silo's counts over, and keep them in the server's state."""
        for name, number in numbers.items():
            if name.startswith(_OF_SPLIT):
                key = f"{name}/{client}"
                server.numbers[key] = max(int(server.numbers.get(key, 0)), int(number))

    def release(self, round: int, total: Tensor, server: ServerState, places: Any) -> Tensor | None:
        """As it is: every update is private alone."""
        self._see(server.accepted, server)
        return total

    def facts(self, round: int, facts: RoundFacts, server: ServerState) -> RoundFacts:
        """How many silos took part, ε of each so far and the norms of their updates; of losses nothing is known."""
        self._see(facts.reports or (), server)
        figures = dict(facts.figures)
        shown = [("", "simulated privacy")]
        if not self.settings.simulate and self._taken:
            spent = {name: self._epsilon(name, server) for name in self._taken}
            figures |= {f"privacy/epsilon/{name}": value for name, value in spent.items()}
            shown = [("largest ε", f"{max(spent.values()):.4f}")]
        ok = [report for report in facts.reports or () if report.status == "ok"]
        figures |= {f"privacy/norm/{report.client}": report.norm for report in ok}
        return RoundFacts(None, figures={**figures, "privacy/silos": float(len(ok))}, shown=shown)

    def summary(self, server: ServerState) -> dict[str, Any]:
        """For results.json and whatever is made of it."""
        for name in self.terms:
            self._taken.setdefault(name, int(server.numbers.get(_OF_SILO + name, 0)))
        config = self.settings
        said: dict[str, Any] = {"kind": "record", "simulated": config.simulate}
        silos = {}
        for name, terms in self.terms.items():
            silos[name] = terms.record()
            if not config.simulate:
                silos[name] |= {"epsilon": self._epsilon(name, server), "steps": self._taken[name]}
            if not config.simulate and terms.held_out is not None:
                silos[name]["held_out"]["counts"] = self._counts_of(name, server)
        unit = config.unit
        return said | {
            "unit": "row" if unit == "row" else f"person (column {unit.column}, {unit.max_rows} rows at most)",
            "relation": RELATION,
            "silos": silos,
            "clip": config.first_clip,
            "noise": config.noise,
            "accountant": f"privacy loss distribution, dp-accounting {version('dp-accounting')}",
            "outside": self.outside,
        }

    @property
    def outside(self) -> list[str]:
        """Parts that the guarantee says nothing about."""
        return [*OUTSIDE, *([REVEALED] if self.shows_scores else [])]

    def _see(self, reports: Sequence[Report], server: ServerState) -> None:
        """Take the silos' counts over, and keep them in the server's state."""
        for report in reports:
            if STEPS in report.extra:
                self._taken[report.client] = max(self._taken.get(report.client, 0), int(report.extra[STEPS]))
        server.numbers.update({_OF_SILO + name: steps for name, steps in self._taken.items()})

    def _epsilon(self, name: str, server: ServerState) -> float:
        return self.terms[name].promised(self._taken[name], self._counts_of(name, server))

    def _counts_of(self, name: str, server: ServerState) -> dict[str, int]:
        """Split -> noised counts of the silo in this run."""
        held_out = self.terms[name].held_out
        splits = () if held_out is None else held_out.units
        found = {split: int(server.numbers.get(f"{_OF_SPLIT}{split}/{name}", 0)) for split in splits}
        return {split: count for split, count in found.items() if count}


def too_many(client: str, there: int, declared: int, key: str = "") -> str:
    """Say at the silo, and nowhere else, that it has more units than its sums are made for."""
    declares = key or "privacy.units"
    return (
        f"client {client} has {there} units, and {declares} declares {declared}; sums are exact for {LIMIT} times "
        f"these at most: set {key or f'privacy.units.{client}'} to about {there}"
    )
