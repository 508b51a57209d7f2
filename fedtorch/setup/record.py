"""Privacy of rows and persons, from a config: every silo's public numbers, and where its key and ledger lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedtorch.core.client import folder_name
from fedtorch.core.errors import ConfigError
from fedtorch.core.silo_work import by_person
from fedtorch.privacy.ledger import FOLDER
from fedtorch.privacy.public_sum import Masking
from fedtorch.privacy.record.level import RecordLevel
from fedtorch.privacy.record.shared import SharedNoise
from fedtorch.privacy.record.silo import Silo
from fedtorch.privacy.record.terms import HeldOut, Part, SiloTerms, epsilon_of_counts, noise_for
from fedtorch.privacy.secure_sum.terms import threshold_of
from fedtorch.privacy.settings import Persons, SiloPrivacy
from fedtorch.rounds.scoring import chooses_by
from fedtorch.setup.plan import Plan
from fedtorch.tasks.prepared import InFolder
from fedtorch.train.batches import Batching


def silo_terms(plan: Plan) -> dict[str, SiloTerms]:
    """Client -> its terms; where ε is given with the least noise multiplier that keeps it over all rounds.

    Where noise is shared it is one for all silos, the largest that one of them needs.
    """
    trainings = plan.algorithm.limits.trainings
    found = {client.name: _terms(plan, client.name, trainings) for client in plan.clients}
    if plan.config.privacy.noise_at == "local":
        return found
    pool, honest = sum(terms.units for terms in found.values()), threshold(plan) - plan.config.privacy.colluders
    # a unit is hidden by the others' noise too, so that all add as much as the one that needs most
    noise = max(terms.noise_multiplier for terms in found.values())
    honest = max(1, honest)
    return {n: replace(t, pool=pool, honest=honest, noise_multiplier=noise) for n, t in found.items()}


def threshold(plan: Plan) -> int:
    """t: parts that a sum has at least, where noise is shared."""
    secure = plan.config.privacy.secure_sum
    assert secure is not None
    return threshold_of(secure.threshold, len(plan.topology.workers))


def _terms(plan: Plan, name: str, trainings: int) -> SiloTerms:
    """A silo's terms, with so many trainings in a round."""
    config = plan.config
    hp, own, units = config.client_for(name), config.privacy.of_silo(name), config.privacy.units[name]
    epoch = trainings * Batching(hp.batch_size).steps_per_epoch(units)
    steps = hp.steps * trainings if hp.steps else (hp.epochs or 1) * epoch
    most = None if hp.total_epochs is None else hp.total_epochs * epoch
    total = steps * max(1, config.rounds) if most is None else min(steps * max(1, config.rounds), most)
    z = own.noise_multiplier
    assert own.delta is not None and isinstance(config.privacy.clip, float | int)
    if hp.batch_size > units:
        raise ConfigError(
            f"client.batch_size is {hp.batch_size} but privacy.units.{name} is {units}: a unit is in a batch with "
            "probability batch_size / units; set client.batch_size lower"
        )
    held_out, rounds = _held_out(plan, name), max(1, config.rounds)
    if z is None:
        counted = [] if held_out is None else _counted(held_out, rounds, name, own)
        beside = [] if held_out is None or held_out.apart else counted
        assert own.epsilon is not None
        sizes = {"units": units, "batch": hp.batch_size, "steps": total}
        z = noise_for(own.epsilon, silo=name, **sizes, delta=own.delta, beside=beside)
    clip = float(config.privacy.clip)
    about = name, units, hp.batch_size, steps, rounds, z, clip, own.delta, own.max_epsilon, most
    return SiloTerms(*about, held_out=held_out)


def _held_out(plan: Plan, name: str) -> HeldOut | None:
    """Terms of scores on a silo's held-out units; None: it has none."""
    config, when = plan.config.privacy, plan.config.eval
    if config.eval is None or not config.eval.units.get(name):
        return None
    return HeldOut(
        config.eval.noise_multiplier,
        config.eval.units[name],
        config.eval.metrics or (chooses_by(when, plan.task),),
        when.every if plan.config.rounds else 0,
        when.on_start,
        when.split,
        when.final_split,
        apart=config.unit == "row",
    )


def _counted(held_out: HeldOut, rounds: int, name: str, own: SiloPrivacy) -> list[Part]:
    """All counts of a run, which leave room for a training.

    Raises:
        ConfigError: they alone come to more than the silo's ε.
    """
    counts, z = held_out.counts_in(rounds, rounds), held_out.noise_multiplier
    assert own.epsilon is not None and own.delta is not None
    alone = epsilon_of_counts(z, counts, own.delta, apart=held_out.apart)
    if alone >= own.epsilon:
        raise ConfigError(
            f"privacy.eval.noise_multiplier is {z:g}, with which scores of silo {name} come to "
            f"epsilon {alone:.4f}, and privacy.epsilon is {own.epsilon:g}; set it higher, or eval.every"
        )
    return [held_out.part(count) for count in counts.values()]


def make_record_level(plan: Plan, masking: Masking | None) -> RecordLevel:
    """Make the mechanism; a silo's files are opened, or made, where it trains. masking: where noise is shared."""
    config, task = plan.config, plan.training

    def open_silo(client: str) -> Silo:
        settings = config.privacy
        if settings.simulate:
            return Silo(sha256(f"fedtorch simulated silo {settings.seed} {client}".encode()).digest(), None)
        return Silo.open(silos_folder(plan) / folder_name(client), str(config.folder.resolve()))

    def units(client: str, split: str, examples: Sequence[Any]) -> Sequence[Sequence[int]]:
        if not isinstance(config.privacy.unit, Persons):
            return [(place,) for place in range(len(examples))]
        return by_person(task.persons(client, split))

    kept = plan.algorithm.limits.public_numbers
    about = silo_terms(plan), config.privacy, open_silo, units, kept, _basis(plan)
    if masking is None:
        return RecordLevel(*about)
    masking.count = len(plan.topology.workers)
    return SharedNoise(*about, masking=masking)


def _basis(plan: Plan) -> str:
    """All that scores follow from beside weights and rows: the task's keys, the seed, files of base and vocabulary.

    Without the digest of all data, which a rank with pinned rows does not have.
    """
    if plan.config.privacy.eval is None:
        return ""
    facts = {name: fact for name, fact in plan.task.facts().items() if name != "data"}
    return repr((plan.config.task, plan.config.run.seed, sorted(facts.items())))


def silos_folder(plan: Plan) -> Path:
    """Where silos have their keys and ledgers: as `privacy.ledger` says, beside the data, or in the run's folder.

    The last where data lie in no folder here, as a task makes them up.
    """
    config = plan.config
    if config.privacy.ledger is not None:
        return Path(config.privacy.ledger)
    if isinstance(plan.task, InFolder):
        return plan.task.ledgers
    return config.folder / FOLDER / "silos"
