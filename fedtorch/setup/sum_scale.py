"""`system.sum_scale: previous`: what does not fit is refused before the ranks meet.

One function per rule, in the order of `RULES`; each message says why. `public` is in `secure`.
"""

from __future__ import annotations

from collections.abc import Callable

from fedtorch.algorithms.message import MessageAlgorithm
from fedtorch.algorithms.sums import why_not_ahead
from fedtorch.core.errors import ConfigError
from fedtorch.setup.plan import Plan

WHY = "system.sum_scale is previous but "
INSTEAD = "set system.sum_scale to reports"


def check_previous_scale(plan: Plan) -> None:
    """Apply every rule, where the scale is that of the round before.

    Raises:
        ConfigError: of the first rule that is broken.
    """
    for rule in RULES if plan.config.system.sum_scale == "previous" else ():
        rule(plan)


def the_scale_is_not_public(plan: Plan) -> None:
    """Where the server must not know of updates, their largest elements are no ground for anything."""
    if plan.config.privacy.kind != "none":
        raise ConfigError(
            f"{WHY}privacy.kind is {plan.config.privacy.kind}, whose scale follows from privacy.clip; {INSTEAD}, which "
            "is what it begins with"
        )
    if plan.config.privacy.secure_sum is not None:
        raise ConfigError(f"{WHY}privacy.secure_sum is set, whose scale is public; set system.sum_scale to public")


def there_is_a_sum(plan: Plan) -> None:
    """A server adds up what clients send."""
    if plan.config.paradigm != "federated":
        raise ConfigError(f"{WHY}paradigm is {plan.config.paradigm}, where no server adds up updates; {INSTEAD}")


def weights_are_known_of_each_client(plan: Plan) -> None:
    """One sum of vectors, in which a client's number does not wait for the others'."""
    name, algorithm = plan.config.algorithm_name or type(plan.algorithm).__name__, plan.algorithm
    if isinstance(algorithm, MessageAlgorithm):
        raise ConfigError(f"{WHY}algorithm.name is {name}, whose clients send compressed messages; {INSTEAD}")
    if reason := why_not_ahead(algorithm):
        raise ConfigError(f"{WHY}algorithm.name is {name}, which {reason}; {INSTEAD}")


RULES: tuple[Callable[[Plan], None], ...] = (
    the_scale_is_not_public,
    there_is_a_sum,
    weights_are_known_of_each_client,
)
