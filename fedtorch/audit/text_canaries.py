"""Secrets in a client's rows: how far the trained model prefers them to others of the kind (Carlini et al. 2019).

The run is trained anew with them, so this attack is made only where it is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import torch

from fedtorch.audit.finding import LITTLE, Finding
from fedtorch.audit.pictures import bars, histogram
from fedtorch.audit.planted import draw_secrets, plant, with_secret
from fedtorch.audit.subject import Subject
from fedtorch.checkpoint.store import Checkpoints
from fedtorch.comm.local import LocalCommunicator
from fedtorch.config.schema import Config
from fedtorch.core.errors import ConfigError
from fedtorch.privacy.settings import PrivacyConfig
from fedtorch.rounds.context import RoundContext
from fedtorch.rounds.private_weights import private_weights
from fedtorch.rounds.runner import Runner
from fedtorch.setup.build import build

NAME = "secrets"
ABOUT = "exposure of random secrets that stand in a client's rows, under the model trained with them (Carlini 2019)"
NEEDS = "the final model, and which secrets there could be"
REPEATS = (0, 1, 4, 16)
"""How often the secrets stand in a client's rows; those of 0 times are nowhere, for comparison."""
CANDIDATES, LENGTH = 256, 4
"""|R|, and tokens of a secret."""
TELLING = 2.0
"""Bits by which the mean exposure has to be above that of secrets which are nowhere; that is 1.44 on average."""


@dataclass(frozen=True)
class Secret:
    """One that is planted, or is not."""

    client: str
    """in whose rows it stands"""
    repeats: int
    """how many of its training rows have it; 0: it is nowhere, for comparison"""
    rows: tuple[Any, ...]
    """with each candidate in its place; the secret's own comes first"""


def why_not(subject: Subject) -> str:
    """Why the attack does not apply; empty if it does."""
    task = subject.context.components.training
    if not subject.options.trains:
        return f"it trains the run anew, with secrets in it; ask for it with --attacks {NAME}"
    if subject.context.config.paradigm != "federated":
        return "clients do not train by themselves"
    if not task.has_labelled_clients or not hasattr(task, "vocabulary"):
        return "clients have no answers in tokens to learn"
    client = subject.context.components.clients[0].name
    if not any(with_secret(row, (0,)) is not None for row in subject.examples(client)[:1]):
        return "the rows of this task have no answers in tokens"
    return ""


def attack(subject: Subject) -> Finding:
    """Exposure by client and by how often a secret stands there, without and with the defences of the run."""
    figures, exposures = list[dict[str, Any]](), dict[str, list[float]]()
    secrets = planned(subject)
    trained, missing = _trained_as(subject)
    for channel, config in trained:
        with TemporaryDirectory() as scratch:
            context = train(config, secrets, Path(scratch))
            for secret in secrets:
                found = exposure(context, secret)
                exposures.setdefault(f"{channel}/{secret.repeats}", []).append(found)
                row = {"channel": channel, "client": secret.client, "times": secret.repeats, "exposure": found}
                figures.append({**row, "most": math.log2(CANDIDATES)})
    means = [
        {"channel": key.split("/")[0], "client": f"{key.split('/')[1]} times", "exposure": mean(values)}
        for key, values in exposures.items()
    ]
    planted = [row["exposure"] for row in figures if row["times"]]
    marks = {"nowhere": mean(row["exposure"] for row in figures if not row["times"]), "planted": mean(planted)}
    picture = bars(means, "exposure") + histogram(planted, marks, "exposure of a planted secret, bits")
    return Finding(NAME, ABOUT, NEEDS, _said(figures) + missing, figures, picture)


def planned(subject: Subject) -> list[Secret]:
    """Secrets of every number of repeats for each of the attacked clients, each in a row of its own."""
    components, found = subject.context.components, list[Secret]()
    vocabulary = len(components.training.vocabulary)  # type: ignore[attr-defined]
    for client in [client.name for client in components.clients][: subject.options.clients]:
        rows = [row for row in subject.examples(client) if with_secret(row, (0,)) is not None]
        for place, repeats in enumerate(REPEATS if rows else ()):
            candidates = draw_secrets(CANDIDATES, LENGTH, vocabulary, client, repeats)
            template = rows[place % len(rows)]
            found.append(Secret(client, repeats, tuple(with_secret(template, one) for one in candidates)))
    return found


def train(config: Config, secrets: Sequence[Secret], folder: Path) -> RoundContext:
    """The run from its beginning, in this process, with the secrets in its clients' rows."""
    extra: dict[str, list[Any]] = {}
    for secret in secrets:
        extra.setdefault(secret.client, []).extend([secret.rows[0]] * secret.repeats)
    config = replace(
        config,
        task=plant(config.task, extra),
        run=replace(config.run, dir=str(folder), export="none"),
        eval=replace(config.eval, every=0, on_start=False, patience=None),
        checkpoint=replace(config.checkpoint, every=max(1, config.rounds)),
        compare=None,
    )
    built = build(config, num_ranks=1, rank=0)
    checkpoints = Checkpoints(folder / "checkpoints", keep=1)
    runner = Runner(built.components(LocalCommunicator(built.names), checkpoints, stop=lambda: False))
    runner.run()
    return runner.context


@torch.no_grad()
def exposure(context: RoundContext, secret: Secret) -> float:
    """log2 |R| − log2 rank of the secret by its loss; equal losses count half.

    Under the weights that clients received last, with the client's private ones where it has some.
    """
    components = context.components
    task, engine = components.training, components.engine
    engine.load(context.vectors.weights, private_weights(components, secret.client, context.store.get(secret.client)))
    engine.module.eval()
    losses = [float(task.loss(engine.module, task.collate([row], False))[0]) for row in secret.rows]
    own, *others = losses
    rank = 1 + sum(1.0 if other < own else 0.5 if other == own else 0.0 for other in others)
    return math.log2(CANDIDATES) - math.log2(rank)


def _trained_as(subject: Subject) -> tuple[list[tuple[str, Config]], str]:
    """The run as it is without privacy, and with the clip and noise of the options; or why it cannot have these."""
    config, options = subject.context.config, subject.options
    if options.clip is None or options.noise is None:
        return [("model", config)], ""
    promise = PrivacyConfig(
        "client", clip=options.clip, noise_multiplier=options.noise, delta=1e-9, simulate=True, seed=0
    )
    rate = options.rate or _rate(config, len(subject.context.components.clients))
    sampling = replace(config.clients, sampling="poisson", rate=rate, per_round="all")
    private = replace(config, privacy=promise, clients=sampling)
    try:
        build(private, num_ranks=1, rank=0)
    except ConfigError as error:
        return [("model", config)], f" (not tried with clip and noise: {error})"
    return [("model", config), ("model, clipped, noised", private)], ""


def _rate(config: Config, clients: int) -> float:
    return 1.0 if config.clients.per_round == "all" else min(1.0, config.clients.per_round / clients)


def _said(figures: Sequence[Mapping[str, Any]]) -> str:
    parts = []
    for channel in dict.fromkeys(row["channel"] for row in figures):
        by_times = {
            times: mean(row["exposure"] for row in figures if (row["channel"], row["times"]) == (channel, times))
            for times in REPEATS
        }
        shown = ", ".join(f"{value:.1f} for {times} times" for times, value in by_times.items())
        found = f"{channel}: mean exposure in bits {shown} (most {math.log2(CANDIDATES):.0f})"
        is_little = max(by_times.values()) - by_times[0] < TELLING
        parts.append(found + (", hardly more than of secrets that are nowhere" if is_little else ""))
    return f"{LITTLE} " + "; ".join(parts)
