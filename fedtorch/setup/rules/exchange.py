"""Rules about updates in fewer bits."""

from __future__ import annotations

import torch

from fedtorch.algorithms.message import MessageAlgorithm
from fedtorch.core.errors import ConfigError
from fedtorch.setup.plan import Plan
from fedtorch.setup.rules.subject import Subject
from fedtorch.train.engine import Engine

INSTEAD = "set exchange.bits to 32"


def _why(plan: Plan) -> str:
    """How the errors begin."""
    return f"exchange.bits is {plan.config.exchange.bits} but "


def a_server_adds_up(plan: Plan) -> None:
    """Refuse fewer bits where no server adds up what several clients send."""
    if plan.config.paradigm != "federated":
        raise ConfigError(f"{_why(plan)}paradigm is {plan.config.paradigm}, where clients send no updates; {INSTEAD}")


def nothing_else_packs_updates(plan: Plan) -> None:
    """Refuse fewer bits beside messages of the algorithm's own."""
    if isinstance(plan.algorithm, MessageAlgorithm):
        raise ConfigError(
            f"{_why(plan)}algorithm.name is {plan.config.algorithm_name}, which has messages of its own "
            f"(algorithm.compression); {INSTEAD}"
        )


def updates_are_one_vector(plan: Plan) -> None:
    """Refuse fewer bits for algorithms that send several vectors or no differences, or do not add them up."""
    name, algorithm = plan.config.algorithm_name or type(plan.algorithm).__name__, plan.algorithm
    if getattr(algorithm, "robust", None) is not None:
        raise ConfigError(
            f"{_why(plan)}algorithm.robust is set: such rules compare updates side by side, which come one by one; "
            f"{INSTEAD}, or remove algorithm.robust"
        )
    reason = ""
    if len(algorithm.travels.vectors) != 1:
        reason = f"sends {len(algorithm.travels.vectors)} vectors, not one"
    elif not algorithm.limits.is_sum:
        reason = "combines updates in a way of its own, not by a weighted sum"
    elif algorithm.limits.why_not_rounded:
        reason = algorithm.limits.why_not_rounded
    if reason:
        raise ConfigError(f"{_why(plan)}algorithm.name is {name}, which {reason}; {INSTEAD}")


def nobody_hides_updates(plan: Plan) -> None:
    """Refuse fewer bits with any privacy: a secure sum adds numbers of one scale, and rounding may pass a clip."""
    privacy = plan.config.privacy
    if privacy.secure_sum is not None:
        raise ConfigError(
            f"{_why(plan)}privacy.secure_sum is set, which adds masked whole numbers of one scale, and "
            f"here numbers are rounded at scales of their own; {INSTEAD}"
        )
    if privacy.kind != "none":
        raise ConfigError(
            f"{_why(plan)}privacy.kind is {privacy.kind}, whose clip and noise rest on numbers that nobody rounds "
            f"after it; {INSTEAD}"
        )


def the_scale_is_that_of_reports(plan: Plan) -> None:
    """Refuse fewer bits with another scale of the sum than that of the round's reports."""
    if (scale := plan.config.system.sum_scale) != "reports":
        raise ConfigError(
            f"{_why(plan)}system.sum_scale is {scale}, which is for updates that are sent as they are; set "
            "system.sum_scale to reports"
        )


def weights_are_of_32_bits(plan: Plan, engine: Engine) -> None:
    """Refuse fewer bits for shared parameters that are not fp32."""
    if engine.shared.dtype != torch.float32:
        raise ConfigError(f"{_why(plan)}the shared parameters are {engine.shared.dtype}, not torch.float32; {INSTEAD}")


SUBJECT = Subject(
    "Updates in fewer bits",
    applies=lambda plan: plan.config.exchange.bits != 32,
    of_plan=(
        a_server_adds_up,
        nothing_else_packs_updates,
        updates_are_one_vector,
        nobody_hides_updates,
        the_scale_is_that_of_reports,
    ),
    of_engine=(weights_are_of_32_bits,),
)
