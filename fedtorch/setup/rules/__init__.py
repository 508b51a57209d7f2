"""Refuses what cannot work before the ranks meet: one function per rule, a file per subject.

Rules about single keys are ranges in the config's classes, those about two keys of one section in `__post_init__`
there; here is what needs the task, the algorithm, the number of ranks or the model. docs/refusals.md lists them.
"""

from __future__ import annotations

from torch import nn

from fedtorch.config.schema import Config
from fedtorch.setup.plan import Plan
from fedtorch.setup.rules import (
    algorithm,
    asynchrony,
    attacks,
    clients,
    counting,
    engine,
    evaluation,
    exchange,
    noised_scores,
    privacy,
    record,
    references,
    seeds,
    sums,
    trainers,
    trust,
    under_way,
    vectors,
)
from fedtorch.setup.rules.subject import Subject
from fedtorch.train.engine import Engine

SUBJECTS: tuple[Subject, ...] = (
    clients.SUBJECT,
    algorithm.SUBJECT,
    asynchrony.SUBJECT,
    references.SUBJECT,
    engine.SUBJECT,
    trainers.SCRIPTS,
    trainers.SUBJECT,
    under_way.SUBJECT,
    vectors.SUBJECT,
    evaluation.SUBJECT,
    privacy.SHARED,
    privacy.SUBJECT,
    record.ALWAYS,
    record.SUBJECT,
    noised_scores.SUBJECT,
    sums.CLIP,
    sums.PUBLIC,
    sums.PREVIOUS,
    counting.SUBJECT,
    exchange.SUBJECT,
    seeds.SUBJECT,
    trust.SUBJECT,
    trust.CHECKED,
    attacks.SUBJECT,
)
"""In the order in which they are asked."""


def check_plan(plan: Plan, subjects: tuple[Subject, ...] = SUBJECTS) -> None:
    """Apply every rule about a run of which nothing is built yet.

    Raises:
        ConfigError: of the first rule that is broken.
    """
    for subject in subjects:
        for rule in subject.of_plan if subject.applies(plan) else ():
            rule(plan)


def check_data(plan: Plan) -> None:
    """Apply the rules about clients, training and evaluation, for who looks at data with one rank and trains nobody.

    Raises:
        ConfigError: of the first rule that is broken.
    """
    check_plan(plan, (clients.SUBJECT, algorithm.SUBJECT, references.SUBJECT, engine.SUBJECT, evaluation.SUBJECT))


def check_promise(plan: Plan) -> None:
    """Apply the rules of privacy and of the sums that it needs, for who asks only what a run costs.

    Raises:
        ConfigError: of the first rule that is broken.
    """
    check_plan(plan, (privacy.SHARED, privacy.SUBJECT, record.SUBJECT, noised_scores.SUBJECT, sums.CLIP, sums.PUBLIC))


def check_module(config: Config, module: nn.Module) -> None:
    """Apply every rule about the model before an engine takes it.

    Raises:
        ConfigError: of the first rule that is broken.
    """
    for subject in SUBJECTS:
        for rule in subject.of_module:
            rule(config, module)


def check_engine(plan: Plan, built: Engine) -> None:
    """Apply every rule that needs to know which parameters are shared, private and frozen.

    Raises:
        ConfigError: of the first rule that is broken.
    """
    for subject in SUBJECTS:
        for rule in subject.of_engine if subject.applies(plan) else ():
            rule(plan, built)
