"""Finds what a run asks of one silo from its config: no other rank is spoken to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from fedtorch.algorithms.counts import Counts
from fedtorch.config.schema import Config
from fedtorch.core.client import folder_name
from fedtorch.core.mechanism import Mechanism
from fedtorch.core.update import Report
from fedtorch.rounds.context import keeps_state
from fedtorch.setup.build import BuiltRun, rebuild
from fedtorch.setup.counting import noise_on
from fedtorch.setup.mechanism import make_mechanism
from fedtorch.setup.pinned_data import without_data
from fedtorch.setup.record import silo_terms, silos_folder
from fedtorch.setup.silo_promise import least_parties, promise_to, sends_messages
from fedtorch.tasks.counted import Counted
from fedtorch.trust.merkle import LEAF, root
from fedtorch.trust.policy.asked import Asked, AskedNoise
from fedtorch.trust.policy.kinds import EXAMPLE_SCORES, MESSAGES, REPORTS, SCORES

_WHOLE = 8
"""Bytes of a whole number, as sums travel; an update by itself has 4 or 8 for each of its own."""
_FULL = Report(
    "",
    "ok",
    1,
    1,
    1.0,
    1.0,
    1.0,
    1.0,
    1.0,
    1.0,
    1.0,
    1.0,
    curve=(1.0,),
    extra={"unclipped": 1.0, "loss_reduction": 1.0},
)
"""A report with something in every field, of which a mechanism leaves what may leave."""


def asked_of(config: Config, clients: Sequence[str], num_ranks: int, *, is_new: bool = False) -> Asked:
    """The facts that a policy is compared with; code and members are left out.

    clients: those whose silo is asked. num_ranks: of the job. is_new: does the run begin anew (`--resume never`)?
    Builds the model, imports whatever the config names, and where a silo's ledger lies beside its prepared rows finds
    that folder as a run does. No row decides anything.

    Raises:
        FedtorchError: the run cannot be.
    """
    built = rebuild(without_data(config), num_ranks)
    vectors = len(built.algorithm.travels.vectors)
    layout = built.algorithm.travels.laid_out(built.engine.shared)
    sizes = tuple(zip(layout.names, layout.sizes, strict=True)) if vectors else ()
    own = [name for name in clients if built.clients.named(name) is not None] or list(clients)
    promises = [promise_to(built, name, is_new=is_new) for name in own]
    mechanism, of_record = make_mechanism(built, is_server=False), config.privacy.kind == "record"
    return Asked(
        sizes,
        vectors,
        tuple(kinds_of(built, mechanism, own)),
        config.rounds,
        layout.size * vectors * max(_WHOLE, layout.dtype.itemsize * len(own)),
        clients=len(own),
        parties=least_parties(built),
        promise=promises[0][0],
        epsilon=max((epsilon for _, epsilon, _ in promises if epsilon is not None), default=None),
        delta=max((delta for _, _, delta in promises if delta is not None), default=None),
        clip=None if config.privacy.adaptive is not None else config.privacy.first_clip or None,
        clips_updates=not of_record,
        verified=_verified(config),
        declared=_declared(config, own) if of_record else (),
        figures=(*public, *built.algorithm.limits.public_numbers) if (public := mechanism.public_figures) else (),
        noise=_noise(built, own),
        initial=_initial(built) if vectors else "",
    )


def kinds_of(built: BuiltRun, mechanism: Mechanism, clients: Sequence[str]) -> list[str]:
    """Names of the kinds that leave a silo in a run, beside updates; see `trust.policy.kinds`."""
    config = built.config
    kept, is_record = mechanism.reported(replace(_FULL, client=clients[0])), config.privacy.kind == "record"
    found = ["status", "steps"]
    for kind in REPORTS:
        is_there = any(getattr(kept, name) for name in kind.fields)
        if is_there and not (is_record and kind.name in _DECLARED):
            found.append(kind.name)
    if not is_record and "examples" not in found:  # sizes of pinned data are exchanged before the first round
        found.append("examples")
    if _is_scored(built, mechanism, clients):
        found.append(SCORES.name)
    if config.eval.per_example:
        found.append(EXAMPLE_SCORES.name)
    if keeps_state(config, built.algorithm, built.engine):
        found.append("states")
    if sends_messages(built, built.engine.shared):
        found.append(MESSAGES.name)
    return [name for name in _ORDER if name in found]


_DECLARED = ("examples", "figures")
"""Kinds of which a silo with `privacy.kind: record` tells what follows from the config alone."""
_ORDER = (*(kind.name for kind in REPORTS), SCORES.name, EXAMPLE_SCORES.name, MESSAGES.name)


def _is_scored(built: BuiltRun, mechanism: Mechanism, clients: Sequence[str]) -> bool:
    """Do scores of the silo's rows leave, with noise or without?"""
    splits = {built.config.eval.split, built.config.eval.final_split}
    return mechanism.shows_scores or any(mechanism.counts(name, split) for name in clients for split in splits)


def _declared(config: Config, clients: Sequence[str]) -> tuple[int, ...]:
    """Numbers of units that the config gives these clients, and of none where it gives none."""
    privacy, found = config.privacy, set[int]()
    for name in clients:
        found.add(privacy.units.get(name, 1))
        found |= set(privacy.eval.units.get(name, {}).values()) if privacy.eval is not None else set()
    return tuple(sorted(found))


def _noise(built: BuiltRun, clients: Sequence[str]) -> tuple[AskedNoise, ...]:
    """Noise that these clients add to their parts of sums; none where it is simulated."""
    privacy, algorithm, task = built.config.privacy, built.algorithm, built.task
    if isinstance(algorithm, Counts) and isinstance(task, Counted) and built.config.counts_privately:
        return tuple(noise_on(built.config, algorithm.rule, task, name) for name in clients)
    if privacy.kind != "record" or privacy.noise_at != "shared" or privacy.simulate:
        return ()
    terms, folder = silo_terms(built), silos_folder(built).absolute()
    size = algorithm.travels.laid_out(built.engine.shared).size
    blocks = {name: (((0, size, terms[name].deviation),),) for name in clients}
    return tuple((n, str(folder / folder_name(n)), privacy.noise, terms[n].exponent, blocks[n]) for n in clients)


def _verified(config: Config) -> float:
    """The share of the server's work that is checked: as `trust.verify` says; none behind the server's noise."""
    found = config.trust.verify if config.has_tags else None
    return 1.0 if found == "all" else found or 0.0


def _initial(built: BuiltRun) -> str:
    """Digest of the vectors before the first round, as `rounds.exchanged_vectors` makes it."""
    algorithm, weights = built.algorithm, built.engine.initial()[0]
    layout = algorithm.travels.laid_out(built.engine.shared)
    flat = torch.zeros(layout.size * len(algorithm.travels.vectors), dtype=layout.dtype)
    if algorithm.travels.model is None:
        flat[: weights.numel()] = weights.view(-1)
    return f"sha256:{root(flat.view(torch.uint8).numpy(), LEAF * flat.itemsize).hex()}"
